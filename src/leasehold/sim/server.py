"""The server: it runs the lease table, the very code that the embedded engine runs, on a wall clock that can be set."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from leasehold.core import table
from leasehold.core.engine import Busy, Grant, Incumbent, Renewal, Suspect, Want
from leasehold.sim.history import Event, Freed, Granted, Left, Queued, Refused, Unqueued
from leasehold.sim.site import Site

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leasehold.sim.network import Link, Network
    from leasehold.sim.site import SimulatedFamily
    from leasehold.sim.world import SimWorld

FIRST_SECOND = 1000.0
"""What the server's clock shows in the beginning."""


def micros(seconds: float) -> int:
    """A duration in the server's units."""
    return round(seconds * 1_000_000)


class _Before(NamedTuple):
    """What an entry was before an operation."""

    name: str
    seats: list[table.Seat]
    queue: list[table.Place]


class SimServer(Site):
    """One server that keeps leases."""

    def __init__(self, network: Network, events: list[Event], rate: float) -> None:
        super().__init__(network, events, rate)
        self._network, self._scheduler, self._events = network, network.scheduler, events
        self._rate = rate
        self.shift = FIRST_SECOND
        self.set_back = 0.0
        """By how much the clock was ever set back, all in all."""
        self.entries: dict[str, table.Entry] = {}
        self._listening: dict[str, Link] = {}

    def family(self, world: SimWorld) -> SimulatedFamily:
        """The simulator's own engine, every operation of which is one request."""
        from leasehold.sim.engine import SimFamily

        return SimFamily(world, self._network, self)

    def clock(self) -> int:
        """The server's wall clock, in microseconds."""
        return int((self._scheduler.now * self._rate + self.shift) * 1_000_000)

    def set_clock(self, seconds: float) -> None:
        """Set the clock forward, or back."""
        self.shift += seconds
        self.set_back += max(-seconds, 0.0)

    def _true_time(self, clock: int) -> float:
        return (clock / 1_000_000 - self.shift) / self._rate

    # Connections.

    def heard_of(self, link: Link) -> None:
        """Whoever asks by it can also be woken by it."""
        self._listening[link.address] = link

    def stopped(self, *, wipe: bool) -> None:
        """Nobody is listening any more; the data may survive."""
        self._listening.clear()
        if wipe:
            for name, entry in self.entries.items():
                self._note(_Before(name, entry.seats, entry.queue), table.Entry(), "", "wiped")
            self.entries.clear()

    def hung_up(self, link: Link) -> None:
        """The other end of a connection is gone, and said so."""
        self._listening.pop(link.address, None)

    # Operations.

    def take(self, want: Want, address: str, patience: float | None, suspect: Suspect | None) -> Grant | Busy:
        """See `leasehold.core.engine.Engine.take`."""
        entry = self._entry(want.name)
        before = _Before(want.name, list(entry.seats), list(entry.queue))
        ask = table.Ask(
            want.holder,
            micros(want.ttl),
            want.mode,
            want.limit,
            micros(want.delay),
            want.about,
            None if patience is None else micros(patience),
            address,
            suspect,
        )
        now = self.clock()
        answer = table.take(entry, ask, now, now)
        self._note(before, entry, want.holder, "lapsed")
        if isinstance(answer, table.Taken):
            self._wake(want.name, entry, answer.wake)
            return Grant(answer.token)
        self._events.append(Refused(self._scheduler.now, want.name, want.holder))
        seat = answer.incumbent
        incumbent = Incumbent(seat.token, seat.beat, seat.lasts / 1_000_000, seat.about) if seat else None
        return Busy(answer.ask_again / 1_000_000, incumbent)

    def renew(self, leases: Sequence[Renewal]) -> list[bool]:
        """See `leasehold.core.engine.Engine.renew`."""
        return [self._renew_one(one) for one in leases]

    def _renew_one(self, one: Renewal) -> bool:
        entry = self._entry(one.name)
        before = _Before(one.name, list(entry.seats), list(entry.queue))
        kept = table.renew(entry, one.holder, one.token, micros(one.ttl), self.clock())
        self._note(before, entry, one.holder, "lapsed")
        return kept

    def release(self, name: str, holder: str) -> bool:
        """See `leasehold.core.engine.Engine.release`."""
        entry = self._entry(name)
        before = _Before(name, list(entry.seats), list(entry.queue))
        released = table.release(entry, holder, self.clock())
        self._note(before, entry, holder, "released")
        self._wake(name, entry, released.wake, hand_over=released.held)
        return released.held

    def force_release(self, name: str) -> int:
        """See `leasehold.core.engine.Engine.force_release`."""
        entry = self._entry(name)
        before = _Before(name, list(entry.seats), list(entry.queue))
        now = self.clock()
        token, wake = table.force_release(entry, now, now)
        self._note(before, entry, "", "forced")
        self._wake(name, entry, wake)
        return token

    def _entry(self, name: str) -> table.Entry:
        entry = self.entries.get(name)
        if entry is None:
            entry = self.entries[name] = table.Entry()
        return entry

    def _wake(self, name: str, entry: table.Entry, place: table.Place | None, *, hand_over: bool = False) -> None:
        """Wake the next waiter; one whose process is known to be gone is skipped at once."""
        while place is not None:
            link = self._listening.get(place.address)
            before = _Before(name, list(entry.seats), list(entry.queue))
            if link is not None:
                now = self.clock()
                token = table.hand_over(entry, place, now, now) if hand_over else None
                self._note(before, entry, place.holder, "handed over")
                self._network.wake(link, place.holder, Grant(token) if token else None)
                return
            gone = place.holder
            place = table.pass_by(entry, place, self.clock())
            self._note(before, entry, gone, "nobody there")

    # What the judges get to see.

    def _note(self, before: _Before, after: table.Entry, holder: str, how: str) -> None:
        """Record how the entry differs from what it was; `how` is what happened to whatever is gone."""
        now, events = self._scheduler.now, self._events
        name, seats, queue = before
        if seats or after.seats:
            for seat in seats:
                if not any(seat is other for other in after.seats):
                    clock = self.clock()
                    ran_out = seat.expires <= clock or (how == "released" and seat.holder != holder)
                    why = "lapsed" if ran_out and how != "wiped" else how
                    closed = min(seat.expires, clock) + seat.delay if seat.delay and why != "released" else 0
                    events.append(Freed(now, name, seat.holder, why, self._true_time(closed) if closed else 0.0))
            events.extend(
                Granted(now, name, seat.holder, seat.token, seat.mode)
                for seat in after.seats
                if not any(seat is other for other in seats)
            )
        if queue or after.queue:
            was = [place.holder for place in queue]
            still = [place.holder for place in after.queue]
            if was != still:
                events.extend(Unqueued(now, name, gone, how) for gone in was if gone not in still)
                events.extend(Queued(now, name, new) for new in still if new not in was)

    def leftovers(self) -> list[Left]:
        """What is still there when every lease must have run out, and every place soon will have."""
        now, clock = self._scheduler.now, self.clock() + micros(self.set_back)
        found: list[Left] = []
        for name, entry in self.entries.items():
            table.release(entry, "nobody", clock)
            found += [Left(now, name, seat.holder, "seat") for seat in entry.seats]
            table.release(entry, "nobody", clock + table.LONGEST_SILENCE + table.LATENESS)
            found += [Left(now, name, place.holder, "place in the queue") for place in entry.queue]
        return found
