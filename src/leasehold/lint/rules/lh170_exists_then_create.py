"""A lock file is made after looking whether it is there.

## Why

Two processes may both look before either makes the file; both go on. And after a crash the file stays behind, so that
nobody starts again until a person removes it.

## Bad

```py
import os
import sys

def main():
    if os.path.exists("/run/nightly.lock"):
        sys.exit(1)
    open("/run/nightly.lock", "w").close()
    export()
```

## Good

```py
import fcntl

def main():
    with open("/run/nightly.lock", "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        export()
```

## Not reported

Files whose name does not speak of a lock or a pid, files that are opened with `"x"` or `O_EXCL`, and functions that
lock the file as well.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from leasehold.lint.finding import Finding
from leasehold.lint.module import Module, argument, calls_in, method_of, receiver_of
from leasehold.lint.rule import rule
from leasehold.lint.words import names_lock, words_of

LOOKS = frozenset({"exists", "isfile", "is_file", "lexists"})
PID = frozenset({"pid", "pidfile", "lockfile"})


@rule("LH170", "exists-then-create", __doc__, words=("exists(", "isfile(", "is_file("))
def check(module: Module) -> Iterator[Finding]:
    """Report where the file is made."""
    for look in module.calls:
        if method_of(look) not in LOOKS or not _is_in_test(module, look):
            continue
        path = look.args[0] if look.args else receiver_of(look)
        if path is None or not _names_lock_file(module, path):
            continue
        text = module.text(path)
        if any(method_of(call) in ("flock", "lockf") for call in calls_in(module.scope_of(look))):
            continue
        for call in calls_in(module.scope_of(look)):
            if call.lineno >= look.lineno and _creates(module, call) == text:
                yield module.finding(
                    "LH170",
                    call,
                    f"others may have made it since line {look.lineno}: lock an open file with flock, or open it with "
                    '"x"',
                )
                break


def _is_in_test(module: Module, look: ast.Call) -> bool:
    branch = module.enclosing(look, ast.If)
    return branch is not None and any(node is look for node in ast.walk(branch.test))


def _names_lock_file(module: Module, path: ast.expr) -> bool:
    known = [module.text(path), *(module.text(one) for one in module.values.values_of(path))]
    return any(names_lock(one) or words_of(one) & PID for one in known)


def _creates(module: Module, call: ast.Call) -> str | None:
    """The path of a file that this call makes or overwrites."""
    if method_of(call) == "open" and call.args and module.called(call) in ("open", "io.open"):
        mode = argument(call, "mode", 1)
        writes = isinstance(mode, ast.Constant) and isinstance(mode.value, str) and mode.value[:1] in ("w", "a")
        return module.text(call.args[0]) if writes else None
    if method_of(call) in ("write_text", "touch", "write_bytes") and receiver_of(call) is not None:
        given = argument(call, "exist_ok")
        exclusive = isinstance(given, ast.Constant) and given.value is False
        return None if exclusive else module.text(receiver_of(call))
    return None
