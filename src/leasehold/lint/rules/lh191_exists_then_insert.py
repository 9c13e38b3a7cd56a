"""A request is made idempotent by looking whether its key was stored, and then storing it.

## Why

The same request often comes twice at the same time: a retry after a timeout, a message that is delivered twice. Both
look, both find nothing, both do the work.

## Bad

```py
def charge(request):
    if Payment.objects.filter(idempotency_key=request.key).exists():
        return
    Payment.objects.create(idempotency_key=request.key, amount=request.amount)
    send(request)
```

## Good

```py
def charge(request):
    payment, created = Payment.objects.get_or_create(
        idempotency_key=request.key, defaults={"amount": request.amount}
    )
    if created:
        send(request)
```

## Not reported

Functions that handle an `IntegrityError` or lock rows, and fields that are not called a key of a request, event or
message. The field needs a unique constraint in the database as well.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from leasehold.lint.finding import Finding
from leasehold.lint.module import Module, calls_in, inside, method_of, receiver_of
from leasehold.lint.rule import rule

KEYS = (
    "idempotency_key",
    "idempotency",
    "idempotence_key",
    "event_id",
    "message_id",
    "request_id",
    "dedup_key",
    "delivery_id",
)


@rule("LH191", "exists-then-insert", __doc__, words=KEYS)
def check(module: Module) -> Iterator[Finding]:
    """Report the insert."""
    for look in module.calls:
        if method_of(look) not in ("exists", "aexists", "first", "count"):
            continue
        model = _model_and_key(module, look)
        branch = module.enclosing(look, ast.If)
        if model is None or branch is None or not any(node is look for node in inside(branch.test)):
            continue
        scope = module.scope_of(look)
        if _is_protected(scope):
            continue
        for call in calls_in(scope):
            if (
                method_of(call) in ("create", "acreate")
                and call.lineno > look.lineno
                and _manager(module, call) == model
            ):
                yield module.finding(
                    "LH191",
                    call,
                    f"the same request may come twice at once, and both looked on line {look.lineno}: insert first, "
                    "with a unique key, and let the database refuse the second",
                )
                break


def _manager(module: Module, call: ast.Call) -> str:
    return module.text(receiver_of(call))


def _model_and_key(module: Module, look: ast.Call) -> str | None:
    """``Model.objects`` of ``Model.objects.filter(idempotency_key=…).exists()``."""
    query = receiver_of(look)
    if not isinstance(query, ast.Call) or method_of(query) != "filter":
        return None
    manager = module.text(receiver_of(query))
    keyed = any(keyword.arg in KEYS for keyword in query.keywords)
    return manager if keyed and manager.endswith("objects") else None


def _is_protected(scope: ast.AST) -> bool:
    names = {node.id for node in inside(scope) if isinstance(node, ast.Name)}
    attributes = {node.attr for node in inside(scope) if isinstance(node, ast.Attribute)}
    return bool((names | attributes) & {"IntegrityError", "select_for_update", "get_or_create"})
