"""A lock that is said to be for correctness is held, and its token is never used.

## Why

`purpose="correctness"` says that a second holder would do harm. No lock can rule that out alone: a holder that stalls
past its deadline still writes when it wakes up. Only the resource can refuse that write, by the fencing token, and
here nobody sends it.

## Bad

```py
from leasehold import Leasehold

locks = Leasehold("redis://localhost")

def nightly():
    with locks.lock("nightly", ttl=30, purpose="correctness"):
        export()
```

## Good

```py
from leasehold import Leasehold

locks = Leasehold("redis://localhost")

def nightly():
    with locks.lock("nightly", ttl=30, purpose="correctness") as lease:
        export(token=lease.token)
```

## Not reported

Blocks that use the lease at all, and locks for efficiency.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from leasehold.lint.finding import Finding
from leasehold.lint.kinds import LEASEHOLD
from leasehold.lint.locks import lock_kind, making_call
from leasehold.lint.module import Module, argument, inside
from leasehold.lint.rule import rule


@rule("LH181", "correctness-without-token", __doc__, words=("correctness",))
def check(module: Module) -> Iterator[Finding]:
    """Report the block."""
    for item in module.all(ast.withitem):
        kind = lock_kind(module, item.context_expr)
        made = making_call(module, item.context_expr)
        if kind is None or kind.library != LEASEHOLD.library or made is None:
            continue
        purpose = argument(made, "purpose")
        if not isinstance(purpose, ast.Constant) or purpose.value != "correctness":
            continue
        block = module.parents[item]
        if isinstance(block, ast.With | ast.AsyncWith) and not _is_used(item.optional_vars, block.body):
            yield module.finding(
                "LH181",
                item.context_expr,
                "nobody sends this lease's token along: a holder that stalls still writes when it wakes up; pass "
                "lease.token to a fence",
            )


def _is_used(target: ast.expr | None, body: list[ast.stmt]) -> bool:
    if target is None:
        return False
    return not isinstance(target, ast.Name) or any(
        isinstance(node, ast.Name) and node.id == target.id for one in body for node in inside(one, nested=True)
    )
