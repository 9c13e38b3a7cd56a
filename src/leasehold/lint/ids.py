"""The names and numbers of locks across processes, wherever they are used."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from leasehold.lint.locks import made_things
from leasehold.lint.module import Module
from leasehold.lint.sql import advisory_calls
from leasehold.lint.stores import takes


def lock_ids(module: Module) -> Iterator[ast.expr]:
    """Every expression that names a lock across processes."""
    for operation in takes(module):
        yield operation.key
    yield from advisory_ids(module)
    for call, kind in made_things(module):
        if not kind.local and kind.role == "lock":
            yield from call.args
            yield from (keyword.value for keyword in call.keywords if keyword.arg in ("name", "key", "resource"))


def advisory_ids(module: Module) -> Iterator[ast.expr]:
    """Every expression that numbers an advisory lock of a database."""
    for advisory in advisory_calls(module):
        yield from advisory.ids
