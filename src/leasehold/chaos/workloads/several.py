"""Several names at once: two of four registers are locked together, read, and written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from leasehold.chaos.hand import Change, Grip, Hand
from leasehold.chaos.resource import Cells, Resource, Side
from leasehold.chaos.workloads.workload import Final, Simple, look_at

NAMES = ("north", "east", "south", "west")


class SeveralNames(Simple):
    """Lock two, read two, write two."""

    name: ClassVar[str] = "several"
    summary: ClassVar[str] = "lock two of four registers together, read both, write both"
    kind: ClassVar[str] = "register"
    several: ClassVar[bool] = True

    def lap(self, hand: Hand) -> None:
        """Do it once, on both sides of the resource. The names come in any order."""
        with hand.holding_several(hand.chance.sample(NAMES, 2)) as grips:
            if grips is None:
                return
            changes: list[tuple[Grip, Side, Change]] = []
            for grip in grips:
                for side in hand.sides(*grips):
                    allowed, seen = hand.read(grip, side, self.kind, grip.name, _look(grip.name))
                    if allowed:
                        changes.append((grip, side, self._change(grip.name, seen, hand)))
            hand.work()
            with hand.gap(*grips) as believed:
                for grip, side, change in changes if believed else ():
                    hand.write(grip, side, change)

    def _change(self, name: str, seen: Any, hand: Hand) -> Change:
        value = hand.unique()
        return Change(self.kind, name, value, lambda cells: cells.put(name, value), after=seen)

    def final(self, resource: Resource) -> list[Final]:
        """The last values."""
        return [final for name in NAMES for final in look_at(resource, self.kind, name, _look(name))]


def _look(name: str) -> Callable[[Cells], Any]:
    return lambda cells: cells.get(name)
