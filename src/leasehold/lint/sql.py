"""Locks of databases: advisory locks in SQL text or through SQLAlchemy's ``func``."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from leasehold.lint.module import Module, method_of, receiver_of

EXECUTES = frozenset(
    {"execute", "exec_driver_sql", "scalar", "scalars", "fetchval", "fetchrow", "fetch", "raw", "executemany"}
)
_ADVISORY = re.compile(
    r"\b(pg_(?:try_)?advisory_(?:xact_)?lock(?:_shared)?|get_lock|sp_getapplock)\b\s*\(?", re.IGNORECASE
)


@dataclass(frozen=True)
class Advisory:
    """One statement that takes an advisory lock."""

    call: ast.Call
    """What sends it."""
    function: str
    receiver: ast.expr | None
    ids: tuple[ast.expr, ...]

    @property
    def tries(self) -> bool:
        """Whether the database answers if the lock was got, instead of waiting for it."""
        return "try" in self.function or self.function == "get_lock"

    @property
    def for_session(self) -> bool:
        """Whether the lock belongs to the connection, not to the transaction."""
        return self.function.startswith("pg_") and "xact" not in self.function


def advisory_calls(module: Module) -> Iterator[Advisory]:
    """Every call that sends a statement which takes an advisory lock."""
    if not any(word in module.folded for word in ("advisory", "get_lock", "getapplock")):
        return
    for call in module.calls:
        if method_of(call) not in EXECUTES or not call.args:
            continue
        sql, *parameters = [*call.args, *(keyword.value for keyword in call.keywords)]
        found = _function_in(module, sql)
        if found is not None:
            name, inner = found
            yield Advisory(call, name.lower(), receiver_of(call), (*inner, *parameters))


def _function_in(module: Module, sql: ast.expr) -> tuple[str, list[ast.expr]] | None:
    """The name of the locking function in a statement, and the expressions that are put into it."""
    inner: list[ast.expr] = []
    name = None
    for node in module.values.sources(sql):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            match = _ADVISORY.search(node.value)
            name = name or (match[1] if match else None)
        elif isinstance(node, ast.Call) and _ADVISORY.fullmatch(method_of(node)):
            name = name or method_of(node)
            inner += node.args
        elif isinstance(node, ast.FormattedValue):
            inner.append(node.value)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod | ast.Add):
            inner.append(node.right)
        elif isinstance(node, ast.Call) and method_of(node) in ("format", "bindparams", "params"):
            inner += [*node.args, *(keyword.value for keyword in node.keywords)]
    return None if name is None else (name, inner)


def statement_text(module: Module, sql: ast.expr) -> str:
    """All the words of a statement that are written out."""
    parts = [
        node.value
        for node in module.values.sources(sql)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    return " ".join(" ".join(parts).split()).lower()
