"""One algorithm, three worlds: the protocol that every world offers, and how the blocking one is driven.

An algorithm is a plain ``async def`` that awaits only operations of its `Engine` and of its `World`. In asyncio those
suspend as usual; in the simulator the scheduler resumes them; in the blocking world they never suspend at all, so one
``send(None)`` runs the algorithm to its end with no event loop and no thread hop.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class World(Protocol):
    """All that an algorithm may know of time and chance."""

    def now(self) -> float:
        """Seconds on a clock that nobody can set and that counts suspended time where the system has one."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Pause the caller."""
        ...

    def chance(self) -> float:
        """A random number from 0 up to but not including 1, for jitter only."""
        ...

    def nonce(self) -> str:
        """A fresh holder: 128 bits that no other attempt anywhere has, as text."""
        ...

    def process(self) -> int:
        """Which process this is: another number after a fork."""
        ...


def run_blocking(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run an algorithm whose engine blocks instead of suspending.

    >>> async def answer() -> int:
    ...     return 42
    >>> run_blocking(answer())
    42
    """
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    coroutine.close()
    raise RuntimeError("a blocking engine suspended; its operations must block instead")
