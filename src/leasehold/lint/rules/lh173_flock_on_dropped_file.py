"""A file is locked that nobody keeps open.

## Why

A lock of `flock` ends when the file is closed. A file object that is made inside the call has no name: Python closes
it at the end of the line, and the lock is gone before the next one runs.

## Bad

```py
import fcntl

def main():
    fcntl.flock(open("/run/nightly.lock", "w"), fcntl.LOCK_EX)
    export()
```

## Good

```py
import fcntl

def main():
    with open("/run/nightly.lock", "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        export()
```

## Not reported

Files that have a name, and file descriptors of `os.open`, which stay open.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from leasehold.lint.finding import Finding
from leasehold.lint.module import Module, method_of, receiver_of
from leasehold.lint.rule import rule


@rule("LH173", "flock-on-dropped-file", __doc__, words=("flock(", "lockf("))
def check(module: Module) -> Iterator[Finding]:
    """Report where the file is opened."""
    for lock in module.calls:
        if module.called(lock) not in ("fcntl.flock", "fcntl.lockf") or not lock.args:
            continue
        file = lock.args[0]
        if isinstance(file, ast.Call) and method_of(file) == "fileno":
            file = receiver_of(file) or file
        if isinstance(file, ast.Call) and module.called(file) in ("open", "io.open"):
            yield module.finding(
                "LH173", file, "nobody keeps this file open: it is closed at once, and its lock with it; give it a name"
            )
