"""A lock in Redis or a cache is released by deleting its key, whoever holds it by now.

## Why

When the work takes longer than the lock's time to live (a slow query, a pause of the garbage collector, a machine
that was suspended), the lock expires and somebody else takes it. The late holder then deletes the key of that other
one, a third takes the lock, and so on: from one slow run on, two are always at work.

## Bad

```py
def nightly(redis, token):
    if redis.set("lock:nightly", token, nx=True, ex=30):
        try:
            export()
        finally:
            redis.delete("lock:nightly")
```

## Good

```py
RELEASE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end"

def nightly(redis, token):
    if redis.set("lock:nightly", token, nx=True, ex=30):
        try:
            export()
        finally:
            redis.eval(RELEASE, 1, "lock:nightly", token)
```

## Not reported

Functions that break a lock on purpose (called force, admin, clear, reset, …), deletes inside a transaction, and keys
that are not taken as a lock. Redis 8.4 and later can do it in one command: `DELEX key IFEQ token`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from leasehold.lint.finding import Finding
from leasehold.lint.module import Module, calls_in, method_of
from leasehold.lint.rule import rule
from leasehold.lint.stores import (
    DELETES,
    TAKES,
    Operation,
    compares_with,
    in_lock_code,
    is_taken_as_lock,
    names_lock,
    operations,
    same_key,
)
from leasehold.lint.words import speaks_of

ON_PURPOSE = (
    "admin", "break", "clean", "clear", "delete", "destroy", "drop", "expire", "flush", "force", "invalidate",
    "purge", "remove", "reset", "stale", "steal",
)  # fmt: skip
RELEASING = ("release", "unlock", "exit", "aexit", "del")


@rule("LH110", "unconditional-release", __doc__, words=("delete(", "unlink("))
def check(module: Module) -> Iterator[Finding]:
    """Report the command that deletes the key."""
    for operation in operations(module):
        if operation.meaning is not DELETES or operation.in_pipeline or not _is_release(module, operation):
            continue
        if not _is_meant(module, operation) and not _is_compared(module, operation):
            yield module.finding(
                "LH110",
                operation.call,
                "this deletes the lock of whoever holds it by now, if ours has expired: delete it only while it "
                "still has our token, in one step (a script, or DELEX … IFEQ)",
            )


def _is_release(module: Module, operation: Operation) -> bool:
    """Whether the key was taken as a lock here, or the function says that it releases one."""
    if any(is_taken_as_lock(module, other) for other in same_key(module, operation, TAKES)):
        return names_lock(module, operation) or in_lock_code(module, operation.call) or _ends(module, operation)
    function = module.function_of(operation.call)
    if function is None or not names_lock(module, operation):
        return False
    return speaks_of(function.name, *RELEASING) or module.in_finally(operation.call) is not None


def _ends(module: Module, operation: Operation) -> bool:
    return module.in_finally(operation.call) is not None


def _is_meant(module: Module, operation: Operation) -> bool:
    function = module.function_of(operation.call)
    return function is not None and speaks_of(function.name, *ON_PURPOSE)


def _is_compared(module: Module, operation: Operation) -> bool:
    """Whether a condition compares the value first; that is a matter of its own (LH111)."""
    for parent in module.above(operation.call):
        if isinstance(parent, ast.If) and compares_with(module, parent.test, operation.key_text):
            return True
    scope = module.scope_of(operation.call)
    return any(method_of(call) in ("watch", "multi") for call in calls_in(scope)) or _left_early(module, operation)


def _left_early(module: Module, operation: Operation) -> bool:
    """``if redis.get(key) != token: return`` before the delete."""
    return any(
        isinstance(node, ast.If)
        and node.lineno < operation.call.lineno
        and compares_with(module, node.test, operation.key_text)
        for node in ast.walk(module.scope_of(operation.call))
    )
