"""The answer of taking a lock is read the wrong way round.

## Why

`SET … NX` answers true to the one who got the lock. With the condition reversed, the holder gives up (and leaves the
lock behind), and everyone who was refused goes on.

## Bad

```py
def nightly(redis, token):
    if redis.set("lock:nightly", token, nx=True, ex=30):
        raise AlreadyRunning("nightly")
    export()
```

## Good

```py
def nightly(redis, token):
    if not redis.set("lock:nightly", token, nx=True, ex=30):
        raise AlreadyRunning("nightly")
    export()
```

## Not reported

Errors whose name does not say that somebody else is at work.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from leasehold.lint.finding import Finding
from leasehold.lint.locks import ACQUIRE, is_lock
from leasehold.lint.module import Module, method_of, receiver_of
from leasehold.lint.rule import rule
from leasehold.lint.stores import TAKES, operations
from leasehold.lint.words import speaks_of, speaks_of_lock

REFUSALS = (
    "already",
    "busy",
    "running",
    "progress",
    "conflict",
    "inprogress",
    "taken",
    "held",
    "concurrent",
    "duplicate",
)


@rule("LH116", "inverted-acquire", __doc__, words=("raise",))
def check(module: Module) -> Iterator[Finding]:
    """Report the condition."""
    taken = {operation.call for operation in operations(module) if operation.meaning is TAKES}
    for branch in module.all(ast.If):
        test = branch.test.value if isinstance(branch.test, ast.Await) else branch.test
        if not isinstance(test, ast.Call) or branch.orelse or not isinstance(branch.body[-1], ast.Raise):
            continue
        if test not in taken and not (method_of(test) in ACQUIRE and is_lock(module, receiver_of(test))):
            continue
        error = module.text(branch.body[-1].exc)
        if speaks_of(error, *REFUSALS) or speaks_of_lock(error):
            yield module.finding(
                "LH116",
                branch.test,
                "this is true for the one who got the lock; those who did not go on: write `if not`",
            )
