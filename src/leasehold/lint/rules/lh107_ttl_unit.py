"""A time to live looks as if it were in the wrong unit.

`px=` and the TTL of redlock-py are milliseconds; `ex=` and the timeout of most libraries are seconds.

## Why

A lock of 30 milliseconds has expired before its holder has read the answer: it excludes nobody. A lock of 30,000
seconds stays for eight hours after its holder died.

## Bad

```py
def nightly(redis, token):
    if redis.set("lock:nightly", token, nx=True, px=30):
        export()
```

```py
from redlock import Redlock

locks = Redlock(servers)
lock = locks.lock("nightly", 30)
```

## Good

```py
def nightly(redis, token):
    if redis.set("lock:nightly", token, nx=True, px=30_000):
        export()
```

## Not reported

Numbers that are not written out, milliseconds from 100 on, and seconds up to a day.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from leasehold.lint.finding import Finding
from leasehold.lint.kinds import GUESSED_REDIS_LOCK, POTTERY_LOCK, PYTHON_REDIS_LOCK, REDIS_LOCK, REDLOCK
from leasehold.lint.locks import made_things
from leasehold.lint.module import Module, argument, method_of, number, receiver_of
from leasehold.lint.rule import rule
from leasehold.lint.stores import takes

LEAST_MILLISECONDS = 100
MOST_SECONDS = 86_400


@rule("LH107", "ttl-unit", __doc__, words=("lock", "nx"))
def check(module: Module) -> Iterator[Finding]:
    """Report the time to live."""
    for node, unit in [*_of_commands(module), *_of_objects(module)]:
        value = number(node)
        if value is None or value <= 0:
            continue
        if unit == "milliseconds" and value < LEAST_MILLISECONDS:
            yield module.finding("LH107", node, f"{value:g} milliseconds excludes nobody; were seconds meant?")
        elif unit == "seconds" and value > MOST_SECONDS and value % 1000 == 0 and value % 3600:
            yield module.finding(
                "LH107", node, f"{value:g} seconds are {value / 3600:.0f} hours; were milliseconds meant?"
            )


def _of_commands(module: Module) -> Iterator[tuple[ast.expr, str]]:
    for operation in takes(module):
        for name, unit in (("px", "milliseconds"), ("ex", "seconds"), ("timeout", "seconds")):
            given = argument(operation.call, name)
            if given is not None:
                yield given, unit


def _of_objects(module: Module) -> Iterator[tuple[ast.expr, str]]:
    for call in module.calls:
        if method_of(call) == "lock" and module.kind(receiver_of(call)) is REDLOCK:
            given = argument(call, "ttl", 1)
            if given is not None:
                yield given, "milliseconds"
    for call, kind in made_things(module):
        if kind in (REDIS_LOCK, GUESSED_REDIS_LOCK, PYTHON_REDIS_LOCK, POTTERY_LOCK):
            names = ("timeout", "expire", "auto_release_time")
            yield from ((given, "seconds") for name in names if (given := argument(call, name)) is not None)
