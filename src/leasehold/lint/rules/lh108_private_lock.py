"""A lock that only one call can ever see.

A lock of `threading`, `asyncio` or `multiprocessing` is made where it is taken, so that every caller has its own.

## Why

A lock excludes those who share it. One that is made inside the function is new in each call: nobody else can hold it,
and the block is not protected at all.

## Bad

```py
import threading

def add(item):
    with threading.Lock():
        items.append(item)
```

```py
import threading

def add(item):
    lock = threading.Lock()
    with lock:
        items.append(item)
```

## Good

```py
import threading

lock = threading.Lock()

def add(item):
    with lock:
        items.append(item)
```

## Not reported

Locks that are passed on, returned, stored, or used by a function defined inside.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from leasehold.lint.finding import Finding
from leasehold.lint.kinds import ASYNCIO_LOCK, PROCESS_LOCK, THREAD_LOCK
from leasehold.lint.module import FUNCTIONS, WITHS, Module, inside
from leasehold.lint.rule import rule

_MESSAGE = "this lock is made where it is taken: every caller has its own, and nobody is excluded; share one lock"
_LOCAL = (THREAD_LOCK, PROCESS_LOCK, ASYNCIO_LOCK)


@rule("LH108", "private-lock", __doc__, words=("lock(", "semaphore("))
def check(module: Module) -> Iterator[Finding]:
    """Report the call that makes the lock."""
    for item in module.all(ast.withitem):
        if _makes_lock(module, item.context_expr):
            yield module.finding("LH108", item.context_expr, _MESSAGE)
    for statement in module.all(ast.Assign):
        target, function = statement.targets[0], module.function_of(statement)
        if not isinstance(target, ast.Name) or function is None or not _makes_lock(module, statement.value):
            continue
        if len(statement.targets) == 1 and _is_only_taken(module, function, target.id):
            yield module.finding("LH108", statement.value, _MESSAGE)


def _makes_lock(module: Module, node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and module.dotted(node.func) is not None and module.kind(node) in _LOCAL


def _is_only_taken(module: Module, function: ast.AST, name: str) -> bool:
    """Whether every use of the name in this function is ``with name``; a generator's frame may be shared."""
    used = False
    for node in inside(function, nested=True):
        if isinstance(node, ast.Yield | ast.YieldFrom | ast.Global | ast.Nonlocal):
            return False
        if not isinstance(node, ast.Name) or node.id != name or isinstance(node.ctx, ast.Store):
            continue
        item = module.parents[node]
        block = module.parents.get(item)
        if not isinstance(item, ast.withitem) or not isinstance(block, WITHS):
            return False
        if module.function_of(node) is not function:
            return False
        if any(isinstance(one, (*FUNCTIONS, ast.Lambda)) for one in inside(block) if one is not block):
            return False
        used = True
    return used
