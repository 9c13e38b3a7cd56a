"""A lock is prolonged without looking whose it is.

## Why

A holder that was stalled past the end of its lock wakes up and prolongs the key, which by now belongs to another one;
or, with `SET … XX`, puts its own value there and steals it. Both then believe that they hold the lock.

## Bad

```py
def renew_lock(redis, lock_key):
    redis.expire(lock_key, 30)
```

```py
def keep(redis, lock_key, token):
    redis.set(lock_key, token, xx=True, ex=30)
```

## Good

```py
RENEW = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2]) end return 0"

def renew_lock(redis, lock_key, token):
    if not redis.eval(RENEW, 1, lock_key, token, 30_000):
        raise LockLost(lock_key)
```

## Not reported

The `EXPIRE` right after the lock was taken (LH101), and one that follows a comparison of the value (LH111).
Counters, lists, sets and hashes, whatever they are called, and what is told about a lock (`lock_stats`).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from leasehold.lint.finding import Finding
from leasehold.lint.module import Module, argument, calls_in, method_of
from leasehold.lint.rule import rule
from leasehold.lint.stores import (
    RENEWS,
    SETS,
    TAKES,
    Operation,
    compares_with,
    names_lock,
    operations,
    same_function,
)


@rule("LH120", "renew-without-owner-check", __doc__, words=("expire", "xx=", "touch("))
def check(module: Module) -> Iterator[Finding]:
    """Report the command that prolongs."""
    for operation in operations(module):
        if operation.in_pipeline or not names_lock(module, operation) or not _prolongs(operation):
            continue
        if same_function(module, operation, TAKES, SETS) or _is_compared(module, operation):
            continue
        yield module.finding(
            "LH120",
            operation.call,
            "this prolongs the lock of whoever holds it by now: prolong it only while it still has our token, "
            "in one step, and stop the work when it does not",
        )


def _prolongs(operation: Operation) -> bool:
    if operation.meaning is RENEWS:
        return True
    given = argument(operation.call, "xx", 5)
    return operation.meaning is SETS and isinstance(given, ast.Constant) and bool(given.value)


def _is_compared(module: Module, operation: Operation) -> bool:
    scope = module.scope_of(operation.call)
    return any(
        isinstance(node, ast.If) and compares_with(module, node.test, operation.key_text) for node in ast.walk(scope)
    ) or any(method_of(call) == "watch" for call in calls_in(scope))
