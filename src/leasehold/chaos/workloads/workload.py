"""What a workload is, and the shape that most of them have: read, compute, look at the lease, write."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from leasehold.chaos.hand import Change, Grip, Hand
from leasehold.chaos.resource import SIDES, Cells, Resource, Side
from leasehold.chaos.subject import Mode


@dataclass(frozen=True, slots=True)
class Final:
    """What one side of the resource held when everything was over."""

    side: Side
    kind: str
    key: str
    value: Any
    more: dict[str, Any] = field(default_factory=dict)
    """What else there is to say of it, for the history."""


class Workload(Protocol):
    """Something that workers do again and again."""

    name: ClassVar[str]
    summary: ClassVar[str]
    mode: ClassVar[Mode]
    """The mode of lock that it needs besides exclusive ones."""
    several: ClassVar[bool]
    """Whether it takes several names at once."""
    only_leasehold: ClassVar[bool]
    """Whether it is about a pattern of Leasehold, which peers do not have."""
    fenced: ClassVar[bool]
    """Whether a fence can help it."""

    def prepare(self, resource: Resource) -> None:
        """Make what has to be there before the first worker comes."""
        ...

    def lap(self, hand: Hand) -> None:
        """What a worker does once."""
        ...

    def final(self, resource: Resource) -> list[Final]:
        """What came of it."""
        ...


class Simple:
    """What most workloads answer to the questions that a run asks of them."""

    mode: ClassVar[Mode] = "exclusive"
    several: ClassVar[bool] = False
    only_leasehold: ClassVar[bool] = False
    fenced: ClassVar[bool] = True

    def prepare(self, resource: Resource) -> None:
        """Nothing has to be there."""


class ReadThenWrite(Simple, ABC):
    """Under one lock: read, compute, look at the lease a last time, write what was computed."""

    name: ClassVar[str]
    kind: ClassVar[str]

    @abstractmethod
    def look(self, cells: Cells, hand: Hand) -> Any:
        """Read what is needed."""

    @abstractmethod
    def change(self, seen: Any, hand: Hand) -> Change:
        """Compute what is to be written."""

    def lap(self, hand: Hand) -> None:
        """Do it once, on both sides of the resource."""
        with hand.holding(self.name) as grip:
            if grip is not None:
                self.change_all(hand, grip)

    def change_all(self, hand: Hand, grip: Grip) -> bool:
        """Read, compute and write on both sides; whether it could be done."""
        changes: dict[Side, Change] = {}
        for side in hand.sides(grip):
            allowed, seen = hand.read(grip, side, self.kind, self.name, lambda cells: self.look(cells, hand))
            if allowed:
                changes[side] = self.change(seen, hand)
        hand.work()
        with hand.gap(grip) as believed:
            written = [hand.write(grip, side, change) for side, change in changes.items() if believed]
        return bool(written) and all(written)


def look_at(resource: Resource, kind: str, key: str, look: Callable[[Cells], Any]) -> list[Final]:
    """The same look at both sides."""
    return [Final(side, kind, key, resource.look(side, look)) for side in SIDES]
