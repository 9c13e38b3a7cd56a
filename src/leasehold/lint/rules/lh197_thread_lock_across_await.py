"""A lock of `threading` is held across an `await`.

## Why

While the task waits, another task of the same thread may ask for the lock. That one blocks the thread, and with it
the event loop that would have to wake the holder: nothing runs any more.

## Bad

```py
import threading

lock = threading.Lock()

async def add(item):
    with lock:
        await store(item)
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

Blocks without an `await`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from leasehold.lint.finding import Finding
from leasehold.lint.kinds import PROCESS_LOCK, THREAD_LOCK
from leasehold.lint.module import Module, inside
from leasehold.lint.rule import rule


@rule("LH197", "thread-lock-across-await", __doc__, words=("await",))
def check(module: Module) -> Iterator[Finding]:
    """Report the block."""
    for block in module.all(ast.With):
        locks = [
            item.context_expr for item in block.items if module.kind(item.context_expr) in (THREAD_LOCK, PROCESS_LOCK)
        ]
        waits = [
            node
            for one in block.body
            for node in inside(one)
            if isinstance(node, ast.Await | ast.AsyncFor | ast.AsyncWith)
        ]
        if locks and waits:
            yield module.finding(
                "LH197",
                locks[0],
                f"held across the await on line {waits[0].lineno}: a second task that wants it stops the whole loop; "
                "use asyncio.Lock",
            )
