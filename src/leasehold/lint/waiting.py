"""Loops that wait for a lock by trying again and again."""

from __future__ import annotations

import ast

from leasehold.lint.locks import acquires, is_lock, may_fail
from leasehold.lint.module import Module, argument, calls_in, inside, is_false, method_of, receiver_of
from leasehold.lint.stores import TAKES, operations


def tries_in(module: Module, loop: ast.While) -> list[ast.Call]:
    """The attempts to take a lock that a loop repeats until one succeeds."""
    taken = {one.call for one in operations(module) if one.meaning is TAKES and not _is_new_key(one.key, loop)}
    tried = {call for call, lock in acquires(module) if may_fail(module, call, lock) and _returns_at_once(module, call)}
    return [
        call
        for call in calls_in(loop)
        if (call in taken or call in tried)
        and module.enclosing(call, ast.While, ast.For, ast.AsyncFor) in (loop, None)
        and ends_wait(module, call, loop)
    ]


def _is_new_key(key: ast.expr, loop: ast.While) -> bool:
    """Whether each turn tries another key: that looks for a free name, and waits for nobody."""
    names = {node.id for node in inside(key) if isinstance(node, ast.Name)}
    return any(
        isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in names for node in inside(loop)
    )


def _returns_at_once(module: Module, call: ast.Call) -> bool:
    if method_of(call) == "try_acquire":
        return True
    return is_lock(module, receiver_of(call)) and is_false(argument(call, "blocking", 0))


def ends_wait(module: Module, call: ast.Call, loop: ast.While) -> bool:
    """Whether success ends the loop: it is the loop's condition, or leads to a break or return."""
    if any(node is call for node in inside(loop.test)):
        outer = module.parents.get(module.parents[call] if module.is_awaited(call) else call)
        return isinstance(outer, ast.UnaryOp | ast.Compare)  # `while lock.acquire(False)` goes on while it succeeds
    branch = module.enclosing(call, ast.If)
    if branch is not None and any(node is call for node in inside(branch.test)):
        return _leaves(branch.body) or _leaves(branch.orelse)
    statement = module.statement_of(call)
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
        name = statement.targets[0].id
        tests = [loop.test, *(node.test for node in inside(loop) if isinstance(node, ast.If) and _leaves(node.body))]
        return any(isinstance(node, ast.Name) and node.id == name for test in tests for node in inside(test))
    return False


def _leaves(block: list[ast.stmt]) -> bool:
    return any(isinstance(node, ast.Break | ast.Return) for statement in block for node in inside(statement))
