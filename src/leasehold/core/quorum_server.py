"""What one server of a quorum does: the meaning of its scripts, as functions on what it keeps.

The simulator runs this as its servers, and a state machine compares the answers of real servers with it. Times are
microseconds on the server's own clock.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from leasehold.core.quorum import (
    AskConfirm,
    AskGrant,
    AskRelease,
    Barred,
    Confirmed,
    Granted,
    NotYours,
    Occupied,
    Reply,
    Request,
    Returned,
)

AHEAD = 1_000_000
"""How far ahead of the server's clock a client's floor may lift a counter."""
KEPT = 100_000
"""For how long a name that was given back is kept for the one who waited longest."""
LONGEST_PLACE = 90_000_000


@dataclass(slots=True)
class Lease:
    """A name leased to a holder, or (with the counter 0) kept for one."""

    counter: int
    holder: str
    round: int
    ends: int
    about: str = ""


@dataclass(slots=True)
class Place:
    """One who waits."""

    since: int
    until: int


@dataclass(slots=True)
class Server:
    """All that one server keeps. Empty, it is one that lost its data, or is new."""

    ready: int | None = None
    """When it may take part (again); None: nothing is known of it yet."""
    highest: int = 0
    """The highest counter of any name: what a forgotten counter counts as."""
    base: int = 0
    """No counter is ever below it: it is above all that was granted before a loss."""
    run: str = ""
    """Which run of the server's process wrote this."""
    durable: bool = False
    """Whether that run wrote down every change before it answered, so that a restart loses nothing."""
    counters: dict[str, int] = field(default_factory=dict)
    leases: dict[str, Lease] = field(default_factory=dict)
    queues: dict[str, dict[str, Place]] = field(default_factory=dict)


def carry_out(server: Server, request: Request, *, run: str, durable: bool, quarantine: int, now: int) -> Reply:
    """Answer one request that came on a connection to this run of the server."""
    left = _barred(server, run, durable, quarantine, now)
    if left:
        return Barred(left / 1e6)
    lease = server.leases.get(request.name)
    if lease is not None and lease.ends <= now:
        del server.leases[request.name]
        lease = None
    match request:
        case AskGrant():
            return _grant(server, request, lease, now)
        case AskConfirm():
            return _confirm(server, request, lease, now)
        case AskRelease():
            return _release(server, request, lease, now)


def _barred(server: Server, run: str, durable: bool, quarantine: int, now: int) -> int:
    """For how long the server is kept out. One that may have lost something is, from now on."""
    restarted = server.run != run
    if server.ready is None or (restarted and not (durable and server.durable)):
        server.ready = now + quarantine
        server.highest = server.base = max(server.ready, server.highest)
        server.run, server.durable = run, durable
        return quarantine
    if restarted or (server.durable and not durable):
        server.run, server.durable = run, durable
    return max(server.ready - now, 0)


def _counter(server: Server, name: str) -> int:
    return max(server.counters.get(name, server.highest), server.base)


def _count(server: Server, name: str, counter: int) -> None:
    """Remember a counter; it never falls."""
    server.counters[name] = max(_counter(server, name), counter)
    server.highest = max(server.highest, counter)


def _grant(server: Server, ask: AskGrant, lease: Lease | None, now: int) -> Reply:
    if lease is not None and lease.holder == ask.holder and lease.counter and lease.round == ask.round:
        return Granted(lease.counter)  # the same request once more
    is_mine = lease is not None and lease.holder == ask.holder and (not lease.counter or lease.round < ask.round)
    if lease is not None and not is_mine and not ask.force:
        return _refuse(server, ask, lease, now)
    counter = max(_counter(server, ask.name) + 1, min(ask.floor, now + AHEAD))
    _count(server, ask.name, counter)
    server.leases[ask.name] = Lease(counter, ask.holder, ask.round, now + math.ceil(ask.ttl * 1e6), ask.about)
    server.queues.get(ask.name, {}).pop(ask.holder, None)
    return Granted(counter)


def _refuse(server: Server, ask: AskGrant, lease: Lease, now: int) -> Occupied:
    rank = 0
    if ask.patience is not None:
        queue = server.queues.setdefault(ask.name, {})
        since = queue[ask.holder].since if ask.holder in queue else ask.since
        queue[ask.holder] = Place(since, now + min(math.ceil(ask.patience * 1e6), LONGEST_PLACE))
        order = sorted(queue, key=lambda holder: (queue[holder].since, holder))
        rank = order.index(ask.holder)
    about = lease.about if lease.counter else ""
    return Occupied(_counter(server, ask.name), (lease.ends - now) / 1e6, lease.counter, about, rank)


def _confirm(server: Server, ask: AskConfirm, lease: Lease | None, now: int) -> Reply:
    if lease is None or lease.holder != ask.holder or not 0 < lease.counter <= ask.token:
        return NotYours()
    _count(server, ask.name, ask.token)
    lease.counter = ask.token
    lease.ends = max(lease.ends, now + math.ceil(ask.ttl * 1e6))
    return Confirmed(ask.token)


def _release(server: Server, ask: AskRelease, lease: Lease | None, now: int) -> Reply:
    queue = server.queues.get(ask.name, {})
    if ask.leave:
        queue.pop(ask.holder, None)
    is_mine = lease is not None and lease.holder == ask.holder
    if lease is None or not is_mine:
        return Returned(False)
    if not lease.counter:  # kept for one who gives up
        if ask.leave:
            _pass_on(server, ask.name, now)
        return Returned(False)
    if lease.round > ask.round:
        return Returned(False)
    if ask.leave:
        _pass_on(server, ask.name, now)
    else:
        del server.leases[ask.name]
    return Returned(True)


def _pass_on(server: Server, name: str, now: int) -> None:
    """Keep the name for the one who waited longest, who is woken; or for nobody."""
    del server.leases[name]
    queue = server.queues.get(name, {})
    while queue:
        first = min(queue, key=lambda holder: (queue[holder].since, holder))
        if queue.pop(first).until > now:
            server.leases[name] = Lease(0, first, 0, now + KEPT)
            return
