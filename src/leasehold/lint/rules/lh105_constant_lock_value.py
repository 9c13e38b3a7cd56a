"""A lock is taken with a value that is the same for every holder.

## Why

The value is the only thing that tells whose lock it is. With a constant, a holder whose lock has expired cannot see
that the key now belongs to someone else, so that its release deletes the other one's lock, and a third gets in beside
it.

## Bad

```py
def nightly(redis):
    if redis.set("lock:nightly", "1", nx=True, ex=30):
        try:
            export()
        finally:
            redis.delete("lock:nightly")
```

## Good

```py
import uuid

RELEASE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end"

def nightly(redis):
    token = uuid.uuid4().hex
    if redis.set("lock:nightly", token, nx=True, ex=30):
        try:
            export()
        finally:
            redis.eval(RELEASE, 1, "lock:nightly", token)
```

## Not reported

Keys that nobody deletes: they end by their expiry alone and need no owner.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from leasehold.lint.finding import Finding
from leasehold.lint.module import Module
from leasehold.lint.rule import rule
from leasehold.lint.stores import DELETES, same_key, takes


@rule("LH105", "constant-lock-value", __doc__, words=("nx", "cache"))
def check(module: Module) -> Iterator[Finding]:
    """Report the command that takes the lock."""
    for operation in takes(module):
        if _is_constant(module, operation.value) and same_key(module, operation, DELETES):
            yield module.finding(
                "LH105",
                operation.call,
                "every holder sets the same value, so that none can tell whether the lock is still its own: "
                "set a random token (uuid4) and release only what holds it",
            )


def _is_constant(module: Module, value: ast.expr | None) -> bool:
    if isinstance(value, ast.Name):
        known = module.values.values_of(value)
        return bool(known) and all(isinstance(one, ast.Constant) for one in known)
    return isinstance(value, ast.Constant)
