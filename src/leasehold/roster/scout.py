"""Asks the engine, within bounds. Knows nothing of what was seen before."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import TYPE_CHECKING

from leasehold.core.engine import NameStatus, TellsOfMany
from leasehold.core.worlds import run_blocking
from leasehold.errors import EngineError

if TYPE_CHECKING:
    from leasehold.client import Leasehold
    from leasehold.core.engine import Engine

_Listed = tuple[str, NameStatus | None]
"""A name, and what the engine said of it when it listed it; None: nothing."""

MOST_LOOKS = 1000
"""Names looked at in one round."""
PAGE = 500
"""Names listed at a time; as many as a page of the client's listing has."""
AT_A_TIME = 100
"""Names asked for in one go, where the engine can tell of many."""
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
        self._listing: Iterator[list[_Listed]] | None = None
        self._listed_once = False
        self._at = ""
        """Where the listing goes on after an error, where the engine can tell of many."""

    def look(self, first: Iterable[str], rest: Iterable[str] = (), *, known: Container[str], within: float) -> Findings:
        """List some more names; look at these, at the rest, and at those listed that are not `known`, in this order.

        Ends early after `within` seconds.
        """
        began, at = time.monotonic(), self._at
        listed, ended = self._list(began + within / 2)
        try:
            statuses = self._look(first, rest, listed, known=known, until=began + within)
        except EngineError:
            self._listing, self._at = None, at  # what was listed is not told to anybody
            raise
        now = time.monotonic()
        return Findings(now, statuses, tuple(name for name, _ in listed), ended, now - began)

    def _look(
        self,
        first: Iterable[str],
        rest: Iterable[str],
        listed: list[_Listed],
        *,
        known: Container[str],
        until: float,
    ) -> dict[str, NameStatus | None]:
        told = {name: status for name, status in listed if status is not None}
        found: dict[str, NameStatus | None] = {}
        for some in self._at_a_time(chain(first, rest, (name for name, _ in listed if name not in known))):
            late = len(found) >= LEAST_LOOKS and time.monotonic() > until
            if late or len(found) >= self._most:
                break
            found.update(self._statuses([name for name in some if name not in found][: self._most - len(found)], told))
        return {**told, **found}

    def look_at_all(self, wanted: Callable[[str], bool], *, most: int) -> Findings:
        """Look at each name that is wanted, `most` at most, however long it takes."""
        began, self._at = time.monotonic(), ""
        listed = list(islice((one for page in self._pages() for one in page if wanted(one[0])), most + 1))
        told = {name: status for name, status in listed if status is not None}
        statuses = self._statuses([name for name, _ in listed[:most]], told)
        now = time.monotonic()
        names = tuple(name for name, _ in listed)
        return Findings(now, statuses, names, listing_ended=len(listed) <= most, seconds=now - began)

    def status(self, name: str) -> NameStatus | None:
        """One name, as it is now."""
        return self._locks.status(name)

    def _list(self, until: float) -> tuple[list[_Listed], bool]:
        """The next pages of the engine's listing: one, or more while there is time.

        Where they bring along what is to be known of names, one is enough once all were seen.
        """
        listing, self._listing = self._listing or self._pages(), None
        listed: list[_Listed] = []
        try:
            for page in listing:
                listed += page
                enough = self._listed_once and len(listed) >= PAGE and listed[0][1] is not None
                if enough or time.monotonic() > until:
                    self._listing = listing
                    return listed, False
        except EngineError:
            if not listed:
                raise
            return listed, False  # a slow engine would never be listed to the end otherwise
        self._listed_once = True
        return listed, True

    def _pages(self) -> Iterator[list[_Listed]]:
        """All names, page by page, or those that an error has cut off, with what the engine tells in passing."""
        engine = self._engine
        if not isinstance(engine, TellsOfMany):
            names = self._locks.names()
            while page := list(islice(names, PAGE)):
                yield [(name, None) for name in page]
            return
        while True:
            statuses, self._at = run_blocking(engine.roll(at=self._at, until=self._locks._until()))
            yield [(one.name, one) for one in statuses]
            if not self._at:
                return

    def _statuses(self, names: list[str], told: dict[str, NameStatus]) -> dict[str, NameStatus | None]:
        """Each of these names, as it was told just now or as it is."""
        found: dict[str, NameStatus | None] = {name: told[name] for name in names if name in told}
        missing, engine = [name for name in names if name not in told], self._engine
        if isinstance(engine, TellsOfMany):
            statuses = run_blocking(engine.statuses(missing, until=self._locks._until()))
        else:
            statuses = [self._locks.status(name) for name in missing]
        return found | dict(zip(missing, statuses, strict=True))

    def _at_a_time(self, names: Iterable[str]) -> Iterator[list[str]]:
        """The names in bunches as large as the engine is asked for at a time."""
        size = AT_A_TIME if isinstance(self._engine, TellsOfMany) else 1
        iterator = iter(dict.fromkeys(names))
        while some := list(islice(iterator, size)):
            yield some

    @property
    def _engine(self) -> Engine:
        return self._locks._desk.engine
