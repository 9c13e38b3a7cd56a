"""What the judges get to see of an engine that has a queue of keys: who stands where, by a rule that is not its own.

Every attempt has an entry, in the order of arrival. Whoever nobody before it excludes has a seat; the others wait. The
attempt tells its holder's id to people in what its entry says about itself, which is how a judge knows whose it is.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from leasehold.core.engine import Mode
from leasehold.sim.history import Event, Freed, Granted, Left, Queued, Unqueued

if TYPE_CHECKING:
    from leasehold.sim.scheduler import Scheduler


CLOSURE: Final = ""
"""The holder of an entry that is nobody's, and keeps everybody behind it waiting: the end of a lock-delay."""


class Entry(NamedTuple):
    """One attempt, as the server keeps it."""

    id: Hashable
    holder: str
    mode: Mode
    limit: int
    token: int


class Book:
    """Follows the queues of all names."""

    def __init__(self, scheduler: Scheduler, events: list[Event]) -> None:
        self._scheduler, self._events = scheduler, events
        self._seats: dict[str, dict[Hashable, Entry]] = {}
        self._places: dict[str, dict[Hashable, Entry]] = {}
        self._granted: set[tuple[str, Hashable, int]] = set()
        """Whoever had a seat and comes back to it is not granted it a second time."""

    @property
    def names(self) -> list[str]:
        """The names that anybody ever asked for."""
        return list(self._seats)

    def follow(self, name: str, line: Sequence[Entry], how: str, closed_until: float = 0.0) -> None:
        """This is the queue now, oldest first; whatever is gone from it, is gone for the reason `how`."""
        had = self._seats.get(name, {})
        seats = {
            one.id: one
            for number, one in enumerate(line)
            if _has_seat(one, line[:number]) or (one.id in had and one.holder != CLOSURE)
        }
        places = {one.id: one for one in line if one.id not in seats and one.holder != CLOSURE}
        now, events = self._scheduler.now, self._events
        old_seats, old_places = had, self._places.get(name, {})
        self._seats[name], self._places[name] = seats, places
        for one in old_seats.values():
            if one.id not in seats:
                events.append(Freed(now, name, one.holder, how, closed_until))
        for one in old_places.values():
            if one.id not in places and one.id not in seats:
                events.append(Unqueued(now, name, one.holder, how))
        for one in seats.values():
            if one.id not in old_seats and (name, one.id, one.token) not in self._granted:
                self._granted.add((name, one.id, one.token))
                events.append(Granted(now, name, one.holder, one.token, one.mode))
                if one.id in old_places:
                    events.append(Unqueued(now, name, one.holder, "granted"))
        for one in places.values():
            if one.id not in old_places:
                events.append(Queued(now, name, one.holder))

    def left(self) -> list[Left]:
        """What is still there."""
        now = self._scheduler.now
        seats = [Left(now, name, one.holder, "seat") for name, some in self._seats.items() for one in some.values()]
        return seats + [
            Left(now, name, one.holder, "place in the queue")
            for name, some in self._places.items()
            for one in some.values()
        ]


def _has_seat(entry: Entry, before: Sequence[Entry]) -> bool:
    if entry.holder == CLOSURE or any(one.holder == CLOSURE for one in before):
        return False
    if entry.mode == "exclusive":
        return not before
    if any(one.mode != entry.mode for one in before):
        return False
    return entry.mode == "shared" or len(before) < entry.limit
