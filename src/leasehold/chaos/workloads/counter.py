"""A counter: read it, add one, write it. A lost update is a count that is too low."""

from __future__ import annotations

from typing import Any, ClassVar

from leasehold.chaos.hand import Change, Hand
from leasehold.chaos.resource import Cells, Resource
from leasehold.chaos.workloads.workload import Final, ReadThenWrite, look_at


class Counter(ReadThenWrite):
    """Read a number, write the next one."""

    name: ClassVar[str] = "counter"
    summary: ClassVar[str] = "read a number, write the next one"
    kind: ClassVar[str] = "counter"

    def look(self, cells: Cells, _hand: Hand) -> Any:
        """The count."""
        return cells.get(self.name, 0)

    def change(self, seen: Any, _hand: Hand) -> Change:
        """One more."""
        return Change(self.kind, self.name, seen + 1, lambda cells: cells.put(self.name, seen + 1), after=seen)

    def final(self, resource: Resource) -> list[Final]:
        """The last count."""
        return look_at(resource, self.kind, self.name, lambda cells: cells.get(self.name, 0))
