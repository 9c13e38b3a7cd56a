"""A lock in Redis or a cache is taken without a time to live.

The key is set if it is absent, and nothing makes it expire.

## Why

The holder's process may die before it deletes the key: out of memory, a deployment, a lost machine. Then nobody ever
gets the lock again, and the first sign is that work silently stopped being done.

## Bad

```py
def nightly(redis, token):
    if redis.set("lock:nightly", token, nx=True):
        export()
```

```py
from django.core.cache import cache

def nightly():
    if cache.add("nightly-lock", "1", timeout=None):
        export()
```

## Good

```py
def nightly(redis, token):
    if redis.set("lock:nightly", token, nx=True, px=30_000):
        export()
```

## Not reported

Keys that are not called a lock and that nobody deletes: markers that something was done once. Calls with `**options`,
which may hold an expiry.
"""

from __future__ import annotations

from collections.abc import Iterator

from leasehold.lint.finding import Finding
from leasehold.lint.module import Module
from leasehold.lint.rule import rule
from leasehold.lint.stores import RENEWS, same_key, takes


@rule("LH102", "lock-without-ttl", __doc__, words=("nx", "cache"))
def check(module: Module) -> Iterator[Finding]:
    """Report the command that takes the lock."""
    for operation in takes(module):
        if not operation.may_have_ttl and not same_key(module, operation, RENEWS):
            yield module.finding(
                "LH102",
                operation.call,
                f"this lock never expires: a holder that dies blocks everyone for ever; give {operation.command} "
                + ("a timeout" if operation.is_cache else "an expiry: set(…, nx=True, px=30_000)"),
            )
