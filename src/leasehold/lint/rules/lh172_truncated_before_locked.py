"""A lock file is emptied by those who do not get the lock.

The file is opened for writing, which empties it, and only then locked; afterwards something is written into it.

## Why

Opening with `"w"` empties the file at once. A process that is then refused the lock has already wiped out what the
holder wrote: its process id, its state.

## Bad

```py
import fcntl
import os

def take(path):
    file = open(path, "w")
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    file.write(str(os.getpid()))
    return file
```

## Good

```py
import fcntl
import os

def take(path):
    file = open(path, "a")
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    file.truncate(0)
    file.write(str(os.getpid()))
    return file
```

## Not reported

Files into which nothing is written.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from leasehold.lint.finding import Finding
from leasehold.lint.module import Module, argument, calls_in, method_of, receiver_of
from leasehold.lint.rule import rule


@rule("LH172", "truncated-before-locked", __doc__, words=("flock(", "lockf("))
def check(module: Module) -> Iterator[Finding]:
    """Report where the file is opened."""
    for lock in module.calls:
        if module.called(lock) not in ("fcntl.flock", "fcntl.lockf") or not lock.args:
            continue
        file = lock.args[0]
        if isinstance(file, ast.Call) and method_of(file) == "fileno":
            file = receiver_of(file) or file
        if not isinstance(file, ast.Name):
            continue
        for how, opened in module.values.bindings_of(file, file.id):
            if how in ("=", "with") and isinstance(opened, ast.Call) and _is_spoiled(module, opened, lock, file.id):
                yield module.finding(
                    "LH172",
                    opened,
                    'this empties the file before the lock is got: open it with "a", and truncate after',
                )


def _is_spoiled(module: Module, opened: ast.Call, lock: ast.Call, name: str) -> bool:
    return _empties(module, opened) and opened.lineno <= lock.lineno and _is_written(module, lock, name)


def _empties(module: Module, call: ast.Call) -> bool:
    mode = argument(call, "mode", 1) if module.called(call) == "open" else argument(call, "mode", 0)
    return method_of(call) == "open" and isinstance(mode, ast.Constant) and str(mode.value).startswith("w")


def _is_written(module: Module, lock: ast.Call, name: str) -> bool:
    return any(
        method_of(call) in ("write", "writelines")
        and module.text(receiver_of(call)) == name
        and call.lineno > lock.lineno
        for call in calls_in(module.scope_of(lock))
    )
