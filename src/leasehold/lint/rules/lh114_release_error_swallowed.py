"""The error that says that the lock was lost is caught and nothing is done about it.

## Why

"Cannot release a lock that's no longer owned" does not mean that there is nothing to release. It proves that the lock
expired during the work, and that somebody else may have been at work at the same time. Whoever swallows it hides the
only sign.

## Bad

```py
from redis.exceptions import LockError

def nightly(redis):
    lock = redis.lock("nightly", timeout=30)
    lock.acquire()
    try:
        export()
    finally:
        try:
            lock.release()
        except LockError:
            pass
```

## Good

```py
from redis.exceptions import LockError

def nightly(redis):
    lock = redis.lock("nightly", timeout=30)
    lock.acquire()
    try:
        export()
    finally:
        try:
            lock.release()
        except LockError:
            logger.error("the lock was lost during the export: its result may be damaged")
            raise
```

## Not reported

Handlers that log a warning or an error, raise, return, or change a state, and a release while another error is being
raised.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from leasehold.lint.finding import Finding
from leasehold.lint.locks import RELEASE, RENEW, goes_on_quietly, is_lock, lock_kind, names_in
from leasehold.lint.module import Module, calls_in_block, method_of, receiver_of
from leasehold.lint.rule import rule

LOSSES = frozenset(
    {
        "LockNotOwnedError",
        "LockError",
        "LeaseLost",
        "LeaseholdError",
        "NotAcquired",
        "ReleaseUnlockedLock",
        "NotExtendable",
    }
)
"""Errors that a release or a renewal raises when the lock is no longer ours."""
ANY = frozenset({"Exception", "BaseException", "RedisError"})
_MESSAGE = "this error proves that the lock was lost during the work; whoever swallows it hides that two were at work"


@rule("LH114", "release-error-swallowed", __doc__, words=("except", "suppress("))
def check(module: Module) -> Iterator[Finding]:
    """Report the handler."""
    for block in module.all(ast.Try):
        if not _gives_back(module, block.body) or _while_raising(module, block):
            continue
        for handler in block.handlers:
            if _is_loss(module, names_in(handler.type), block.body) and goes_on_quietly(handler):
                yield module.finding("LH114", handler, _MESSAGE)
    for item in module.all(ast.withitem):
        block_of = module.parents[item]
        call = item.context_expr
        if (
            isinstance(call, ast.Call)
            and module.called(call) == "contextlib.suppress"
            and isinstance(block_of, ast.With)
        ):
            names = {name for one in call.args for name in names_in(one)}
            if _while_raising(module, block_of):
                continue
            if _gives_back(module, block_of.body) and _is_loss(module, names, block_of.body):
                yield module.finding("LH114", call, _MESSAGE)


def _while_raising(module: Module, block: ast.stmt) -> bool:
    """Whether another error is on its way to the caller, which the loss must not hide."""
    handler = module.enclosing(block, ast.ExceptHandler)
    return handler is not None and isinstance(handler.body[-1], ast.Raise)


def _gives_back(module: Module, body: list[ast.stmt]) -> bool:
    """Whether a block does little more than release or renew a lock."""
    return len(body) <= 2 and bool(_releases(module, body))


def _releases(module: Module, body: list[ast.stmt]) -> list[ast.Call]:
    return [
        call
        for call in calls_in_block(body)
        if method_of(call) in RELEASE | RENEW and is_lock(module, receiver_of(call)) and not _is_local(module, call)
    ]


def _is_local(module: Module, call: ast.Call) -> bool:
    kind = lock_kind(module, receiver_of(call))
    return kind is not None and not kind.expires


def _is_loss(module: Module, names: set[str], body: list[ast.stmt]) -> bool:
    """Errors of a library count by their name; ``except Exception`` only round a lock that is known to expire."""
    if names & LOSSES:
        return True
    known = any((kind := lock_kind(module, receiver_of(call))) and kind.expires for call in _releases(module, body))
    return known and bool(names & ANY)
