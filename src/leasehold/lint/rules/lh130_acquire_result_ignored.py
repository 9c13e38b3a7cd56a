"""A lock is asked for without waiting for ever, and the answer is not looked at.

## Why

`acquire(blocking=False)`, `acquire(timeout=5)` and `SET … NX` answer whether the lock was got. Whoever ignores the
answer goes on without the lock, and then releases it for the one who has it.

## Bad

```py
import redis

lock = redis.Redis().lock("nightly", timeout=30)

def nightly():
    lock.acquire(blocking=False)
    export()
```

```py
class Lock:
    def acquire(self):
        return self.redis.set(self.key, self.token, nx=True, ex=30)

    def __enter__(self):
        self.acquire()
        return self
```

## Good

```py
import redis

lock = redis.Redis().lock("nightly", timeout=30)

def nightly():
    if not lock.acquire(blocking=False):
        return
    export()
```

## Not reported

Locks that raise instead of answering (filelock, portalocker, aioredlock), and locks of `threading` that are not
released in the same function: those are often used as signals.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from leasehold.lint.finding import Finding
from leasehold.lint.kinds import LEASEHOLD_LOCK, REDLOCK
from leasehold.lint.locks import RELEASE, acquires, lock_kind, may_fail
from leasehold.lint.module import FUNCTIONS, Function, Module, calls_in, inside, is_false, method_of, receiver_of
from leasehold.lint.rule import rule
from leasehold.lint.stores import takes

_MESSAGE = "whether the lock was got is not looked at: the work goes on without it"


@rule("LH130", "acquire-result-ignored", __doc__, words=("acquire", "nx", "lock("))
def check(module: Module) -> Iterator[Finding]:
    """Report the call whose answer is dropped."""
    for operation in takes(module):
        if module.is_statement(operation.call) and not operation.in_pipeline:
            yield module.finding("LH130", operation.call, _MESSAGE)
    for call, lock in acquires(module):
        if module.is_statement(call) and _answers(module, call, lock):
            yield module.finding("LH130", call, _MESSAGE)
    for call in module.calls:
        if method_of(call) == "lock" and module.kind(receiver_of(call)) is REDLOCK and module.is_statement(call):
            yield module.finding("LH130", call, _MESSAGE)
    for owner in module.all(ast.ClassDef):
        yield from _entered_unheld(module, owner)


def _answers(module: Module, call: ast.Call, lock: ast.expr) -> bool:
    kind = lock_kind(module, lock)
    if kind is None:
        return False
    if kind.library == LEASEHOLD_LOCK.library:
        return kind.role == "lock"  # the lease is what can be released; nobody has it
    if kind.raises or not may_fail(module, call, lock):
        return False
    return not kind.local or _is_released_in(module.scope_of(call), module, lock)


def _is_released_in(scope: ast.AST, module: Module, lock: ast.expr) -> bool:
    text = module.text(lock)
    return any(method_of(call) in RELEASE and module.text(receiver_of(call)) == text for call in calls_in(scope))


def _entered_unheld(module: Module, owner: ast.ClassDef) -> Iterator[Finding]:
    """``__enter__`` calls an acquire of its own class that may return False, and drops the answer."""
    methods = {one.name: one for one in owner.body if isinstance(one, FUNCTIONS)}
    for name in ("__enter__", "__aenter__"):
        for call in calls_in(methods[name]) if name in methods else ():
            receiver = receiver_of(call)
            own = isinstance(receiver, ast.Name) and receiver.id == "self"
            acquire = methods.get(method_of(call)) if own and "acquire" in method_of(call) else None
            if acquire is not None and module.is_statement(call) and _may_refuse(module, acquire):
                yield module.finding(
                    "LH130", call, "the block is entered also when the lock was not got: raise instead"
                )


def _may_refuse(module: Module, acquire: Function) -> bool:
    answers = [node.value for node in inside(acquire) if isinstance(node, ast.Return) and node.value is not None]
    taken = {operation.call for operation in takes(module)}
    return any(
        is_false(answer) or any(isinstance(one, ast.Call) and one in taken for one in inside(answer))
        for answer in answers
    )
