"""What was seen of each name, and what changed since it was last looked at."""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Literal, NamedTuple

from leasehold.core.engine import HolderStatus, NameStatus
from leasehold.roster.scout import MOST_LOOKS, Findings
from leasehold.roster.views import State, Totals, View

MOST_NAMES = 100_000
"""More names than this are not kept; the roster then says that there are more."""
MOST_QUEUES = 1000
"""Names of which the length of the queue is remembered over time."""
MOST_POINTS = 360
SAMPLE_EVERY = 5.0
"""Seconds between two points of the picture over time: together they are half an hour."""
MOST_EVENTS = 200


class Row(NamedTuple):
    """One name as it was last seen."""

    status: NameStatus
    seen: float
    """When, on the monotonic clock."""
    longest: tuple[tuple[int, float], ...] = ()
    """For each holder's token the longest time left that was seen: about its TTL."""

    def at(self, now: float) -> NameStatus:
        """The status with its times run on until now, as if nobody had renewed."""
        gone = max(now - self.seen, 0.0)
        return self.status._replace(
            holders=tuple(
                one._replace(held_for=one.held_for + gone, expires_in=max(one.expires_in - gone, 0.0))
                for one in self.status.holders
            ),
            waiters=tuple(
                one._replace(waited_for=one.waited_for + gone, patience_left=max(one.patience_left - gone, 0.0))
                for one in self.status.waiters
            ),
            closed_for=max(self.status.closed_for - gone, 0.0),
        )

    @property
    def overdue(self) -> bool:
        """Whether a lease was seen to have less than half of its time left: its keeper renews it much sooner."""
        longest = dict(self.longest)
        return any(one.expires_in < longest.get(one.token, 0.0) / 2 for one in self.status.holders)

    @property
    def state(self) -> State:
        """What matters of it in one word."""
        if self.status.holders:
            return "overdue" if self.overdue else "held"
        return "closed" if self.status.closed_for else "free"

    @property
    def time_left(self) -> float | None:
        """Until its first lease would end, at the time when it was seen."""
        return min((one.expires_in for one in self.status.holders), default=None)


class Event(NamedTuple):
    """Something that happened to a name, as far as could be seen."""

    at: float
    """Wall-clock time."""
    kind: Literal["ran out", "broken"]
    name: str
    token: int
    about: str
    """Who held it."""


class Sample(NamedTuple):
    """How much there was at one time."""

    at: float
    """Wall-clock time."""
    names: int
    holders: int
    waiters: int
    overdue: int


class Roster:
    """The names that are held or waited for. Not for several threads at once: `Scout` does what takes time."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        self.complete = False
        """Whether the engine's listing was gone through at least once, and each name in it looked at."""
        self.more = False
        """Whether there are more names than are kept."""
        self.seconds = 0.0
        """How long the latest round kept the engine busy."""
        self.events: deque[Event] = deque(maxlen=MOST_EVENTS)
        self.lost = 0
        """Leases that were seen to run out unreleased."""
        self.samples: deque[Sample] = deque(maxlen=MOST_POINTS)
        self._listed_once = False
        self._new: dict[str, None] = {}
        self._queues: dict[str, deque[tuple[float, int]]] = {}
        self._sampled = float("-inf")

    # Which names to look at

    def due(self, view: View, *, now: float, most: int = MOST_LOOKS) -> list[str]:
        """The names to look at in the next round, the most pressing first: new ones, and of those the wanted ones."""
        wanted = [name for name in self._new if view.shows_name(name)]
        others = dict.fromkeys(wanted[:most])
        if len(others) < most:
            others.update(dict.fromkeys(islice(self._new, most)))
        room = max(most - len(others), 0)
        oldest = heapq.nsmallest(room, self.rows.items(), key=lambda item: self._pressing(item[1], now))
        others.update(dict.fromkeys(name for name, _ in oldest))
        return list(others)[:most]

    @staticmethod
    def _pressing(row: Row, now: float) -> tuple[int, float]:
        left = row.time_left
        ended = left is not None and row.seen + left <= now
        return (0 if ended else 1 if row.status.waiters else 2, row.seen)

    # What was found

    def note(self, found: Findings) -> None:
        """Take in what a round found."""
        for name, status in found.statuses.items():
            self._new.pop(name, None)
            self._note(name, status, found.at)
        for name in found.listed:
            if name not in self.rows and name not in found.statuses:
                if len(self.rows) + len(self._new) >= MOST_NAMES:
                    self.more = True
                    break
                self._new[name] = None
        self._listed_once = self._listed_once or found.listing_ended
        self.complete = self.complete or (self._listed_once and not self._new)
        self.seconds = found.seconds
        if found.at - self._sampled >= SAMPLE_EVERY:
            self._sampled = found.at
            totals = self.totals()
            self.samples.append(Sample(time.time(), totals.names, totals.holders, totals.waiters, totals.overdue))

    def _note(self, name: str, status: NameStatus | None, at: float) -> None:
        before = self.rows.get(name)
        if before is not None:
            self._note_endings(before, status, at)
        if status is None or not (status.holders or status.waiters or status.closed_for):
            self.rows.pop(name, None)
        elif before is not None or len(self.rows) < MOST_NAMES:
            seen = dict(before.longest) if before is not None else {}
            longest = tuple((one.token, max(seen.get(one.token, 0.0), one.expires_in)) for one in status.holders)
            self.rows[name] = Row(status, at, longest)
        self._note_queue(name, len(status.waiters) if status is not None else 0)

    def _note_endings(self, before: Row, status: NameStatus | None, at: float) -> None:
        held = {one.token for one in status.holders} if status is not None else set()
        for one in before.status.holders:
            if one.token not in held and self._ran_out(before, one, status, at):
                self.lost += 1
                self.events.append(Event(time.time(), "ran out", before.status.name, one.token, one.about))

    @staticmethod
    def _ran_out(before: Row, one: HolderStatus, status: NameStatus | None, at: float) -> bool:
        """Whether a lease that is gone ran out, rather than being released.

        The engine does not say. It did when the name is closed for a lock-delay now, and surely enough when it had
        missed its renewal when it was last seen, and its end has passed since.
        """
        closed = status is not None and status.closed_for > 0 and not before.status.closed_for
        ended = before.seen + one.expires_in <= at
        return closed or (ended and one.expires_in < dict(before.longest).get(one.token, 0.0) / 2)

    def _note_queue(self, name: str, waiters: int) -> None:
        queue = self._queues.get(name)
        if queue is None:
            if not waiters:
                return
            while len(self._queues) >= MOST_QUEUES:
                del self._queues[next(iter(self._queues))]  # the one whose queue began longest ago
            queue = self._queues[name] = deque(maxlen=MOST_POINTS)
        queue.append((time.time(), waiters))

    def broken(self, status: NameStatus) -> None:
        """Take in that the leases on a name were ended by force."""
        for one in status.holders:
            self.events.append(Event(time.time(), "broken", status.name, one.token, one.about))
        self.rows.pop(status.name, None)
        self._new[status.name] = None

    # What is known

    @property
    def known(self) -> frozenset[str]:
        """The names that need not be looked at first because they are new."""
        return frozenset(self.rows) | frozenset(self._new)

    def queue_over_time(self, name: str) -> Sequence[tuple[float, int]]:
        """Wall-clock times and how many waited, for a name that somebody waited for."""
        return tuple(self._queues.get(name, ()))

    def totals(self) -> Totals:
        """All of it in one line."""
        rows = self.rows.values()
        return Totals(
            names=len(self.rows) + len(self._new),
            unseen=len(self._new),
            holders=sum(len(row.status.holders) for row in rows),
            waiters=sum(len(row.status.waiters) for row in rows),
            waited_for=sum(1 for row in rows if row.status.waiters),
            overdue=sum(1 for row in rows if row.overdue),
            closed=sum(1 for row in rows if row.status.closed_for),
            longest_wait=max((one.waited_for for row in rows for one in row.status.waiters), default=0.0),
            least_left=min((left for row in rows if (left := row.time_left) is not None), default=None),
            lost=self.lost,
        )

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows.values())
