"""Who is measured: Leasehold and its peers. Peers run as their documentation shows."""

from __future__ import annotations

from leasehold.bench import peers
from leasehold.bench.contestant import PATIENCE, TTL, AsyncContestant, AsyncOpened, Contestant, Opened
from leasehold.bench.places import Place


def _leasehold(place: Place, name: str, ttl: int = TTL) -> Opened:
    from leasehold import Leasehold

    locks = Leasehold(place.on, namespace=place.namespace)
    lock = locks.lock(name, ttl=ttl, wait=PATIENCE)
    return Opened(lambda: lock, lambda: locks.lock(name, ttl=ttl, wait=PATIENCE), locks.close)


def _leasehold_async(place: Place, name: str) -> AsyncOpened:
    from leasehold import AsyncLeasehold

    locks = AsyncLeasehold(place.on, namespace=place.namespace)
    lock = locks.lock(name, ttl=TTL, wait=PATIENCE)
    return AsyncOpened(lambda: lock, lambda: locks.lock(name, ttl=TTL, wait=PATIENCE), locks.close)


LEASEHOLD = Contestant("leasehold", "Leasehold", "any", None, _leasehold)
LEASEHOLD_ASYNC = AsyncContestant("Leasehold", "any", None, _leasehold_async)
BY_KEY = {one.key: one for one in (LEASEHOLD, *peers.PEERS)}


def peers_at(place: Place, *, contending: bool) -> list[Contestant]:
    """The peers that can be measured at a place: all, or those that can be measured in a crowd."""
    return [peer for peer in peers.PEERS if peer.runs_on(place) and (peer.contends or not contending)]


def async_peers_at(place: Place) -> list[AsyncContestant]:
    """The peers of asyncio code that can be measured at a place."""
    return [peer for peer in peers.ASYNC_PEERS if peer.runs_on(place)]
