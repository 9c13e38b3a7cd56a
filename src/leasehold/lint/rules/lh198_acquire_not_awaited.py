"""The acquire of an asynchronous lock is called and not awaited.

## Why

The call only makes a coroutine: nothing is acquired. As a condition it is always true. The block runs without the
lock, and the only sign is a warning when the coroutine is thrown away.

## Bad

```py
import asyncio

lock = asyncio.Lock()

async def add(item):
    lock.acquire()
    try:
        await store(item)
    finally:
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

Coroutines that are passed on: to `wait_for`, `gather`, `create_task`. In a coroutine, `--fix` adds the `await`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from leasehold.lint.finding import Edit, Finding
from leasehold.lint.locks import acquires, lock_kind
from leasehold.lint.module import Module
from leasehold.lint.rule import rule


@rule("LH198", "acquire-not-awaited", __doc__, words=("acquire",))
def check(module: Module) -> Iterator[Finding]:
    """Report the call."""
    for call, lock in acquires(module):
        kind = lock_kind(module, lock)
        parent = module.parents.get(call)
        if kind is None or not kind.awaited or kind.role != "lock":
            continue
        negated = isinstance(parent, ast.UnaryOp) and isinstance(module.parents.get(parent), ast.If | ast.While)
        dropped = isinstance(parent, ast.Expr) or (isinstance(parent, ast.If | ast.While) and parent.test is call)
        if dropped or negated:
            in_coroutine = isinstance(module.function_of(call), ast.AsyncFunctionDef)
            edit = Edit(call.lineno, call.col_offset, call.lineno, call.col_offset, "await ")
            yield module.finding(
                "LH198",
                call,
                "without await nothing is acquired: the block runs unlocked",
                (edit,) if in_coroutine else (),
            )
