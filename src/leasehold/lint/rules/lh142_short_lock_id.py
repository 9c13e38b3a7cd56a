"""The number of an advisory lock is cut so short that different names get the same one.

## Why

Two names with the same number share one lock: unrelated work waits for each other, or dead-locks. With 16 bits that
happens among 300 names, with 32 bits (such as a CRC) among 77,000. PostgreSQL takes 64 bits.

## Bad

```py
import zlib

def nightly(cursor, name):
    cursor.execute("SELECT pg_advisory_xact_lock(%s)", (zlib.crc32(name.encode()),))
```

```py
import hashlib

def nightly(cursor, name):
    number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:2], "big")
    cursor.execute("SELECT pg_advisory_xact_lock(%s)", (number,))
```

## Good

```py
import hashlib

def nightly(cursor, name):
    number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big", signed=True)
    cursor.execute("SELECT pg_advisory_xact_lock(%s)", (number,))
```

## Not reported

Numbers that do not come from a hash, and the form with two numbers (`pg_advisory_lock(space, id)`).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from leasehold.lint.finding import Finding
from leasehold.lint.ids import advisory_ids
from leasehold.lint.module import Module, method_of, number
from leasehold.lint.rule import rule

CHECKSUMS = ("zlib.crc32", "binascii.crc32", "zlib.adler32")
LEAST_BYTES = 6


@rule("LH142", "short-lock-id", __doc__, words=("advisory", "get_lock"))
def check(module: Module) -> Iterator[Finding]:
    """Report where the number is cut."""
    for ids in advisory_ids(module):
        for one in module.values.sources(ids):
            bits = _bits(module, one)
            if bits is not None:
                yield module.finding(
                    "LH142", one, f"only {bits} bits: names collide and share a lock; use 8 bytes of sha256, signed"
                )


def _bits(module: Module, node: ast.AST) -> int | None:
    match node:
        case ast.Call() if module.called(node) in CHECKSUMS:
            return 32
        case ast.BinOp(op=ast.Mod(), right=right) if (most := number(right)) is not None and 1 < most < 2**40:
            return max(1, int(most).bit_length() - 1)
        case ast.Subscript(value=ast.Call() as call, slice=ast.Slice(upper=upper)):
            length = number(upper)
            each = {"digest": 1, "hexdigest": 2}.get(method_of(call))
            short = each is not None and length is not None and 0 < length / each < LEAST_BYTES
            return int(length * 8 / each) if short and length is not None and each is not None else None
        case _:
            return None
