"""Engines whose queue is kept by the server: whoever came first is served first, whichever client it is of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from leasehold.core.engine import Busy, Grant, Want

PATIENCE = 300.0


class Driver(Protocol):
    """One client's engine, called as plain functions."""

    def take(self, wanted: Want, /, *, patience: float | None = None) -> Grant | Busy: ...

    def release(self, name: str, holder: str, /) -> bool: ...


def assert_served_in_turn(attempts: Sequence[tuple[Driver, Want]]) -> None:
    """Have all come in this order, and see that nobody is served before its turn."""
    for driver, one in attempts:
        driver.take(one, patience=PATIENCE)
    for place, (driver, one) in enumerate(attempts):
        answers = [type(each.take(wanted, patience=PATIENCE)) for each, wanted in attempts[place:]]
        assert answers == [Grant] + [Busy] * (len(attempts) - place - 1)
        assert driver.release(one.name, one.holder)
