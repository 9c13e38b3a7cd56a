"""A lock is taken in one command and gets its expiry in another.

`SETNX` (or `SET` without an expiry) takes the lock, and a separate `EXPIRE` is to make it end.

## Why

A process that dies, is killed or loses its connection between the two commands leaves a key that never expires: every
other holder waits for ever, until a person deletes it.

## Bad

```py
def nightly(redis, token):
    if redis.setnx("lock:nightly", token):
        redis.expire("lock:nightly", 30)
        export()
```

## Good

```py
def nightly(redis, token):
    if redis.set("lock:nightly", token, nx=True, ex=30):
        export()
```

## Not reported

Both commands in one transaction (`MULTI`), and keys that are counters. Where the `EXPIRE` is the first thing after
the `if`, `--fix` joins the two.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from leasehold.lint.finding import Edit, Finding
from leasehold.lint.module import Module, receiver_of
from leasehold.lint.rule import rule
from leasehold.lint.stores import RENEWS, SETS, TAKES, Operation, is_lock_key, names_lock, operations, same_function


@rule("LH101", "setnx-then-expire", __doc__, words=("expire",))
def check(module: Module) -> Iterator[Finding]:
    """Report the command that takes the lock."""
    for operation in operations(module):
        if operation.in_pipeline or operation.may_have_ttl or operation.is_cache:
            continue
        if not _takes_lock(module, operation):
            continue
        later = [
            other
            for other in same_function(module, operation, RENEWS)
            if other.call.lineno >= operation.call.lineno and not other.in_pipeline
        ]
        if later:
            yield module.finding(
                "LH101",
                operation.call,
                f"{operation.command} takes the lock and {later[0].command} on line {later[0].call.lineno} makes it "
                "expire: a crash between the two blocks everyone for ever; use set(…, nx=True, ex=…)",
                _joined(module, operation, later[0]),
            )


def _takes_lock(module: Module, operation: Operation) -> bool:
    if operation.meaning is TAKES:
        return is_lock_key(module, operation) or not module.is_statement(operation.call)
    return operation.meaning is SETS and operation.command == "set" and names_lock(module, operation)


def _joined(module: Module, take: Operation, expire: Operation) -> tuple[Edit, ...]:
    """Only for ``if r.setnx(k, v):`` whose first statement is ``r.expire(k, t)``: there nothing can lie between."""
    branch = module.parents.get(take.call)
    first = module.statement_of(expire.call)
    plain = isinstance(branch, ast.If) and branch.test is take.call and branch.body[0] is first and not branch.orelse
    if not plain or take.command != "setnx" or not module.is_statement(expire.call) or module.is_awaited(expire.call):
        return ()
    assert isinstance(branch, ast.If)
    receiver, key, value, ttl = receiver_of(take.call), take.key, take.value, expire.ttl
    whole = [module.segment(one) for one in (receiver, key, value, ttl) if one is not None]
    if len(whole) != 4 or None in whole or not isinstance(ttl, ast.Constant | ast.Name | ast.Attribute):
        return ()
    if expire.command not in ("expire", "pexpire") or take.call.keywords or len(expire.call.args) != 2:
        return ()
    if take.receiver_text != expire.receiver_text or module.segment(take.call) is None or len(branch.body) < 2:
        return ()
    option = "ex" if expire.command == "expire" else "px"
    call = f"{whole[0]}.set({whole[1]}, {whole[2]}, nx=True, {option}={whole[3]})"
    return (_replaced(take.call, call), _removed(first, branch.body[1]))


def _replaced(node: ast.expr, text: str) -> Edit:
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return Edit(node.lineno, node.col_offset, node.end_lineno, node.end_col_offset, text)


def _removed(first: ast.stmt, following: ast.stmt) -> Edit:
    return Edit(first.lineno, first.col_offset, following.lineno, following.col_offset, "")
