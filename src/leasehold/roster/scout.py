"""Asks the engine, within bounds. Knows nothing of what was seen before."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import TYPE_CHECKING

from leasehold.core.engine import NameStatus

if TYPE_CHECKING:
    from leasehold.client import Leasehold

MOST_LOOKS = 1000
"""Names looked at in one round."""
PAGE = 500
"""Names listed at a time; as many as a page of the client's listing has."""
LEAST_LOOKS = 50
"""So many names are looked at in a round even when the engine is slow: otherwise it would never come to an end."""


@dataclass(frozen=True, slots=True)
class Findings:
    """What one round found."""

    at: float
    """When it ended, on the monotonic clock."""
    statuses: dict[str, NameStatus | None] = field(default_factory=dict)
    """What was looked at; None for a name that the engine does not know (any more)."""
    listed: tuple[str, ...] = ()
    listing_ended: bool = False
    """Whether the listing came to its end, so that it begins anew in the next round."""
    seconds: float = 0.0
    """How long the engine was busy with it, as seen from here."""


class Scout:
    """Looks at names, a bounded number at a time. One thread at a time may use it."""

    def __init__(self, locks: Leasehold, *, most: int = MOST_LOOKS) -> None:
        self._locks, self._most = locks, most
        self._listing: Iterator[str] | None = None

    def look(self, first: Iterable[str], rest: Iterable[str] = (), *, known: Container[str], within: float) -> Findings:
        """List some more names; look at these, at the rest, and at those listed that are not `known`, in this order.

        Ends early after `within` seconds.
        """
        began = time.monotonic()
        listed, ended = self._list(began + within / 2)
        found: dict[str, NameStatus | None] = {}
        for name in chain(first, rest, (one for one in listed if one not in known)):
            late = len(found) >= LEAST_LOOKS and time.monotonic() > began + within
            if late or len(found) >= self._most:
                break
            if name not in found:
                found[name] = self._locks.status(name)
        now = time.monotonic()
        return Findings(now, found, listed, ended, now - began)

    def look_at_all(self, wanted: Callable[[str], bool], *, most: int) -> Findings:
        """Look at each name that is wanted, `most` at most, however long it takes."""
        began = time.monotonic()
        names = list(islice(filter(wanted, self._locks.names()), most + 1))
        statuses = {name: self._locks.status(name) for name in names[:most]}
        now = time.monotonic()
        return Findings(now, statuses, tuple(names), listing_ended=len(names) <= most, seconds=now - began)

    def status(self, name: str) -> NameStatus | None:
        """One name, as it is now."""
        return self._locks.status(name)

    def _list(self, until: float) -> tuple[tuple[str, ...], bool]:
        """The next pages of the engine's listing: one, or more while there is time. After an error it begins anew."""
        listing, self._listing = self._listing or self._locks.names(), None
        listed: list[str] = []
        for name in listing:
            listed.append(name)
            if len(listed) % PAGE == 0 and time.monotonic() > until:
                self._listing = listing
                return tuple(listed), False
        return tuple(listed), True
