"""A register: each writer replaces the value that it has read by one that nobody else writes."""

from __future__ import annotations

from typing import Any, ClassVar

from leasehold.chaos.hand import Change, Hand
from leasehold.chaos.resource import Cells, Resource
from leasehold.chaos.workloads.workload import Final, ReadThenWrite, look_at


class Register(ReadThenWrite):
    """Read a value, write another."""

    name: ClassVar[str] = "register"
    summary: ClassVar[str] = "read a value, write another in its place"
    kind: ClassVar[str] = "register"

    def look(self, cells: Cells, _hand: Hand) -> Any:
        """The value."""
        return cells.get(self.name)

    def change(self, seen: Any, hand: Hand) -> Change:
        """A new value."""
        value = hand.unique()
        return Change(self.kind, self.name, value, lambda cells: cells.put(self.name, value), after=seen)

    def final(self, resource: Resource) -> list[Final]:
        """The last value."""
        return look_at(resource, self.kind, self.name, lambda cells: cells.get(self.name))
