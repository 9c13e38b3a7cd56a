"""Waiting for a lock that never gives up.

## Why

If the lock is never released (a holder that hangs, a key without an expiry), every caller waits for ever, each
holding a thread, a connection or a worker slot. The service stops without an error.

## Bad

```py
import random
import time

def take(redis, key, token):
    while True:
        if redis.set(key, token, nx=True, ex=30):
            break
        time.sleep(random.uniform(0.1, 0.5))
```

## Good

```py
import random
import time

def take(redis, key, token, patience):
    give_up_at = time.monotonic() + patience
    while time.monotonic() < give_up_at:
        if redis.set(key, token, nx=True, ex=30):
            return True
        time.sleep(random.uniform(0.1, 0.5))
    return False
```

## Not reported

Loops with anything that looks like a limit: a clock, a count of attempts, an event, an error that is raised.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from leasehold.lint.finding import Finding
from leasehold.lint.module import Module, inside
from leasehold.lint.rule import rule
from leasehold.lint.waiting import tries_in
from leasehold.lint.words import speaks_of

LIMITS = (
    "alive", "attempt", "cancel", "closed", "count", "deadline", "elapsed", "event", "left", "max", "monotonic",
    "patience", "perf", "remaining", "retries", "retry", "running", "shutdown", "stop", "timeout", "tries", "until",
    "wait",
)  # fmt: skip


@rule("LH133", "unbounded-wait", __doc__, words=("while",))
def check(module: Module) -> Iterator[Finding]:
    """Report the loop."""
    for loop in module.all(ast.While):
        tries = tries_in(module, loop)
        if tries and _is_endless(loop, tries) and not _has_limit(loop, tries):
            yield module.finding(
                "LH133", loop, "this waits for ever if the lock is never released: give up after a while, and say so"
            )


def _is_endless(loop: ast.While, tries: list[ast.Call]) -> bool:
    if isinstance(loop.test, ast.Constant):
        return bool(loop.test.value)
    test = loop.test.operand if isinstance(loop.test, ast.UnaryOp) else loop.test
    test = test.value if isinstance(test, ast.Await) else test
    return test in tries or isinstance(test, ast.Name)


def _has_limit(loop: ast.While, tries: list[ast.Call]) -> bool:
    if any(isinstance(node, ast.Raise | ast.Yield) for node in inside(loop)):
        return True
    ignored = {node for call in tries for node in inside(call)}
    names = [
        node.id if isinstance(node, ast.Name) else node.attr
        for node in inside(loop)
        if isinstance(node, ast.Name | ast.Attribute) and node not in ignored
    ]
    return any(speaks_of(name, *LIMITS) for name in names) or any(
        isinstance(node, ast.AugAssign | ast.Compare) for node in inside(loop) if node not in ignored
    )
