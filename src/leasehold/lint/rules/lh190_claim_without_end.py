"""Work is claimed as done before it is done, in a set that never forgets.

## Why

The claim is made first, then the work. A process that dies in between leaves a claim that nobody can tell from
finished work: the message is never handled, and no retry will.

## Bad

```py
def handle(redis, message):
    if not redis.sadd("processed-messages", message.id):
        return
    charge(message)
```

## Good

```py
def handle(redis, message, token):
    if not redis.set(f"handling:{message.id}", token, nx=True, ex=300):
        return
    charge(message)
    redis.set(f"handled:{message.id}", token, ex=86_400)
```

## Not reported

Sets whose name does not speak of work that is done (such as the pages that a crawler has seen).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from leasehold.lint.finding import Finding
from leasehold.lint.locks import leaves
from leasehold.lint.module import Module, method_of, receiver_of
from leasehold.lint.rule import rule
from leasehold.lint.words import speaks_of

CLAIMS = ("processed", "handled", "done", "claimed", "idempot", "dedup", "completed", "consumed", "processing")


@rule("LH190", "claim-without-end", __doc__, words=("sadd(", "hsetnx("))
def check(module: Module) -> Iterator[Finding]:
    """Report the claim."""
    for branch in module.all(ast.If):
        test = branch.test.operand if isinstance(branch.test, ast.UnaryOp) else None
        test = test.value if isinstance(test, ast.Await) else test
        if not isinstance(test, ast.Call) or method_of(test) not in ("sadd", "hsetnx") or not leaves(branch.body):
            continue
        key = module.text(test.args[0]) if test.args else ""
        receiver = receiver_of(test)
        if (
            receiver is not None
            and speaks_of(key, *CLAIMS)
            and not any(isinstance(one, ast.Raise) for one in branch.body)
        ):
            yield module.finding(
                "LH190",
                test,
                "a crash after this claim looks like finished work for ever: claim with an expiry, and mark it "
                "as done afterwards",
            )
