"""Many histories: runs seeds, over several processes if asked to, and counts what they showed."""

from __future__ import annotations

import gc
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial

from leasehold.sim.connection_judges import collision, connection
from leasehold.sim.engine_mutations import mutations_of
from leasehold.sim.history import Fault, Got, History, Told, Touched
from leasehold.sim.judges import Violation, judge_record, lost_updates
from leasehold.sim.many import spread
from leasehold.sim.mutating import planted
from leasehold.sim.plan import TABLE
from leasehold.sim.queue_judges import given, turns
from leasehold.sim.record import Record
from leasehold.sim.simulation import Simulation


@dataclass(slots=True)
class Tally:
    """What many histories showed together."""

    histories: int = 0
    events: int = 0
    leases: int = 0
    losses_told: int = 0
    stale_refused: int = 0
    updates_lost: Counter[str] = field(default_factory=Counter)
    """For each kind of fence."""
    faults: Counter[str] = field(default_factory=Counter)
    violations: list[tuple[int, Violation]] = field(default_factory=list)
    """With their seeds."""

    def add(self, other: Tally) -> None:
        """Count another's too."""
        self.histories += other.histories
        self.events += other.events
        self.leases += other.leases
        self.losses_told += other.losses_told
        self.stale_refused += other.stale_refused
        self.updates_lost += other.updates_lost
        self.faults += other.faults
        self.violations = sorted(self.violations + other.violations, key=lambda one: (one[0], one[1].at))


def run(seed: int, mutation: str | None = None, engine: str = TABLE.engine) -> tuple[History, list[Violation]]:
    """One history and what the judges say of it."""
    with planted(mutations_of(engine)[mutation]) if mutation else nullcontext(), _unheard():
        history = Simulation(seed, engine).run()
    return history, judged(Record(history))


@contextmanager
def _unheard() -> Iterator[None]:
    """What the library has to say about simulated trouble is of no use to people."""
    log = logging.getLogger("leasehold")
    was, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = was


def judged(record: Record) -> list[Violation]:
    """What all judges say, those of queues among them where the engine has one."""
    found = judge_record(record)
    if record.plan.engine != TABLE.engine:
        found += [*turns(record), *given(record), *connection(record), *collision(record)]
        found.sort(key=lambda violation: violation.at)
    return found


def explore(
    seeds: range,
    *,
    engine: str = TABLE.engine,
    jobs: int = 1,
    mutation: str | None = None,
    progress: Callable[[Tally], object] = lambda _tally: None,
) -> Tally:
    """Run all the seeds; `progress` is called now and then with what there is so far."""
    total = Tally()
    for part in spread(partial(_run_chunk, engine=engine, mutation=mutation), seeds, jobs):
        total.add(part)
        progress(total)
    return total


def first_caught(mutation: str, seeds: Iterable[int], engine: str = TABLE.engine) -> tuple[int, Violation] | None:
    """The first seed at which a judge who should condemns the mutation, and why; None if there is none."""
    bug = mutations_of(engine)[mutation]
    judges = bug.caught_by
    with planted(bug):
        for seed in seeds:
            for violation in judged(Record(Simulation(seed, engine).run())):
                if violation.judge in judges:
                    return seed, violation
    return None


def _run_chunk(seeds: range, *, engine: str, mutation: str | None) -> Tally:
    tally = Tally()
    collecting = gc.isenabled()
    gc.disable()  # a history leaves cycles; collecting them once for all is quicker
    try:
        with planted(mutations_of(engine)[mutation]) if mutation else nullcontext(), _unheard():
            for seed in seeds:
                _count(tally, seed, Simulation(seed, engine).run())
    finally:
        if collecting:
            gc.enable()
        gc.collect()
    return tally


def _count(tally: Tally, seed: int, history: History) -> None:
    record = Record(history)
    tally.histories += 1
    tally.events += len(history.events)
    tally.leases += len(record.of(Got))
    tally.losses_told += len({event.holder for event in record.of(Told)})
    tally.stale_refused += sum(not event.accepted for event in record.of(Touched))
    for kind in ("none", "writes", "both"):
        tally.updates_lost[kind] += lost_updates(record, kind)
    tally.faults.update(event.kind for event in record.of(Fault))
    tally.faults.update(kind for kind in history.plan.kinds if kind in PROPERTIES)
    tally.violations += [(seed, violation) for violation in judged(record)]


PROPERTIES = frozenset({"delay", "loss", "duplicate", "deaf", "drift", "wild", "collision"})
"""Kinds of faults that are properties of a whole history; they are counted once for each."""
