"""Waiting for a lock spins: it asks again at once, or after a fixed moment that is far too short.

## Why

Every waiter sends its request hundreds of times a second, all in step. The server that should answer the holder is
busy with those who wait, and each release wakes all of them at the same moment.

## Bad

```py
import time

def take(redis, key, token):
    while not redis.set(key, token, nx=True, ex=30):
        time.sleep(0.001)
```

## Good

```py
import random
import time

def take(redis, key, token, patience):
    give_up_at = time.monotonic() + patience
    while not redis.set(key, token, nx=True, ex=30):
        if time.monotonic() > give_up_at:
            raise TimeoutError(key)
        time.sleep(random.uniform(0.05, 0.25))
```

## Not reported

Pauses of 50 milliseconds and more, and pauses that are computed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from leasehold.lint.clocks import is_sleep
from leasehold.lint.finding import Finding
from leasehold.lint.module import Module, calls_in, method_of, number
from leasehold.lint.rule import rule
from leasehold.lint.waiting import tries_in

LEAST_PAUSE = 0.05
WAITS = frozenset(
    {"sleep", "wait", "wait_for", "blpop", "get_message", "listen", "select", "poll", "join", "get", "pause"}
)


@rule("LH131", "spin-no-jitter", __doc__, words=("while",))
def check(module: Module) -> Iterator[Finding]:
    """Report the loop, or its pause."""
    for loop in module.all(ast.While):
        tries = tries_in(module, loop)
        if not tries:
            continue
        waits = [call for call in calls_in(loop) if method_of(call) in WAITS and call not in tries]
        if not waits and "sleep" not in module.text(loop) and "backoff" not in module.text(loop):
            yield module.finding(
                "LH131", loop, "this asks for the lock again at once: pause between attempts, with jitter"
            )
        for call in waits:
            pause = number(call.args[0]) if is_sleep(module, call) and call.args else None
            if pause is not None and pause < LEAST_PAUSE and _is_in_loop(module, call, loop):
                yield module.finding(
                    "LH131", call, f"{pause:g} s between attempts is a spin: wait longer, and by chance (full jitter)"
                )


def _is_in_loop(module: Module, call: ast.Call, loop: ast.While) -> bool:
    return module.enclosing(call, ast.While, ast.For) is loop
