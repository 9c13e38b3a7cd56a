"""A lock whose value is the time at which it expires, checked and overwritten by those who wait.

The recipe of `SETNX` with a timestamp and `GETSET`, from before Redis had `SET NX PX`.

## Why

Every client decides by its own wall clock whether the lock has expired: clocks differ and are set. And each waiter
that loses the `GETSET` has overwritten the value of the one that won.

## Bad

```py
import time

def take(redis, key, seconds):
    if redis.setnx(key, time.time() + seconds):
        return True
    held_until = float(redis.get(key) or 0)
    if held_until < time.time():
        return float(redis.getset(key, time.time() + seconds)) == held_until
    return False
```

## Good

```py
def take(redis, key, token, seconds):
    return redis.set(key, token, nx=True, ex=seconds)
```

## Not reported

A timestamp that is only information, beside a real expiry.
"""

from __future__ import annotations

from collections.abc import Iterator

from leasehold.lint.clocks import reads_wall_clock
from leasehold.lint.finding import Finding
from leasehold.lint.module import Module
from leasehold.lint.rule import rule
from leasehold.lint.stores import READS, TAKES, operations, same_key


@rule("LH106", "timestamp-lock", __doc__, words=("setnx", "nx"))
def check(module: Module) -> Iterator[Finding]:
    """Report the command that takes the lock."""
    for operation in operations(module):
        if operation.meaning is not TAKES or operation.may_have_ttl:
            continue
        overwritten = [one for one in same_key(module, operation, READS) if one.command == "getset"]
        if overwritten and reads_wall_clock(module, operation.value):
            yield module.finding(
                "LH106",
                operation.call,
                "the lock's end is a wall-clock time in its value: clocks differ, and every loser overwrites it; "
                "use set(…, nx=True, px=…)",
            )
