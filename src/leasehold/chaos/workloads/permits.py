"""Permits: at most so many at once may be inside. The resource counts them; no fence can."""

from __future__ import annotations

from typing import ClassVar

from leasehold.chaos.hand import Change, Hand
from leasehold.chaos.resource import Cells, Resource
from leasehold.chaos.subject import Mode
from leasehold.chaos.workloads.workload import Final, Simple


class Permits(Simple):
    """Come in, stay a while, go out."""

    name: ClassVar[str] = "permits"
    summary: ClassVar[str] = "be one of a few at once who are inside"
    kind: ClassVar[str] = "permits"
    mode: ClassVar[Mode] = "permit"
    fenced: ClassVar[bool] = False

    def lap(self, hand: Hand) -> None:
        """Go in and out once."""
        worker = hand.worker

        def come(cells: Cells) -> None:
            # A worker is inside once, also when its predecessor was killed in there.
            inside = sorted({*cells.get("inside", []), worker})
            cells.put("inside", inside)
            cells.put("most", max(cells.get("most", 0), len(inside)))

        def go(cells: Cells) -> None:
            cells.put("inside", [other for other in cells.get("inside", []) if other != worker])

        with hand.holding(self.name, mode="permit") as grip:
            if grip is None:
                return
            with hand.gap(grip) as believed:
                if believed:
                    hand.write(grip, "plain", Change(self.kind, self.name, f"{worker} comes", come))
            if believed:
                hand.work()
                hand.write(grip, "plain", Change(self.kind, self.name, f"{worker} goes", go))

    def final(self, resource: Resource) -> list[Final]:
        """How many there were at most."""
        return [Final("plain", self.kind, self.name, resource.look("plain", lambda cells: cells.get("most", 0)))]
