"""A lock is acquired and released by hand in asynchronous code, and a cancellation in between leaves it locked.

## Why

Every `await` may raise `CancelledError`: a client that disconnects, a timeout, a shutdown. The release is then
skipped, and every task that comes later waits for ever.

## Bad

```py
import asyncio

lock = asyncio.Lock()

async def add(item):
    await lock.acquire()
    await store(item)
    lock.release()
```

## Good

```py
import asyncio

lock = asyncio.Lock()

async def add(item):
    async with lock:
        await store(item)
```

## Not reported

Locks that are released in a `finally` or `except` as well, or elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator

from leasehold.lint.finding import Finding
from leasehold.lint.module import Module
from leasehold.lint.pairs import unprotected_pairs
from leasehold.lint.rule import rule


@rule("LH196", "await-acquire-without-finally", __doc__, words=("release(",))
def check(module: Module) -> Iterator[Finding]:
    """Report the acquire."""
    for acquire, release in unprotected_pairs(module):
        if module.is_awaited(acquire):
            yield module.finding(
                "LH196",
                acquire,
                f"an error or a cancellation before line {release.lineno} leaves this locked: use async with",
            )
