"""What a person may know of a name, from what several servers keep for it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeVar

from leasehold.core.engine import HolderStatus, NameStatus, WaiterStatus
from leasehold.core.quorum import Occupied, majority_of

_LEASE: Final = re.compile(rb"(\d{1,16}) (\S+) (\d{1,16}) (\d{1,16}) (.*)", re.DOTALL)
_PLACE: Final = re.compile(rb"(\d{1,16}) (\S+) (.*)", re.DOTALL)
HasToken = TypeVar("HasToken", HolderStatus, Occupied)


class Seen(NamedTuple):
    """What one server keeps for a name."""

    counter: int
    known: bool
    holder: bytes | None
    status: HolderStatus | None
    waiters: dict[bytes, WaiterStatus]


def seen_from(reply: Any) -> Seen | None:
    """Read a server's answer; None when it was not written by our scripts."""
    match reply:
        case [bytes(now_text), bytes() | None as lease, int(left), bytes(fence), list(queue), list(places)]:
            pass
        case _:
            return None
    if not now_text.isdigit() or not fence.isdigit():
        return None
    now = int(now_text)
    match_lease = _LEASE.fullmatch(lease) if lease is not None else None
    if lease is not None and match_lease is None:
        return None
    holder, status = None, None
    if match_lease is not None and int(match_lease[1]):
        token, holder, _, since, about = match_lease.groups()
        held_for = max(now - int(since), 0) / 1e6
        status = HolderStatus(int(token), "exclusive", about.decode("utf-8", "replace"), held_for, max(left, 0) / 1000)
    waiters = _waiters(queue, places, now)
    return Seen(int(fence), lease is not None or bool(waiters), holder, status, waiters)


def _waiters(queue: list[Any], places: list[Any], now: int) -> dict[bytes, WaiterStatus]:
    kept = dict(zip(places[::2], places[1::2], strict=True))
    waiters = {}
    for member, score in zip(queue[::2], queue[1::2], strict=True):
        place = _PLACE.fullmatch(kept.get(member, b""))
        if place is not None and int(place[1]) > now:
            waited = max(now - int(float(score)), 0) / 1e6
            waiters[member] = WaiterStatus(
                "exclusive", place[3].decode("utf-8", "replace"), waited, (int(place[1]) - now) / 1e6
            )
    return waiters


def accepted(its: Sequence[HasToken], servers: int) -> HasToken:
    """What servers say of one holder, with the token that a majority has accepted.

    A server whose answer came late may have granted under another counter, which the holder does not know: a higher
    one where it has counted on for other names, and hardly ever a lower one. So where no token has a majority, the
    lowest is the likely one, of those that answered; where all have, nothing was accepted yet, and the highest will be.
    """
    tokens = Counter(one.token for one in its)
    sign = 1 if len(its) == servers else -1
    return max(its, key=lambda one: (tokens[one.token] >= majority_of(servers), sign * one.token))


def _highest_minted(counters: Sequence[int], servers: int) -> int:
    """The highest token that a majority can have accepted, as far as the servers that answered tell.

    A token was minted only when a majority accepted it, and a counter never falls: all but those that did not answer
    stand at it or above. A single server may have counted on, for a grant that came late or to one who was beaten.
    """
    silent = servers - len(counters)
    return sorted(counters, reverse=True)[max(majority_of(servers) - silent, 1) - 1]


def merged(name: str, seen: Sequence[Seen], servers: int) -> NameStatus | None:
    """What the servers know together: who holds at a majority of them, and who waits at any."""
    if not any(one.known for one in seen):
        return None
    needed = majority_of(servers)
    holders = []
    for holder in {one.holder for one in seen if one.holder is not None}:
        its = [one.status for one in seen if one.holder == holder and one.status is not None]
        if len(its) >= needed:
            # The majority's view: with its longest-lasting servers gone, so is the lease.
            ends = sorted((status.expires_in for status in its), reverse=True)[needed - 1]
            holders.append(accepted(its, servers)._replace(expires_in=ends))
    waiting: dict[bytes, WaiterStatus] = {}
    for one in seen:
        waiting.update(one.waiters)
    longest_first = sorted(waiting.values(), key=lambda waiter: -waiter.waited_for)
    minted = _highest_minted([one.counter for one in seen], servers)
    token = max(minted, *(holder.token for holder in holders)) if holders else minted
    return NameStatus(name, token, tuple(holders), tuple(longest_first))
