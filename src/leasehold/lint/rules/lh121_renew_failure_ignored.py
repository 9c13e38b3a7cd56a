"""A lock is renewed in a loop that goes on when the renewal fails, and tells nobody.

## Why

When the lock cannot be renewed, it will be someone else's at its deadline. A renewer that catches the error and tries
again for ever lets the work go on without the lock.

## Bad

```py
def keep_alive(lock, stopped):
    while not stopped.wait(10):
        try:
            lock.extend(30)
        except Exception:
            logger.info("could not extend")
```

## Good

```py
def keep_alive(lock, stopped, lost):
    while not stopped.wait(10):
        try:
            lock.extend(30)
        except Exception:
            lost.set()
            raise
```

## Not reported

Handlers that leave the loop, raise, log a warning or an error, or change a state that the work can see.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from leasehold.lint.finding import Finding
from leasehold.lint.locks import RENEW, goes_on_quietly, is_lock, names_in
from leasehold.lint.module import LOOPS, Module, calls_in_block, method_of, receiver_of
from leasehold.lint.rule import rule
from leasehold.lint.stores import RENEWS, names_lock, operations

CAUGHT = frozenset({"Exception", "BaseException", "LockError", "LockNotOwnedError", "RedisError", "ConnectionError"})


@rule(
    "LH121", "renew-failure-ignored", __doc__, words=("extend", "renew", "reacquire", "refresh", "expire", "keepalive")
)
def check(module: Module) -> Iterator[Finding]:
    """Report the handler."""
    prolongs = {one.call for one in operations(module) if one.meaning is RENEWS and names_lock(module, one)}
    for block in module.all(ast.Try):
        if module.enclosing(block, *LOOPS) is None:
            continue
        renews = any(
            call in prolongs or (method_of(call) in RENEW and is_lock(module, receiver_of(call)))
            for call in calls_in_block(block.body)
        )
        for handler in block.handlers if renews else ():
            if names_in(handler.type) & CAUGHT and goes_on_quietly(handler):
                yield module.finding(
                    "LH121",
                    handler,
                    "the renewal failed and the work goes on: by the deadline the lock is someone else's; tell the "
                    "work to stop",
                )
