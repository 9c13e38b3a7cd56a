"""The id of a lock is made with `hash()`, which is different in every process.

## Why

Python salts the hash of strings and bytes anew in each process. Two processes that mean the same name lock two
different ids: the lock excludes nobody, and every test in one process passes.

## Bad

```py
def nightly(cursor):
    cursor.execute("SELECT pg_advisory_lock(%s)", (hash("nightly"),))
    export()
```

## Good

```py
import hashlib

def lock_id(name):
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big", signed=True)

def nightly(cursor):
    cursor.execute("SELECT pg_advisory_lock(%s)", (lock_id("nightly"),))
    export()
```

## Not reported

Hashes of numbers, which are not salted, and locks within one process.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from leasehold.lint.finding import Finding
from leasehold.lint.ids import lock_ids
from leasehold.lint.module import Module
from leasehold.lint.rule import rule


@rule("LH140", "hash-as-lock-id", __doc__, words=("hash(",))
def check(module: Module) -> Iterator[Finding]:
    """Report the call of hash."""
    for ids in lock_ids(module):
        for one in module.values.sources(ids):
            if isinstance(one, ast.Call) and module.called(one) == "hash" and not _of_number(one):
                yield module.finding(
                    "LH140",
                    one,
                    "hash() is salted in every process, so that each locks another id: use 8 bytes of hashlib.blake2b",
                )


def _of_number(call: ast.Call) -> bool:
    first = call.args[0] if call.args else None
    return isinstance(first, ast.Constant) and isinstance(first.value, int)
