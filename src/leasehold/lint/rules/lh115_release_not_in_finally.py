"""A lock is acquired and released by hand, and an error in between leaves it locked.

## Why

Any exception between `acquire()` and `release()` skips the release. A lock within the process then blocks every other
thread for ever; a lock across processes blocks everyone until it expires, if it does.

## Bad

```py
import threading

lock = threading.Lock()

def add(item):
    lock.acquire()
    store(item)
    lock.release()
```

## Good

```py
import threading

lock = threading.Lock()

def add(item):
    with lock:
        store(item)
```

## Not reported

Locks that are released in a `finally` or in an `except` as well, released elsewhere, or with nothing in between that
could raise. For `await lock.acquire()` see LH196.
"""

from __future__ import annotations

from collections.abc import Iterator

from leasehold.lint.finding import Finding
from leasehold.lint.module import Module
from leasehold.lint.pairs import unprotected_pairs
from leasehold.lint.rule import rule


@rule("LH115", "release-not-in-finally", __doc__, words=("release(",))
def check(module: Module) -> Iterator[Finding]:
    """Report the acquire."""
    for acquire, release in unprotected_pairs(module):
        if not module.is_awaited(acquire):
            yield module.finding(
                "LH115",
                acquire,
                f"an error before the release on line {release.lineno} leaves it locked: use with, or try and finally",
            )
