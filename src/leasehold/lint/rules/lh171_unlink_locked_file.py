"""A file that serves as a lock is deleted.

## Why

`flock` locks the open file, not its name. One process may wait for the lock on the file that is about to be deleted,
get it, and believe that it holds the lock; the next one makes a new file of that name and locks that. Both are at
work.

## Bad

```py
import fcntl
import os

def nightly(path):
    with open(path, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        export()
    os.unlink(path)
```

## Good

```py
import fcntl

def nightly(path):
    with open(path, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        export()
```

## Not reported

Code that compares the inode of the open file with that of the name (`fstat`, `st_ino`, `samestat`) after taking the
lock.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from leasehold.lint.finding import Finding
from leasehold.lint.kinds import FASTENERS_LOCK, FILE_LOCK, PORTALOCKER_LOCK
from leasehold.lint.locks import made_things
from leasehold.lint.module import Module, method_of, receiver_of
from leasehold.lint.rule import rule

LOCKS = ("fcntl.flock", "fcntl.lockf", "portalocker.lock")
CHECKED = frozenset({"fstat", "samestat", "sameopenfile", "samefile", "st_ino", "st_nlink"})


@rule("LH171", "unlink-locked-file", __doc__, words=("unlink(", "remove("))
def check(module: Module) -> Iterator[Finding]:
    """Report the delete."""
    locked = _locked_paths(module)
    for call in module.calls if locked else ():
        path = _deleted(module, call)
        unit = module.unit_of(call)
        if path is None or (unit, path) not in locked:
            continue
        if any(isinstance(node, ast.Attribute) and node.attr in CHECKED for node in ast.walk(unit)):
            continue
        yield module.finding(
            "LH171",
            call,
            "a waiter may hold the lock on the file that is deleted here, and the next locks a new one: leave it",
        )


def _deleted(module: Module, call: ast.Call) -> str | None:
    if module.called(call) in ("os.unlink", "os.remove") and call.args:
        return module.text(call.args[0])
    if method_of(call) == "unlink" and not call.args and isinstance(call.func, ast.Attribute):
        return module.text(call.func.value)
    return None


def _locked_paths(module: Module) -> set[tuple[ast.AST, str]]:
    """The paths whose open files are locked, each with the class or function where that happens."""
    found: set[tuple[ast.AST, str]] = set()
    for call in module.calls:
        if module.called(call) in LOCKS and call.args and not _unlocks(module, call):
            file = call.args[0]
            if isinstance(file, ast.Call) and method_of(file) == "fileno":
                file = receiver_of(file) or file
            found |= {(module.unit_of(call), path) for path in _opened(module, file)}
    for call, kind in made_things(module):
        if kind in (FILE_LOCK, PORTALOCKER_LOCK, FASTENERS_LOCK) and call.args:
            found.add((module.unit_of(call), module.text(call.args[0])))
    return found


def _unlocks(module: Module, call: ast.Call) -> bool:
    return len(call.args) > 1 and "LOCK_UN" in module.text(call.args[1])


def _opened(module: Module, file: ast.expr) -> Iterator[str]:
    bound = module.values.bindings_of(file, file.id) if isinstance(file, ast.Name) else []
    for value in [file, *module.values.values_of(file), *(value for how, value in bound if how == "with")]:
        if isinstance(value, ast.Call) and method_of(value) == "open":
            receiver = receiver_of(value)
            if value.args and module.called(value) in ("open", "os.open", "io.open"):
                yield module.text(value.args[0])
            elif receiver is not None:
                yield module.text(receiver)
