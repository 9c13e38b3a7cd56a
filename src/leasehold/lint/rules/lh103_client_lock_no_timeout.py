"""A lock object of a library is made without a timeout, and then it never expires.

`Redis.lock()` of redis-py, `Lock` of python-redis-lock and `cache.lock()` of django-redis keep a lock for ever unless
they are told how long.

## Why

The default of `timeout` (of `expire` in python-redis-lock) is None. A holder that dies leaves the lock behind, and
every other waits for ever.

## Bad

```py
import redis

r = redis.Redis()
with r.lock("nightly"):
    export()
```

```py
import redis_lock

with redis_lock.Lock(connection, "nightly"):
    export()
```

## Good

```py
import redis

r = redis.Redis()
with r.lock("nightly", timeout=30):
    export()
```

## Not reported

Libraries whose locks expire by default (pottery, etcd3, sherlock, leasehold), and calls with `**options`. Choose a
timeout longer than the work, and renew it while the work goes on.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from leasehold.lint.finding import Finding
from leasehold.lint.kinds import ASYNC_REDIS_LOCK, GUESSED_REDIS_LOCK, PYTHON_REDIS_LOCK, REDIS_LOCK, Kind
from leasehold.lint.locks import made_things
from leasehold.lint.module import Module, argument, has_unknown_arguments, is_none, method_of
from leasehold.lint.rule import rule

_FOR_EVER = (REDIS_LOCK, ASYNC_REDIS_LOCK, GUESSED_REDIS_LOCK, PYTHON_REDIS_LOCK)


@rule("LH103", "client-lock-no-timeout", __doc__, words=("lock",))
def check(module: Module) -> Iterator[Finding]:
    """Report the call that makes the lock."""
    for call, kind in made_things(module):
        if kind not in _FOR_EVER or has_unknown_arguments(call):
            continue
        name = "expire" if kind is PYTHON_REDIS_LOCK else "timeout"
        given = argument(call, name, _position(call, kind))
        if given is None or is_none(given):
            yield module.finding(
                "LH103", call, f"without {name}= this lock never expires: a holder that dies blocks everyone for ever"
            )


def _position(call: ast.Call, kind: Kind) -> int:
    """`Lock(client, name, timeout)` and `client.lock(name, timeout)`."""
    return 1 if method_of(call) == "lock" and kind is not PYTHON_REDIS_LOCK else 2
