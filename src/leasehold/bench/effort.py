"""How much work a run does, and how it shows that it is under way."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leasehold.bench.results import Finding

if TYPE_CHECKING:
    from rich.progress import Progress

    from leasehold.bench.places import Place

Advance = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Effort:
    """The size of every part of a run. Durations are in seconds."""

    name: str
    rounds: int
    pairs: int
    """Take + release so many times in each round."""
    crew: int
    """Processes that contend for one name."""
    rush_rounds: int
    rush: float
    """A round in which holders do nothing but hand on."""
    work_rounds: int
    work: float
    """A round in which holders work for `BODY`."""
    waiters: int
    """Idle waiters in each process of the crew."""
    idle: float
    leases: int
    leases_ttl: float
    async_waiters: int
    async_idle: float
    reached_within: float
    """How long it may take until so many leases are held, or so many tasks wait."""
    stuck_after: float
    """How long the queue may stand still before the rest of it is given up."""
    imports: int


FULL = Effort(
    "full",
    rounds=100,
    pairs=40,
    crew=8,
    rush_rounds=8,
    rush=0.8,
    work_rounds=6,  # a second has some 170 hand-overs: of fewer rounds the slowest hundredth would be a matter of luck
    work=2.0,
    waiters=8,
    idle=80.0,  # longer than a waiter is ever silent, so that every one of them was heard
    leases=10_000,
    leases_ttl=10.0,
    async_waiters=10_000,
    async_idle=5.0,
    reached_within=120.0,
    stuck_after=30.0,
    imports=15,
)
QUICK = Effort(
    "quick",
    rounds=25,
    pairs=20,
    crew=4,  # starting processes is what takes the time
    rush_rounds=2,
    rush=0.4,
    work_rounds=1,
    work=0.8,
    waiters=16,
    idle=2.0,
    leases=1_000,
    leases_ttl=1.5,
    async_waiters=500,
    async_idle=0.5,
    reached_within=30.0,
    stuck_after=10.0,
    imports=3,
)


class Steps:
    """Shows how far each part is, on a terminal; elsewhere nothing."""

    def __init__(self, progress: Progress | None = None) -> None:
        self._progress = progress

    @contextlib.contextmanager
    def of(self, title: str, total: int) -> Iterator[Advance]:
        """A part of `total` steps; call what is given after each."""
        if self._progress is None:
            yield lambda: None
            return
        task = self._progress.add_task(title, total=total)
        progress = self._progress
        try:
            yield lambda: progress.advance(task)
        finally:
            progress.remove_task(task)


@dataclass(frozen=True, slots=True)
class Run:
    """What every section is given."""

    places: list[Place]
    effort: Effort
    steps: Steps


Measure = Callable[[Run], Finding]
