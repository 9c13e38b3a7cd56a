"""What the tests of engines on SQL servers share."""

from __future__ import annotations

import itertools

from leasehold.core.engine import Engine, Want

_numbers = itertools.count(1)


def fresh_namespace() -> str:
    return f"test-{next(_numbers)}"


def soon(engine: Engine, seconds: float = 5.0) -> float:
    """When a request should have been answered, on the engine's clock."""
    return engine.world.now() + seconds


def want(name: str, holder: str, ttl: float = 30.0) -> Want:
    return Want(name, holder, ttl, about=f"{holder}@here:1")
