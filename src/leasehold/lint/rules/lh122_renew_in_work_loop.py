"""A lock is renewed by the work itself, between one piece and the next.

## Why

One piece that takes longer than the lock lasts (a slow query, a retried request) lets it expire, and nobody notices
until the next renewal. By then the piece was done beside another holder.

## Bad

```py
import redis

r = redis.Redis()

def nightly(items):
    with r.lock("nightly", timeout=30) as lock:
        for item in items:
            export(item)
            lock.extend(30, replace_ttl=True)
```

## Good

```py
from leasehold import Leasehold

locks = Leasehold("redis://localhost")

def nightly(items):
    with locks.lock("nightly", ttl=30) as lease:
        for item in items:
            lease.check(need=5)
            export(item, token=lease.token)
```

## Not reported

Functions and loops that do nothing but renew.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from leasehold.lint.clocks import is_sleep
from leasehold.lint.finding import Finding
from leasehold.lint.locks import last_name, lock_kind, renewals
from leasehold.lint.module import LOOPS, Module, calls_in_block, method_of
from leasehold.lint.rule import rule
from leasehold.lint.words import is_called_lock, speaks_of

RENEWERS = ("renew", "extend", "keep", "heartbeat", "refresh", "watchdog", "beat", "reacquire")
NOT_WORK = frozenset(
    {"wait", "is_set", "debug", "info", "warning", "error", "exception", "time", "monotonic", "get", "tick", "locked"}
)


@rule("LH122", "renew-in-work-loop", __doc__, words=("extend(", "reacquire(", "renew(", "refresh("))
def check(module: Module) -> Iterator[Finding]:
    """Report the renewal."""
    for call, lock in renewals(module):
        kind = lock_kind(module, lock)
        loop = module.enclosing(call, *LOOPS)
        if loop is None or not (kind is None or kind.expires) or not _is_sure(module, call, lock):
            continue
        function = module.function_of(call)
        if function is not None and speaks_of(function.name, *RENEWERS):
            continue
        if isinstance(loop, ast.For | ast.AsyncFor | ast.While) and _works(module, loop.body, call):
            yield module.finding(
                "LH122",
                call,
                "one slow piece of work outlives the lock before this line is reached: renew in the background, and "
                "send the fencing token along with what is written",
            )


def _is_sure(module: Module, call: ast.Call, lock: ast.expr) -> bool:
    """``extend`` is also a method of lists: an unknown thing counts only if it is called a lock."""
    return lock_kind(module, lock) is not None or (
        is_called_lock(last_name(lock)) and method_of(call) in ("extend", "reacquire", "renew")
    )


def _works(module: Module, body: list[ast.stmt], renewal: ast.Call) -> bool:
    return any(
        call is not renewal
        and method_of(call) not in NOT_WORK
        and not is_sleep(module, call)
        and not module.within(call, [module.statement_of(renewal)])
        for call in calls_in_block(body)
    )
