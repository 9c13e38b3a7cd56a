"""A lock is taken by looking whether the key is there and then setting it.

## Why

Two processes may both look before either of them sets: both see nothing, both set, and both believe that they hold
the lock. Under load this is not rare.

## Bad

```py
from django.core.cache import cache

def nightly():
    if cache.get("nightly-lock"):
        return
    cache.set("nightly-lock", "1", 60)
    export()
```

## Good

```py
from django.core.cache import cache

def nightly(token):
    if not cache.add("nightly-lock", token, 60):
        return
    export()
```

## Not reported

Keys that are not called a lock: filling a cache looks the same and is harmless.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from leasehold.lint.finding import Finding
from leasehold.lint.module import Module
from leasehold.lint.rule import rule
from leasehold.lint.stores import EXISTS, READS, SETS, Operation, names_lock, operations, same_function


@rule("LH104", "check-then-set", __doc__, words=("get(", "exists(", "has_key("))
def check(module: Module) -> Iterator[Finding]:
    """Report the command that sets the key."""
    for operation in operations(module):
        if operation.meaning is not SETS or not names_lock(module, operation) or _only_if_there(operation.call):
            continue
        looked = [
            other
            for other in same_function(module, operation, READS, EXISTS)
            if other.call.lineno <= operation.call.lineno and _decides(module, other, operation)
        ]
        if looked:
            yield module.finding(
                "LH104",
                operation.call,
                f"the key was looked at on line {looked[0].call.lineno}, and others may have looked since: "
                "take the lock in one step, with " + ("cache.add" if operation.is_cache else "set(…, nx=True, px=…)"),
            )


def _only_if_there(call: ast.Call) -> bool:
    return any(keyword.arg == "xx" for keyword in call.keywords)


def _decides(module: Module, looked: Operation, setting: Operation) -> bool:
    """Whether the setting depends on a plain "is it there?"; comparing with a token is something else."""
    branch = module.enclosing(looked.call, ast.If)
    if branch is None or not _is_in(looked.call, branch.test):
        branch = _branch_on_name(module, looked)
    if branch is None or any(isinstance(node, ast.Compare) and not _with_none(node) for node in ast.walk(branch.test)):
        return False
    return branch.lineno <= setting.call.lineno


def _branch_on_name(module: Module, looked: Operation) -> ast.If | None:
    statement = module.statement_of(looked.call)
    if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
        return None
    name = statement.targets[0].id
    for node in ast.walk(module.scope_of(looked.call)):
        if isinstance(node, ast.If) and any(
            isinstance(one, ast.Name) and one.id == name for one in ast.walk(node.test)
        ):
            return node
    return None


def _is_in(node: ast.AST, expression: ast.AST) -> bool:
    return any(one is node for one in ast.walk(expression))


def _with_none(node: ast.Compare) -> bool:
    return any(isinstance(one, ast.Constant) and one.value in (None, 0, 1) for one in node.comparators)
