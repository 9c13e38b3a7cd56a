"""A lock that blocks is taken in asynchronous code.

## Why

While the call waits for the lock, the event loop stands still: no other task runs, no heartbeat is sent, no timeout
fires. If the holder is a task of the same loop, it can never release, and everything hangs for ever.

## Bad

```py
import redis

r = redis.Redis()

async def nightly():
    with r.lock("nightly", timeout=30):
        await export()
```

## Good

```py
import redis.asyncio

r = redis.asyncio.Redis()

async def nightly():
    async with r.lock("nightly", timeout=30):
        await export()
```

## Not reported

Locks of `threading` round code that does not await (for those that do, LH197), and attempts that do not wait.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from leasehold.lint.finding import Finding
from leasehold.lint.kinds import Kind
from leasehold.lint.locks import acquires, lock_kind
from leasehold.lint.module import Module, argument, is_false, method_of, number
from leasehold.lint.rule import rule

_MESSAGE = "this blocks the event loop while it waits, and with it every other task: use the asynchronous client"


@rule("LH195", "blocking-lock-in-async", __doc__, words=("async def",))
def check(module: Module) -> Iterator[Finding]:
    """Report the block or the call."""
    for item in module.all(ast.withitem):
        block = module.parents[item]
        kind = lock_kind(module, item.context_expr)
        if isinstance(block, ast.With) and _blocks(kind) and _in_coroutine(module, block):
            yield module.finding("LH195", item.context_expr, _MESSAGE)
    for call, lock in acquires(module):
        if not _blocks(lock_kind(module, lock)) or not _in_coroutine(module, call) or module.is_awaited(call):
            continue
        patient = method_of(call) == "acquire" and not is_false(argument(call, "blocking", 0))
        if patient and number(argument(call, "timeout")) != 0:
            yield module.finding("LH195", call, _MESSAGE)


def _blocks(kind: Kind | None) -> bool:
    return kind is not None and kind.role == "lock" and not (kind.awaited or kind.local or kind.guessed)


def _in_coroutine(module: Module, node: ast.AST) -> bool:
    for parent in module.above(node):
        if isinstance(parent, ast.FunctionDef | ast.Lambda):
            return False
        if isinstance(parent, ast.AsyncFunctionDef):
            return True
    return False
