"""A row is read, changed and saved, and whatever others wrote meanwhile is lost.

## Why

Two requests read a balance of 100, take 30 and 50 from it, and save 70 and 50. One of the withdrawals never happened.
No lock is missing that a test would notice.

## Bad

```py
def withdraw(pk, amount):
    account = Account.objects.get(pk=pk)
    account.balance -= amount
    account.save()
```

## Good

```py
from django.db.models import F

def withdraw(pk, amount):
    Account.objects.filter(pk=pk, balance__gte=amount).update(balance=F("balance") - amount)
```

## Not reported

Rows that were read with `select_for_update()`. The rule runs only when it is selected: not every counter matters.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from leasehold.lint.finding import Finding
from leasehold.lint.module import Module, calls_in, inside, method_of, receiver_of
from leasehold.lint.rule import rule


@rule("LH153", "unversioned-read-modify-write", __doc__, words=("objects",), by_default=False)
def check(module: Module) -> Iterator[Finding]:
    """Report the change."""
    for change in module.all(ast.AugAssign):
        if not isinstance(change.target, ast.Attribute) or not isinstance(change.target.value, ast.Name):
            continue
        row, scope = change.target.value, module.scope_of(change)
        saved = any(
            method_of(call) in ("save", "asave")
            and module.text(receiver_of(call)) == row.id
            and call.lineno > change.lineno
            for call in calls_in(scope)
        )
        if saved and any(_is_plain_read(value) for value in module.values.values_of(row)):
            yield module.finding(
                "LH153",
                change,
                "what others write between reading and saving is lost: update with F(), or lock the row",
            )


def _is_plain_read(value: ast.AST) -> bool:
    value = value.value if isinstance(value, ast.Await) else value
    if not isinstance(value, ast.Call) or method_of(value) not in ("get", "first", "aget", "afirst", "last"):
        return False
    parts = list(inside(value))
    managed = any(isinstance(one, ast.Attribute) and one.attr == "objects" for one in parts)
    return managed and not any(isinstance(one, ast.Attribute) and one.attr == "select_for_update" for one in parts)
