"""Partitions: entities are spread over partitions, and each partition has one owner, who writes down what it does.

Plain: the owner alone, as far as it knows. Fenced: its token is checked at the partition.
"""

from __future__ import annotations

import time
from typing import Any, ClassVar

from leasehold.chaos.hand import Change, Hand
from leasehold.chaos.leasehold_subject import LeaseholdSubject
from leasehold.chaos.resource import Cells, Resource
from leasehold.chaos.subject import Mode
from leasehold.chaos.workloads import pages
from leasehold.chaos.workloads.workload import Final, Simple, look_at
from leasehold.errors import Moved
from leasehold.patterns.partitions import Entities, Partitions, Writer

ENTITIES = Entities("chaos", partitions=6)
CUSTOMERS = tuple(f"customer-{number}" for number in range(24))
LOOKS_EVERY = 0.2
"""How often a member looks who is there, in TTLs."""
STAYS = (3.0, 8.0)
"""For how long a member stays at least and at most before it leaves and comes back, in TTLs."""


class SingleWriters(Simple):
    """Be a member for a while, and write to the partitions that are one's own."""

    name: ClassVar[str] = "partitions"
    summary: ClassVar[str] = "own some of the partitions for a while, and be their only writer"
    kind: ClassVar[str] = "partition"
    mode: ClassVar[Mode] = "shared"  # that of the roster
    only_leasehold: ClassVar[bool] = True

    def lap(self, hand: Hand) -> None:
        """Join, write, leave."""
        subject, ttl = hand.subject, hand.terms.ttl
        assert isinstance(subject, LeaseholdSubject)
        member = Partitions(subject.locks, ENTITIES, workers=1, ttl=ttl, every=LOOKS_EVERY * ttl)
        member.join()
        try:
            leaves_at = time.monotonic() + hand.chance.uniform(*STAYS) * ttl
            while time.monotonic() < leaves_at and not hand.stopping:
                hand.note("waits")
                self._write_once(hand, member)
                hand.rest()
        finally:
            member.leave(within=ttl)

    def _write_once(self, hand: Hand, member: Partitions) -> None:
        owned = member.owned
        mine = [customer for customer in CUSTOMERS if ENTITIES.partition_of(customer) in owned]
        if mine:
            try:
                # One thread does the work, and this one waits for it: the hand is used by one at a time.
                member.submit(hand.chance.choice(mine), lambda writer: self._write(hand, writer)).result()
            except Moved:
                hand.note("waits")

    def _write(self, hand: Hand, writer: Writer) -> None:
        key = _name_of(writer.partition)
        tenure = hand.tenure(key, writer.token)
        changes = []
        with hand.holds():
            for side in hand.sides(tenure):
                allowed, seen = hand.read(tenure, side, self.kind, key, lambda cells: pages.read(cells, key))
                if allowed:
                    changes.append((side, self._change(key, seen, hand)))
            hand.work()
            if writer.stopping:
                return
            with hand.gap():
                for side, change in changes:
                    hand.write(tenure, side, change)

    def _change(self, key: str, seen: Any, hand: Hand) -> Change:
        entry = hand.unique()

        def work(cells: Cells) -> None:
            pages.append(cells, key, seen, entry)

        return Change(self.kind, key, entry, work, after=seen["last"])

    def final(self, resource: Resource) -> list[Final]:
        """Everything that was written to each partition."""
        return [
            final
            for number in range(ENTITIES.partitions)
            for final in look_at(resource, self.kind, _name_of(number), _everything(_name_of(number)))
        ]


def _name_of(partition: int) -> str:
    return f"partition-{partition}"


def _everything(key: str) -> Any:
    return lambda cells: pages.everything(cells, key)
