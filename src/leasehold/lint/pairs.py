"""Locks that are acquired and released by hand, one statement after the other."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from leasehold.lint.locks import ACQUIRE, RELEASE, acquires
from leasehold.lint.module import Module, calls_in, inside, method_of, receiver_of

HARMLESS = frozenset(
    {
        "add", "append", "appendleft", "clear", "debug", "discard", "extend", "get", "info", "isinstance", "items",
        "keys", "len", "list", "monotonic", "notify", "notify_all", "now", "perf_counter", "pop", "popleft", "set",
        "setdefault", "time", "update", "values",
    }
)  # fmt: skip
"""Calls that do not fail in practice."""


def unprotected_pairs(module: Module) -> Iterator[tuple[ast.Call, ast.Call]]:
    """An acquire, and the release in the same list of statements that an error in between would skip."""
    for acquire, lock in acquires(module):
        statement = module.statement_of(acquire)
        text = module.text(lock)
        start = _start(module, acquire, statement)
        if start is None or _released_elsewhere(module, acquire, text):
            continue
        block, position = start
        for number in range(position, len(block)):
            release = _release_in(block[number], text)
            if release is not None:
                if any(_may_raise(one) for one in block[position:number]):
                    yield acquire, release
                break
            if isinstance(block[number], ast.Try):
                break


def _start(module: Module, acquire: ast.Call, statement: ast.stmt) -> tuple[list[ast.stmt], int] | None:
    """Where the lock is held: after the statement, in the body of ``if acquire():``, after ``if not acquire(): …``."""
    if isinstance(statement, ast.If) and module.within(acquire, statement.body, statement.orelse):
        return None
    if isinstance(statement, ast.If):
        test = statement.test.value if isinstance(statement.test, ast.Await) else statement.test
        if test is acquire:
            return statement.body, 0
        if not (isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)):
            return None
    elif not isinstance(statement, ast.Expr | ast.Assign):
        return None
    block = module.block_of(statement)
    return block, block.index(statement) + 1


def _release_in(statement: ast.stmt, text: str) -> ast.Call | None:
    if not isinstance(statement, ast.Expr):
        return None
    call = statement.value.value if isinstance(statement.value, ast.Await) else statement.value
    if isinstance(call, ast.Call) and method_of(call) in RELEASE:
        receiver = receiver_of(call)
        if receiver is not None and ast.unparse(receiver) == text:
            return call
    return None


def _released_elsewhere(module: Module, acquire: ast.Call, text: str) -> bool:
    """Whether an error is taken care of: a release in a ``finally`` or an ``except`` of the same function."""
    for call in calls_in(module.scope_of(acquire), nested=True):
        if method_of(call) in RELEASE and module.text(receiver_of(call)) == text:
            if module.in_finally(call) or module.enclosing(call, ast.ExceptHandler):
                return True
        elif method_of(call) in ACQUIRE and call is not acquire and module.text(receiver_of(call)) == text:
            continue
    return False


def _may_raise(statement: ast.stmt) -> bool:
    return any(
        isinstance(node, ast.Raise | ast.Await | ast.Assert)
        or (isinstance(node, ast.Call) and method_of(node) not in HARMLESS)
        for node in inside(statement)
    )
