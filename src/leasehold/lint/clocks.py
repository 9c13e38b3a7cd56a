"""Which calls read the wall clock, which can be set, and which wait."""

from __future__ import annotations

import ast

from leasehold.lint.module import Module

WALL = frozenset(
    {
        "time.time",
        "time.time_ns",
        "datetime.datetime.now",
        "datetime.datetime.utcnow",
        "datetime.datetime.today",
        "django.utils.timezone.now",
    }
)
SLEEPS = frozenset({"time.sleep", "asyncio.sleep", "anyio.sleep", "gevent.sleep", "eventlet.sleep", "trio.sleep"})


def is_wall_clock(module: Module, node: ast.AST) -> bool:
    """Whether this is a reading of the wall clock."""
    return isinstance(node, ast.Call) and module.called(node) in WALL


def reads_wall_clock(module: Module, value: ast.AST | None) -> bool:
    """Whether a value was made from a reading of the wall clock."""
    return any(is_wall_clock(module, one) for one in module.values.sources(value))


def is_sleep(module: Module, node: ast.AST) -> bool:
    """Whether this waits for a while."""
    return isinstance(node, ast.Call) and module.called(node) in SLEEPS
