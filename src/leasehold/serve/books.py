"""What others wrote down with the engine: the books of jobs, and the journal of refused writes. Only reads.

Both are there only where somebody wrote them, and only on engines that keep notes. They are read a bounded number at a
time, like names.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from leasehold.core.worlds import run_blocking
from leasehold.errors import EngineError, NotSupported
from leasehold.patterns.jobs.jobs import JobStatus, status_of
from leasehold.patterns.jobs.ledger import book_of, registered
from leasehold.patterns.jobs.shelves import Shelf, notes_with
from leasehold.telemetry.journal import Told, told

if TYPE_CHECKING:
    from leasehold.client import Leasehold

MOST_JOBS: Final = 1000
"""More jobs than this are not kept."""
MOST_READ: Final = 100
"""Books read in one round."""
MOST_IN_OVERVIEW: Final = 50
LEAST_PAUSE: Final = 2.0
"""Seconds between two rounds: jobs do not change as often as leases."""

JobState = Literal["under way", "silent", "waits", "done", "failed", "crashed", "replaced", "new"]
JOB_STATES: Final[tuple[JobState, ...]] = get_args(JobState)
RunState = Literal["done", "overran", "failed", "crashed", "replaced"]
RUN_STATES: Final[tuple[RunState, ...]] = get_args(RunState)


class Books:
    """The books and the journal, as they were when last read. One thread at a time may read."""

    def __init__(self, locks: Leasehold, namespace: str) -> None:
        self._locks, self._namespace = locks, namespace
        self._notes: Shelf | None = None
        self.kept = True
        """Whether the engine keeps such things at all."""
        self.problem: str | None = None
        """Why they cannot be read now."""
        self.jobs: dict[str, JobStatus] = {}
        self.more = False
        """Whether there are more jobs than are kept."""
        self.journal: Told | None = None
        self._clock = 0.0
        """How far the store's clock is ahead of this machine's monotonic one."""
        self._unread: list[str] = []
        self._next = float("-inf")

    def read(self, *, within: float) -> None:
        """Read some more books, and the journal; ends early after `within` seconds."""
        began = time.monotonic()
        if not self.kept or began < self._next:
            return
        self._next = began + LEAST_PAUSE
        try:
            self._notes = self._notes or notes_with(self._locks._family, "leasehold-serve")
        except NotSupported:
            self.kept = False
            return
        try:
            self._read(self._notes, began + within)
            self.problem = None
        except EngineError as error:
            # Names can be watched all the same: this user may be allowed less, or the store be another one's.
            self.problem = str(error)
            self.close()  # the next round connects anew

    def _read(self, notes: Shelf, until: float) -> None:
        self.journal = run_blocking(told(notes, self._namespace))
        now, names = run_blocking(registered(notes, self._namespace))
        self._clock = now - time.monotonic()
        self.more = len(names) > MOST_JOBS
        names = names[:MOST_JOBS]
        self._unread = [name for name in self._unread if name in set(names)] or names
        some, self._unread = self._unread[:MOST_READ], self._unread[MOST_READ:]
        jobs = dict(self.jobs)  # others read them meanwhile
        for number, name in enumerate(some):
            if number and time.monotonic() > until:
                self._unread = some[number:] + self._unread
                break
            book = run_blocking(book_of(notes, self._namespace, name))
            if book is None:
                jobs.pop(name, None)
            else:
                jobs[name] = status_of(name, book, self.now)
        known = set(names)
        self.jobs = {name: job for name, job in jobs.items() if name in known}

    def close(self) -> None:
        """Give back the connection."""
        if self._notes is not None:
            self._notes.close()
            self._notes = None

    # What is shown

    @property
    def now(self) -> float:
        """The store's clock."""
        return self._clock + time.monotonic()

    def overview(self) -> dict[str, Any]:
        """The part of the overview that comes from here; see the schema `Overview`."""
        jobs = list(self.jobs.values())
        return {
            "jobs": self.page("", 0, MOST_IN_OVERVIEW)["jobs"],
            "job_totals": {
                "jobs": len(jobs),
                "more": self.more,
                "under_way": sum(job.is_alive for job in jobs),
                "behind": sum(1 for job in jobs if is_behind(job)),
                "overruns": sum(overruns(job) for job in jobs),
                "missed": sum(job.missed_in_all for job in jobs),
            },
            "books_problem": self.problem,
            "refused": None if self.journal is None else self._refused(self.journal),
        }

    def page(self, text: str, start: int, limit: int) -> dict[str, Any]:
        """A page of jobs, those that need somebody first; see the schema `Jobs`."""
        folded = text.casefold()
        wanted = sorted((job for job in self.jobs.values() if folded in job.name.casefold()), key=_attention)
        rows = [self._row(job) for job in wanted[start : start + limit]]
        return {"jobs": rows, "matching": len(wanted), "start": start}

    def _row(self, job: JobStatus) -> dict[str, Any]:
        last, now = job.runs[-1] if job.runs else None, self.now
        working = job.under_way if job.under_way is not None and job.under_way.run else None
        return {
            "name": job.name,
            "schedule": job.schedule,
            "state": state_of(job),
            "by": working.by if working else last.by if last else "",
            "running_for": _seconds(now - working.began) if working else None,
            "ended_ago": _seconds(now - last.ended) if last else None,
            "took": _seconds(last.ended - last.began) if last else None,
            "error": last.error if last else "",
            "behind": job.behind,
            "overruns": overruns(job),
            "missed": job.missed_in_all,
            "recent": ["overran" if run.overran else run.state for run in job.runs],
        }

    def job(self, name: str) -> dict[str, Any] | None:
        """One job with its runs and its reports; see the schema `Job`. What runs know and return is not told."""
        job = self.jobs.get(name)
        if job is None:
            return None
        told_of_run = ("tick", "state", "by", "began", "ended", "attempt", "error", "overran")
        return {
            **self._row(job),
            "settled": job.settled.isoformat() if job.settled else None,
            "runs": [{one: getattr(run, one) for one in told_of_run} for run in reversed(job.runs)],
            "reports": [
                {"first": one.first, "last": one.last, "count": one.count, "why": one.why, "at": one.at}
                for one in reversed(job.missed)
            ],
        }

    def _refused(self, journal: Told) -> dict[str, Any]:
        last = [
            {**one._asdict(), "token": str(one.token), "seen": None if one.seen is None else str(one.seen)}
            for one in reversed(journal.last)
        ]
        return {**journal.counts, "last": last}


def overruns(job: JobStatus) -> int:
    """How many of the runs that the book still has took longer than there was time until the next tick."""
    return sum(run.overran for run in job.runs)


def is_behind(job: JobStatus) -> bool:
    """Whether more than the tick of this moment is due."""
    return (job.behind or 0) > 1


def state_of(job: JobStatus) -> JobState:
    """What a job is doing, or how its last run ended."""
    if job.under_way is not None and job.under_way.run:
        return "under way" if job.is_alive else "silent"
    if job.under_way is not None:
        return "waits"
    return job.runs[-1].state if job.runs else "new"


def by_group(jobs: Iterable[JobStatus], group: Any) -> dict[str, tuple[int, int]]:
    """For each group of jobs the most ticks that one is behind, and the ticks that all have missed."""
    found: dict[str, tuple[int, int]] = {}
    for job in jobs:
        behind, missed = found.get(group(job.name), (0, 0))
        found[group(job.name)] = (max(behind, job.behind or 0), missed + job.missed_in_all)
    return found


def _attention(job: JobStatus) -> tuple[object, ...]:
    """Silent or behind, then failing, then those that have missed ticks, then the rest by name."""
    state = state_of(job)
    return (
        not (state == "silent" or is_behind(job)),
        state not in ("waits", "failed", "crashed"),
        not job.missed_in_all,
        job.name,
    )


def _seconds(value: float) -> float:
    return round(max(value, 0.0), 3)
