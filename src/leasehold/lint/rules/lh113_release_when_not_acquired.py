"""A lock is released also by those who did not get it.

The lock is taken inside the `try` whose `finally` releases it, or released in the branch of the one that failed to
take it.

## Why

Whoever fails to get the lock runs the `finally` too, and frees the lock of the one who holds it. The next attempt
succeeds, and two are at work.

## Bad

```py
def nightly(redis, release, token):
    try:
        if redis.set("lock:nightly", token, nx=True, ex=30):
            export()
    finally:
        redis.delete("lock:nightly")
```

```py
import threading

lock = threading.Lock()

def poll():
    try:
        if not lock.acquire(blocking=False):
            return
        work()
    finally:
        lock.release()
```

## Good

```py
import threading

lock = threading.Lock()

def poll():
    if not lock.acquire(blocking=False):
        return
    try:
        work()
    finally:
        lock.release()
```

## Not reported

A release that stands under a condition of its own (`if acquired:`), and locks of `threading` that are taken without a
limit of time: those cannot fail.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from leasehold.lint.finding import Finding
from leasehold.lint.kinds import ETCD_LOCK, KAZOO_LOCK
from leasehold.lint.locks import ACQUIRE, is_guarded, is_lock, lock_kind, making_call, may_fail, releases
from leasehold.lint.module import Module, calls_in_block, method_of, receiver_of
from leasehold.lint.rule import rule
from leasehold.lint.stores import DELETES, TAKES, operations, same_function

OWNED = (KAZOO_LOCK, ETCD_LOCK)
"""Their release gives back only what this very object holds, and otherwise does nothing."""
_MESSAGE = "whoever did not get the lock runs this too, and frees that of its holder: take the lock before the try"


@rule("LH113", "release-when-not-acquired", __doc__, words=("finally", "delete("))
def check(module: Module) -> Iterator[Finding]:
    """Report the release."""
    for operation in operations(module):
        if operation.meaning is not DELETES:
            continue
        taken = [other.call for other in same_function(module, operation, TAKES)]
        block = module.in_finally(operation.call)
        if block is not None and not is_guarded(module, operation.call, block):
            if any(module.within(call, block.body) for call in taken):
                yield module.finding("LH113", operation.call, _MESSAGE)
        elif any(_in_failed_branch(module, operation.call, call) for call in taken):
            yield module.finding("LH113", operation.call, "this runs when the lock was not got, and frees its holder's")
    for release, lock in releases(module):
        block = module.in_finally(release)
        if block is None or is_guarded(module, release, block) or _is_caught(module, release, block):
            continue
        text = module.text(lock)
        for call in calls_in_block(block.body):
            receiver = receiver_of(call)
            same = receiver is not None and method_of(call) in ACQUIRE and module.text(receiver) == text
            if same and receiver is not None and _can_be_without(module, call, receiver):
                yield module.finding("LH113", release, _MESSAGE)
                break


def _can_be_without(module: Module, call: ast.Call, lock: ast.expr) -> bool:
    kind = lock_kind(module, lock)
    if not is_lock(module, lock) or (kind is not None and (kind.raises or kind in OWNED)):
        return False
    made = making_call(module, lock)
    if kind is None and made is not None and isinstance(made.func, ast.Attribute) and made.func.attr == "Lock":
        return False  # `client.Lock(path)` of a client that is not known: kazoo's way
    return may_fail(module, call, lock)


def _is_caught(module: Module, release: ast.Call, block: ast.Try) -> bool:
    """Whether the release has a ``try`` of its own in the ``finally``: releasing what is not held is expected there."""
    return any(
        isinstance(parent, ast.Try) and parent is not block for parent in module.above(release) if parent is not block
    ) and (module.enclosing(release, ast.Try) is not block)


def _in_failed_branch(module: Module, release: ast.Call, take: ast.Call) -> bool:
    """``if not redis.set(…, nx=True): redis.delete(…)``."""
    for parent in module.above(release):
        if isinstance(parent, ast.If) and isinstance(parent.test, ast.UnaryOp) and isinstance(parent.test.op, ast.Not):
            operand = parent.test.operand
            names = [operand, *module.values.values_of(operand)]
            if take in [one.value if isinstance(one, ast.Await) else one for one in names]:
                return module.within(release, parent.body)
    return False
