"""Readers and writers: many may read at once, and nothing changes while they do."""

from __future__ import annotations

from typing import ClassVar

from leasehold.chaos.hand import Hand
from leasehold.chaos.subject import Mode
from leasehold.chaos.workloads.register import Register

WRITERS = 0.3
"""How many of the laps write."""


class SharedRegister(Register):
    """A register that most laps only read, under a shared lock, twice."""

    name: ClassVar[str] = "shared"
    summary: ClassVar[str] = "most read a value twice under a shared lock, some write it under an exclusive one"
    mode: ClassVar[Mode] = "shared"

    def lap(self, hand: Hand) -> None:
        """Write, or read twice."""
        if hand.chance.random() < WRITERS:
            super().lap(hand)
            return
        with hand.holding(self.name, mode="shared") as grip:
            if grip is None:
                return
            if "fenced" in hand.sides(grip):
                # Readers do not refuse each other; but no writer who came before them may write from now on.
                hand.announce(grip, self.kind, self.name)
            hand.read(grip, "plain", self.kind, self.name, lambda cells: self.look(cells, hand))
            hand.work()
            with hand.gap(grip) as believed:
                if believed:
                    hand.read(grip, "plain", self.kind, self.name, lambda cells: self.look(cells, hand))
