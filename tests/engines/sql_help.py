"""What the tests of engines on SQL servers share."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from leasehold.core.engine import Engine, Want

_numbers = itertools.count(1)


def fresh_namespace() -> str:
    return f"test-{next(_numbers)}"


def soon(engine: Engine, seconds: float = 5.0) -> float:
    """When a request should have been answered, on the engine's clock."""
    return engine.world.now() + seconds


def once_the_row_is_free(
    execute: Callable[[str], object], namespace: str, change: str, step: Callable[[], object]
) -> tuple[object, bool]:
    """What a step comes to that waited for a change of the name's row, and whether it has waited for that."""
    with ThreadPoolExecutor(1) as thread:
        execute("BEGIN")
        execute(f"UPDATE leasehold_lease SET {change} WHERE namespace = '{namespace}'")
        stepping = thread.submit(step)
        time.sleep(0.2)
        has_waited = not stepping.done()
        execute("COMMIT")
        return stepping.result(), has_waited


def want(name: str, holder: str, ttl: float = 30.0) -> Want:
    return Want(name, holder, ttl, about=f"{holder}@here:1")
