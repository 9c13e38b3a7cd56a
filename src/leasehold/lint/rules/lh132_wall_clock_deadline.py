"""How long to wait for a lock, or how long it is held, is measured with the wall clock.

## Why

The wall clock is set: by NTP, by a virtual machine that was moved, by a person. When it jumps ahead, a lease looks
expired (or a wait ends early); when it is set back, a holder goes on believing in a lease that ended long ago.

## Bad

```py
import time

def take(lock, patience):
    give_up_at = time.time() + patience
    while time.time() < give_up_at:
        if lock.acquire(blocking=False):
            return True
        time.sleep(0.1)
    return False
```

## Good

```py
import time

def take(lock, patience):
    give_up_at = time.monotonic() + patience
    while time.monotonic() < give_up_at:
        if lock.acquire(blocking=False):
            return True
        time.sleep(0.1)
    return False
```

## Not reported

Times that are stored or sent elsewhere: those need the wall clock. Where the time never leaves the function, `--fix`
writes `time.monotonic()`.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator

from leasehold.lint.clocks import is_wall_clock
from leasehold.lint.finding import Edit, Finding
from leasehold.lint.locks import ACQUIRE, is_lock, may_fail
from leasehold.lint.module import FUNCTIONS, Function, Module, calls_in, inside, method_of, receiver_of
from leasehold.lint.rule import rule
from leasehold.lint.stores import takes
from leasehold.lint.words import speaks_of, speaks_of_lock


@rule("LH132", "wall-clock-deadline", __doc__, words=("time.time", "now(", "utcnow", "time()"))
def check(module: Module) -> Iterator[Finding]:
    """Report the reading that the deadline (or the start) is made from."""
    taken = {operation.call for operation in takes(module)}
    by_function: dict[Function, list[ast.Call]] = defaultdict(list)
    for call in module.calls:
        function = module.function_of(call) if is_wall_clock(module, call) else None
        if function is not None:
            by_function[function].append(call)
    for function, readings in by_function.items():
        if len(readings) < 2 or not _waits_for_lock(module, function, taken):
            continue
        for start in readings:
            name = _measured_from(module, start)
            if name is not None and _is_compared_in_loop(module, function, name, start):
                yield module.finding(
                    "LH132",
                    start,
                    "the wall clock can be set while this waits: measure with time.monotonic()",
                    _edits(module, function, name, readings),
                )


def _waits_for_lock(module: Module, function: Function, taken: set[ast.Call]) -> bool:
    if speaks_of_lock(function.name) or (speaks_of(function.name, "acquire") and _in_lock_class(module, function)):
        return True
    return any(
        (call in taken or (method_of(call) in ACQUIRE and _can_fail(module, call))) and _in_loop(module, call)
        for call in calls_in(function)
    )


def _in_lock_class(module: Module, function: Function) -> bool:
    owner = module.class_of(function)
    return owner is not None and speaks_of_lock(owner.name)


def _can_fail(module: Module, call: ast.Call) -> bool:
    lock = receiver_of(call)
    return lock is not None and is_lock(module, lock) and may_fail(module, call, lock)


def _in_loop(module: Module, call: ast.Call) -> bool:
    return module.enclosing(call, ast.While, ast.For) is not None


def _measured_from(module: Module, reading: ast.Call) -> str | None:
    """The name that a reading is assigned to, by itself or with a duration added."""
    statement = module.statement_of(reading)
    if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
        return None
    value = statement.value
    alone = value is reading or (isinstance(value, ast.BinOp) and reading in (value.left, value.right))
    return statement.targets[0].id if alone else None


def _is_compared_in_loop(module: Module, function: Function, name: str, start: ast.Call) -> bool:
    """Whether a loop that began after the first reading compares with a later one."""
    around = {start, *module.above(start)}
    for node in inside(function):
        if not isinstance(node, ast.Compare) or not _reads_again(module, node, name):
            continue
        loop = module.enclosing(node, ast.While, ast.For)
        if loop is not None and loop not in around:
            return True
    return False


def _reads_again(module: Module, node: ast.AST, name: str) -> bool:
    parts = list(inside(node))
    named = any(isinstance(one, ast.Name) and one.id == name for one in parts)
    return named and any(is_wall_clock(module, one) for one in parts)


def _edits(module: Module, function: Function, name: str, readings: list[ast.Call]) -> tuple[Edit, ...]:
    """Only if every reading is ``time.time()``, and the name is used for nothing but comparing with another reading."""
    if any(isinstance(node, (*FUNCTIONS, ast.Lambda)) for node in inside(function) if node is not function):
        return ()
    if not all(
        module.segment(reading) == "time.time()" and module.called(reading) == "time.time" for reading in readings
    ):
        return ()
    for node in inside(function):
        if isinstance(node, ast.Name) and node.id == name:
            statement = module.statement_of(node)
            compare = module.enclosing(node, ast.Compare)
            stored = (
                isinstance(node.ctx, ast.Store) and isinstance(statement, ast.Assign) and len(statement.targets) == 1
            )
            if not stored and (compare is None or not _reads_again(module, compare, name)):
                return ()
    used = [one for one in readings if _measured_from(module, one) == name or _is_in_compare(module, one, name)]
    if len(used) != len(readings):
        return ()
    return tuple(
        Edit(one.lineno, one.col_offset, one.end_lineno or one.lineno, one.end_col_offset or 0, "time.monotonic()")
        for one in readings
    )


def _is_in_compare(module: Module, reading: ast.Call, name: str) -> bool:
    compare = module.enclosing(reading, ast.Compare)
    return compare is not None and _reads_again(module, compare, name)
