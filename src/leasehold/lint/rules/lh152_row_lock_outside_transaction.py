"""Rows are locked outside of the transaction that they should be locked for.

## Why

A row lock lasts until the end of its transaction. In autocommit each statement is its own: the lock is gone before
the next line runs. Django refuses this with an error when the rows are read, which is late if the query is in another
place.

## Bad

```py
from django.db import transaction

def withdraw(pk, amount):
    account = Account.objects.select_for_update().get(pk=pk)
    with transaction.atomic():
        account.balance -= amount
        account.save()
```

## Good

```py
from django.db import transaction

def withdraw(pk, amount):
    with transaction.atomic():
        account = Account.objects.select_for_update().get(pk=pk)
        account.balance -= amount
        account.save()
```

## Not reported

Functions without a transaction of their own: their callers may have one.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from leasehold.lint.finding import Finding
from leasehold.lint.module import Function, Module, argument, calls_in, inside, method_of
from leasehold.lint.rule import rule
from leasehold.lint.sql import EXECUTES, statement_text

ATOMIC = ("django.db.transaction.atomic",)
EVALUATES = frozenset(
    {"get", "first", "last", "latest", "earliest", "exists", "count", "update", "iterator", "aget", "afirst"}
)


@rule("LH152", "row-lock-outside-transaction", __doc__, words=("select_for_update", "for update", "set local"))
def check(module: Module) -> Iterator[Finding]:
    """Report the statement that locks rows."""
    for call in module.calls:
        function = module.function_of(call)
        if function is None:
            continue
        if method_of(call) == "select_for_update" and _evaluated(module, call):
            first = min((block.lineno for block in _blocks(module, function)), default=0)
            if call.lineno < first and not any(_is_atomic(module, one) for one in function.decorator_list):
                yield module.finding(
                    "LH152", call, f"the transaction begins on line {first}: lock the rows inside of it"
                )
        elif method_of(call) in EXECUTES and call.args and _autocommits(module, function, call):
            text = statement_text(module, call.args[0])
            if text.endswith(("for update", "for update nowait", "for update skip locked")):
                yield module.finding(
                    "LH152", call, "this connection is in autocommit: the rows are free again before the next line"
                )


def _blocks(module: Module, function: Function) -> Iterator[ast.With | ast.AsyncWith]:
    for node in inside(function):
        if isinstance(node, ast.With | ast.AsyncWith) and any(
            _is_atomic(module, one.context_expr) for one in node.items
        ):
            yield node


def _is_atomic(module: Module, node: ast.expr) -> bool:
    target = node.func if isinstance(node, ast.Call) else node
    return module.dotted(target) in ATOMIC


def _evaluated(module: Module, call: ast.Call) -> bool:
    """Whether the rows are read right here: ``.get()``, ``list(…)``, ``for … in``, ``[0]``."""
    node: ast.AST = call
    for parent in module.above(call):
        match parent:
            case ast.Call(func=ast.Attribute(attr=name)) if name in EVALUATES:
                return True
            case ast.Call(func=ast.Name(id="list" | "tuple" | "bool" | "len" | "set")):
                return True
            case ast.For(iter=iterated) if iterated is node:
                return True
            case ast.Subscript(slice=ast.Constant()):
                return True
            case ast.Attribute() | ast.Call() | ast.Await():
                node = parent
            case _:
                return False
    return False


def _autocommits(module: Module, function: Function, call: ast.Call) -> bool:
    receiver = call.func.value if isinstance(call.func, ast.Attribute) else None
    if receiver is None:
        return False
    for source in module.values.sources(receiver):
        if isinstance(source, ast.Call) and method_of(source) == "connect":
            given = argument(source, "autocommit")
            if isinstance(given, ast.Constant) and given.value is True:
                return not any(method_of(one) in ("transaction", "begin") for one in calls_in(function))
    return False
