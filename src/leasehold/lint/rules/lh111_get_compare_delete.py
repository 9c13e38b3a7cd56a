"""A lock is released (or renewed) by reading its value, comparing it, and then deleting (or prolonging) it.

## Why

Between the reading and the delete the lock may expire and be taken by somebody else. The window is small and is hit
exactly when it matters: at the end of a run that took about as long as the lock lasts. The delete then frees the
other one's lock.

## Bad

```py
def release(redis, key, token):
    if redis.get(key) == token:
        redis.delete(key)
```

## Good

```py
RELEASE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end"

def release(redis, key, token):
    redis.eval(RELEASE, 1, key, token)
```

## Not reported

The same within `WATCH` and `MULTI`, and comparisons with a constant: those are states, not owners.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from leasehold.lint.finding import Finding
from leasehold.lint.locks import leaves
from leasehold.lint.module import Module, calls_in, method_of
from leasehold.lint.rule import rule
from leasehold.lint.stores import DELETES, RENEWS, Operation, compares_with, names_lock, operations


@rule("LH111", "get-compare-delete", __doc__, words=("get(",))
def check(module: Module) -> Iterator[Finding]:
    """Report the command that deletes or prolongs."""
    for operation in operations(module):
        if operation.meaning not in (DELETES, RENEWS) or operation.in_pipeline:
            continue
        if any(method_of(call) == "watch" for call in calls_in(module.scope_of(operation.call))):
            continue
        branch = _branch(module, operation)
        if branch is not None:
            done = "deleted" if operation.meaning is DELETES else "prolonged"
            yield module.finding(
                "LH111",
                operation.call,
                f"the lock may change hands after the comparison on line {branch.lineno}, and then another's is "
                f"{done}: compare and act in one step (a script, or DELEX … IFEQ)",
            )


def _branch(module: Module, operation: Operation) -> ast.If | None:
    for node in ast.walk(module.scope_of(operation.call)):
        if not isinstance(node, ast.If) or node.lineno > operation.call.lineno:
            continue
        compared = compares_with(module, node.test, operation.key_text)
        if compared is None or (_with_constant(compared) and not names_lock(module, operation)):
            continue
        after = module.scope_of(node) is module.scope_of(operation.call) and leaves(node.body)
        if module.within(operation.call, node.body) or (after and not module.within(operation.call, node.orelse)):
            return node
    return None


def _with_constant(compared: ast.Compare) -> bool:
    sides = [compared.left, *compared.comparators]
    return any(isinstance(side, ast.Constant) for side in sides)
