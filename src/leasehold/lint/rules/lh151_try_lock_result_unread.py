"""A database is asked for a lock without waiting, and its answer is not read.

## Why

`pg_try_advisory_lock` and `GET_LOCK` do not fail when the lock is held: they answer false, or 0. Who does not read
the row goes on without the lock.

## Bad

```py
def nightly(cursor):
    cursor.execute("SELECT pg_try_advisory_lock(42)")
    export()
```

## Good

```py
def nightly(cursor):
    cursor.execute("SELECT pg_try_advisory_lock(42)")
    if not cursor.fetchone()[0]:
        return
    export()
```

## Not reported

Statements whose result is used, returned, or fetched later from the same cursor.
"""

from __future__ import annotations

from collections.abc import Iterator

from leasehold.lint.finding import Finding
from leasehold.lint.module import Module, calls_in, inside, method_of
from leasehold.lint.rule import rule
from leasehold.lint.sql import Advisory, advisory_calls


@rule("LH151", "try-lock-result-unread", __doc__, words=("try_advisory", "get_lock"))
def check(module: Module) -> Iterator[Finding]:
    """Report the statement."""
    for advisory in advisory_calls(module):
        if advisory.tries and module.is_statement(advisory.call) and not _is_fetched(module, advisory):
            yield module.finding(
                "LH151",
                advisory.call,
                f"{advisory.function} answers whether the lock was got, and nobody reads it: fetch the row and look",
            )


def _is_fetched(module: Module, advisory: Advisory) -> bool:
    """Whether the cursor is read, iterated or passed on afterwards."""
    cursor = module.text(advisory.receiver)
    scope = module.scope_of(advisory.call)
    for call in calls_in(scope):
        if call.lineno < advisory.call.lineno or call is advisory.call:
            continue
        if method_of(call).startswith(("fetch", "scalar", "first", "one")):
            return True
        if any(module.text(one) == cursor for one in call.args):
            return True
    return any(hasattr(node, "iter") and module.text(node.iter) == cursor for node in inside(scope))
