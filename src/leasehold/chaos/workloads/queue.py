"""A queue: half of the laps append an item, the others take the first one. Nothing may vanish, or come twice."""

from __future__ import annotations

from typing import Any, ClassVar

from leasehold.chaos.hand import Change, Hand
from leasehold.chaos.resource import Cells, Resource
from leasehold.chaos.workloads.workload import Final, ReadThenWrite, look_at


class Queue(ReadThenWrite):
    """Read where the queue begins and ends, then append an item or take one."""

    name: ClassVar[str] = "queue"
    summary: ClassVar[str] = "append an item to a queue, or take the first one"
    kind: ClassVar[str] = "queue"

    def look(self, cells: Cells, _hand: Hand) -> Any:
        """Both ends: how many were taken and appended, and what the last one, the next one and the newest one are."""
        taken, appended = cells.get("taken", 0), cells.get("appended", 0)
        return {
            "taken": taken,
            "last": cells.get(_item(taken - 1)),
            "next": cells.get(_item(taken)) if taken < appended else None,
            "appended": appended,
            "newest": cells.get(_item(appended - 1)),
        }

    def change(self, seen: Any, hand: Hand) -> Change:
        """Append, or take: each end is a chain of its own, in which every item follows the one before it."""
        if seen["next"] is not None and hand.chance.random() < 0.5:
            return Change(
                self.kind,
                "queue/taken",
                seen["next"],
                lambda cells: cells.put("taken", seen["taken"] + 1),
                after=seen["last"],
            )
        item = hand.unique()

        def append(cells: Cells) -> None:
            cells.put(_item(seen["appended"]), item)
            cells.put("appended", seen["appended"] + 1)

        return Change(self.kind, "queue/appended", item, append, after=seen["newest"])

    def final(self, resource: Resource) -> list[Final]:
        """Everything that was appended and is not overwritten, and how much of it was taken."""
        appended = look_at(resource, self.kind, "queue/appended", lambda cells: _items(cells, cells.get("appended", 0)))
        taken = look_at(resource, self.kind, "queue/taken", lambda cells: _items(cells, cells.get("taken", 0)))
        return [*appended, *taken]


def _item(number: int) -> str:
    return f"item/{number:09}"


def _items(cells: Cells, count: int) -> list[Any]:
    return [cells.get(_item(number)) for number in range(count)]
