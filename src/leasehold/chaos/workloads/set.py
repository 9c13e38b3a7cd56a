"""A set that is read, and written back with one element more."""

from __future__ import annotations

from typing import Any, ClassVar

from leasehold.chaos.hand import Change, Hand
from leasehold.chaos.resource import Cells, Resource
from leasehold.chaos.workloads import pages
from leasehold.chaos.workloads.workload import Final, ReadThenWrite, look_at


class GrowingSet(ReadThenWrite):
    """Read a list, write it with one element more."""

    name: ClassVar[str] = "set"
    summary: ClassVar[str] = "read a set, write it back with one element more"
    kind: ClassVar[str] = "set"

    def look(self, cells: Cells, _hand: Hand) -> Any:
        """What has to be written back."""
        return pages.read(cells, self.name)

    def change(self, seen: Any, hand: Hand) -> Change:
        """One element more."""
        element = hand.unique()
        return Change(
            self.kind,
            self.name,
            element,
            lambda cells: pages.append(cells, self.name, seen, element),
            after=seen["last"],
        )

    def final(self, resource: Resource) -> list[Final]:
        """All elements."""
        return look_at(resource, self.kind, self.name, lambda cells: pages.everything(cells, self.name))
