"""The lease table: what an engine with a table of leases does, as pure functions on one name's entry.

This is the meaning of every operation, in one place. The simulator runs it as the server. The embedded engine runs it
inside a transaction. The Redis scripts are written to it, and a state machine compares their answers with it.

Times are integers in microseconds on the engine's own clock. Tokens come from `stamp`, which is wall-clock
microseconds: ``max(last + 1, stamp)`` never falls while the entry survives, whatever clocks do, and stays above
tokens of a lost entry while the clock is not behind them.

A free name is reserved for the head of its queue. Whoever is `n`-th may step in once those before it have let `n`
turns go by: a waiter that hangs costs the queue one `TURN`, and no heartbeat is needed to find out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from leasehold.core.engine import HolderStatus, Mode, NameStatus, Suspect, WaiterStatus, Want

TURN = 2_000_000
"""How long a woken waiter may take to claim its turn."""
LONGEST_SILENCE = 75_000_000
"""A waiter asks again after this long even without news, which is also how a dead one is found."""
LATENESS = 5_000_000
"""How much later than it was told to a waiter may ask again, or leave, and still keep its place until then: so much
before a place is given up, its waiter has looked by itself."""
PLACE_STAYS = (LONGEST_SILENCE + LATENESS) / 1e6
"""In seconds, for how long a place stays that nobody comes back to."""
NEAR = 8
"""So many of those who wait look when the lease ends, not only in their turn: one of them is likely to be the head by
then, and need not be told."""
SLACK = 250_000
"""How much later than when it could be served the head of the queue may look by itself."""
PROMPT = 250_000
"""Who has waited for no longer than this can be handed a name that falls free: that is still an answer to its question,
a little late. Who has waited for longer may hang by now, and has to come for it."""


@dataclass(slots=True)
class Seat:
    """A lease as the engine keeps it."""

    holder: str
    token: int
    mode: Mode
    since: int
    expires: int
    lasts: int
    """The longest TTL that this lease ever had: no belief of its holder reaches further than this beyond a beat."""
    beat: int = 0
    delay: int = 0
    about: str = ""


@dataclass(slots=True)
class Place:
    """A waiter in the queue."""

    holder: str
    mode: Mode
    limit: int
    since: int
    until: int
    address: str
    """Where its wake-up goes."""
    about: str = ""
    lasts: int = 0
    """For how long it wants to hold; 0 where it has to come for a name that falls free, and say so then."""
    delay: int = 0
    floor: int = 0
    """A token that it has seen, see `Ask`."""


@dataclass(slots=True)
class Entry:
    """All that the engine keeps for one name."""

    token: int = 0
    turn_since: int = 0
    """Since when the head of the queue could have claimed its turn."""
    closed_until: int = 0
    seats: list[Seat] = field(default_factory=list)
    queue: list[Place] = field(default_factory=list)

    @property
    def idle(self) -> bool:
        """Nobody holds it and nobody waits: only the token is worth keeping."""
        return not self.seats and not self.queue


class Ask(NamedTuple):
    """A request to take, in the engine's units."""

    holder: str
    ttl: int
    mode: Mode = "exclusive"
    limit: int = 1
    delay: int = 0
    about: str = ""
    patience: int | None = None
    address: str = ""
    suspect: tuple[int, int] | None = None
    floor: int = 0
    """A token that the asker has seen from this engine: what is minted must be above it."""

    @classmethod
    def of(cls, want: Want, patience: float | None, address: str, suspect: Suspect | None) -> Ask:
        """What a caller wants, in microseconds."""
        return cls(
            want.holder,
            int(want.ttl * 1_000_000),
            want.mode,
            want.limit,
            int(want.delay * 1_000_000),
            want.about,
            None if patience is None else int(patience * 1_000_000),
            address,
            suspect,
        )


class Taken(NamedTuple):
    """Held. `wake` is the next waiter, when it could be served as well."""

    token: int
    wake: Place | None = None


class Refused(NamedTuple):
    """Not now."""

    ask_again: int
    incumbent: Seat | None


class Released(NamedTuple):
    """Whether the caller held it, and whom to wake."""

    held: bool
    wake: Place | None


def take(entry: Entry, ask: Ask, now: int, stamp: int) -> Taken | Refused:
    """Take the name and mint a token, or refuse and (with patience) queue."""
    _lapse(entry, now, ask.suspect)
    mine = _seat_of(entry, ask.holder)
    if mine is not None:
        _beat(mine, ask.ttl, now)
        return Taken(mine.token)
    rank = _rank_of(entry, ask.holder)
    if _may_take(entry, ask, rank, now):
        return _grant(entry, ask, rank, now, stamp)
    ask_again = _ask_again(entry, ask, rank, now)
    if ask.patience is not None:
        _queue(entry, ask, now, until=now + min(ask.patience, ask_again) + LATENESS)
    return Refused(ask_again, min(entry.seats, key=lambda seat: (seat.expires, seat.token), default=None))


def renew(entry: Entry, holder: str, token: int, ttl: int, now: int) -> bool:
    """Prolong a lease that is still held; never shorten it, never revive it."""
    _lapse(entry, now)
    seat = _seat_of(entry, holder)
    if seat is None or seat.token != token:
        return False
    _beat(seat, ttl, now)
    return True


def release(entry: Entry, holder: str, now: int) -> Released:
    """Give the name back and leave the queue. Nobody else's lease is touched."""
    _lapse(entry, now)
    seat = _seat_of(entry, holder)
    if seat is not None:
        entry.seats.remove(seat)
    was_head = bool(entry.queue) and entry.queue[0].holder == holder
    entry.queue = [place for place in entry.queue if place.holder != holder]
    if seat is None and not was_head:
        return Released(False, None)
    entry.turn_since = now
    return Released(seat is not None, _next_to_wake(entry, now))


def hand_over(entry: Entry, place: Place, now: int, stamp: int) -> int | None:
    """Grant a name that just fell free to the head of its queue, which need not ask then; None when it has to.

    Its holder counts the lease from its first request, as for any other answer. It has to ask where the one behind it
    would then have to be told that it is the first now.
    """
    promptly = place.since <= now < place.since + min(PROMPT, place.lasts // 8)
    if not promptly or entry.seats or place.mode != "exclusive" or now < entry.closed_until:
        return None
    looks_by = now + place.lasts + LATENESS + SLACK
    if max(entry.token, place.floor) >= stamp or any(other.until > looks_by for other in entry.queue[1:2]):
        return None
    ask = Ask(place.holder, place.lasts, delay=place.delay, about=place.about)
    return _grant(entry, ask, 0, now, stamp).token


def pass_by(entry: Entry, unheard: Place, now: int) -> Place | None:
    """Take a waiter out of the queue that could not be woken; returns who is to be woken instead.

    By now it may have been served, or be back with another address: nothing of that is touched.
    """
    _lapse(entry, now)
    if any((place.holder, place.address) == (unheard.holder, unheard.address) for place in entry.queue):
        return release(entry, unheard.holder, now).wake
    return _next_to_wake(entry, now)


def force_release(entry: Entry, now: int, stamp: int) -> tuple[int, Place | None]:
    """End every lease; the token minted here is above all of theirs."""
    _lapse(entry, now)
    for seat in entry.seats:
        _close(entry, seat, ended=now)
    entry.seats.clear()
    entry.turn_since = now
    entry.token = max(entry.token + 1, stamp)
    return entry.token, _next_to_wake(entry, now)


def _lapse(entry: Entry, now: int, suspect: tuple[int, int] | None = None) -> None:
    """Drop leases that ran out (or are proved to have by a watcher's own clock) and waiters who gave up."""
    entry.turn_since = min(entry.turn_since, now)  # the engine's clock may have been set back
    for seat in [seat for seat in entry.seats if seat.expires <= now or (seat.token, seat.beat) == suspect]:
        entry.seats.remove(seat)
        ended = min(seat.expires, now)
        entry.turn_since = max(entry.turn_since, ended)
        _close(entry, seat, ended)
    entry.queue = [place for place in entry.queue if place.until > now]


def _close(entry: Entry, seat: Seat, ended: int) -> None:
    if seat.delay:
        entry.closed_until = max(entry.closed_until, ended + seat.delay)


def _seat_of(entry: Entry, holder: str) -> Seat | None:
    return next((seat for seat in entry.seats if seat.holder == holder), None)


def _rank_of(entry: Entry, holder: str) -> int:
    return next((rank for rank, place in enumerate(entry.queue) if place.holder == holder), len(entry.queue))


def _beat(seat: Seat, ttl: int, now: int) -> None:
    """Start the lease anew. It never gets shorter in real time, even when the engine's clock was set back meanwhile."""
    seat.lasts = max(seat.lasts, ttl)
    seat.expires = now + seat.lasts
    seat.beat += 1


def _fits(entry: Entry, mode: Mode, limit: int) -> bool:
    """Whether a lease of this kind can stand beside those that are held."""
    if not entry.seats:
        return True
    if mode == "exclusive" or any(seat.mode != mode for seat in entry.seats):
        return False
    return mode == "shared" or len(entry.seats) < limit


def _turn_starts(entry: Entry, rank: int) -> int:
    return max(entry.turn_since, entry.closed_until) + rank * TURN


def _may_take(entry: Entry, ask: Ask, rank: int, now: int) -> bool:
    if not _fits(entry, ask.mode, ask.limit) or now < entry.closed_until:
        return False
    if rank == 0:
        return True
    had_their_chance = all(_fits(entry, place.mode, place.limit) for place in entry.queue[:rank])
    return had_their_chance and now >= _turn_starts(entry, rank)


def _grant(entry: Entry, ask: Ask, rank: int, now: int, stamp: int) -> Taken:
    entry.token = max(entry.token + 1, stamp, ask.floor + 1)
    seat = Seat(ask.holder, entry.token, ask.mode, now, now + ask.ttl, ask.ttl, 0, ask.delay, ask.about)
    entry.seats.append(seat)
    # Those before me missed their turn; they queue again at the end when they come back to life.
    entry.queue = entry.queue[rank + 1 :]
    entry.turn_since = now
    return Taken(entry.token, _next_to_wake(entry, now))


def _queue(entry: Entry, ask: Ask, now: int, until: int) -> None:
    for place in entry.queue:
        if place.holder == ask.holder:
            place.until, place.address = until, ask.address
            return
    entry.queue.append(
        Place(ask.holder, ask.mode, ask.limit, now, until, ask.address, ask.about, ask.ttl, ask.delay, ask.floor)
    )


def _next_to_wake(entry: Entry, now: int) -> Place | None:
    """The head of the queue, if it could be served, or would not look by itself when it can be.

    Nobody tells a waiter that those before it are gone. One that was far behind when it last asked would sleep on while
    a lease that nobody renews runs out.
    """
    if not entry.queue:
        return None
    head = entry.queue[0]
    if _fits(entry, head.mode, head.limit) and now >= entry.closed_until:
        return head
    ends = max(min((seat.expires for seat in entry.seats), default=0), entry.closed_until)
    return head if head.until > ends + LATENESS + SLACK else None


def _ask_again(entry: Entry, ask: Ask, rank: int, now: int) -> int:
    """The earliest time at which, without news, the answer could be another one."""
    if _fits(entry, ask.mode, ask.limit) and all(_fits(entry, p.mode, p.limit) for p in entry.queue[:rank]):
        starts = _turn_starts(entry, rank)
        if rank <= NEAR:  # those before it may leave without a word, and its own turn come sooner
            starts = min(starts, max(now, entry.closed_until) + TURN)
    else:
        first = min(entry.seats, key=lambda seat: (seat.expires, seat.token))
        # When the engine's clock was set back, a whole lease is what the asker has to watch go by without a beat.
        starts = min(max(first.expires, entry.closed_until), now + first.lasts) + (rank * TURN if rank > NEAR else 0)
    return min(max(starts - now, 1), _longest_silence(rank))


def _longest_silence(rank: int) -> int:
    """How long who is `rank`-th from the head may be left without news.

    Only the head is woken by a release, so the others must look by themselves whether it hangs: the next one so often
    that a missed turn costs no more than the turn, and all of them together about once a second.
    """
    return min(rank * (rank + 1) // 2 * TURN, LONGEST_SILENCE) if rank else LONGEST_SILENCE


def status_of(name: str, entry: Entry, now: int) -> NameStatus:
    """What a person may know of a name."""
    holders = (
        HolderStatus(one.token, one.mode, one.about, (now - one.since) / 1e6, (one.expires - now) / 1e6)
        for one in entry.seats
    )
    waiters = (
        WaiterStatus(one.mode, one.about, (now - one.since) / 1e6, patience_left(one.until, now)) for one in entry.queue
    )
    return NameStatus(name, entry.token, tuple(holders), tuple(waiters), max(entry.closed_until - now, 0) / 1e6)


def patience_left(until: float, now: int) -> float:
    """In how many seconds a waiter looks by itself or leaves, whose place is given up at `until`."""
    return max(until - LATENESS - now, 0) / 1e6
