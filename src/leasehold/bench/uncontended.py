"""Take and release a name that nobody else wants: in rounds, each contestant in turn, as ratios to the floor."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from leasehold.bench.apart import apart
from leasehold.bench.contestant import AsyncContestant, AsyncOpened, AsyncUse, Use
from leasehold.bench.contestants import LEASEHOLD, LEASEHOLD_ASYNC, async_peers_at, peers_at
from leasehold.bench.effort import Run
from leasehold.bench.figures import in_turn, quantile, spread
from leasehold.bench.floors import floor_of
from leasehold.bench.places import Place
from leasehold.bench.results import Aim, Figure, Finding, Row, Table

RATIO, MIDDLE, SLOWEST, PROCESSOR = "floors (p10-p90)", "p50 µs", "p99 µs", "processor µs"
FRESH = "Leasehold, a lock object for each use"
APART = "The server was kept off the processor that measures, as if it were another machine."
AIMS = {
    "redis": (1.3, 2.5),
    "redlock": (1.5, None),
    "sqlite": (1.3, None),
    "postgresql": (1.3, None),
    "mysql": (1.3, None),
    "etcd": (1.3, None),
    "consul": (1.3, None),
    "zookeeper": (1.3, None),
}
"""For each engine, the aims of blocking and of asyncio code."""


@dataclass(slots=True)
class Lane:
    """One contestant, ready to run, with what it took in each round (nanoseconds a pair)."""

    label: str
    run: Callable[[int], list[int]]
    close: Callable[[], object]
    rounds: list[list[int]] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    """What a pair took of this process's processor time in each round: who looks for an answer instead of sleeping
    is sooner there, and pays for it."""

    def round(self, pairs: int) -> None:
        """Take part in one round."""
        began = time.process_time_ns()
        self.rounds.append(self.run(pairs))
        self.processor.append((time.process_time_ns() - began) / pairs)

    @property
    def means(self) -> list[float]:
        """What a pair took in each round."""
        return [sum(pairs) / len(pairs) for pairs in self.rounds]

    def ratios_to(self, floor: Lane) -> list[float]:
        """Round by round, so that what slowed down a round slowed down both."""
        return [mine / its for mine, its in zip(self.means, floor.means, strict=True)]


def measure(run: Run) -> Finding:
    """Every engine, every contestant that runs there."""
    finding = Finding([], [])
    for place in run.places:
        with asyncio.Runner() as runner:
            lanes = _lanes(place, runner)
            try:
                _warm_up(lanes, run.effort.pairs)
                with (
                    run.steps.of(f"take + release on {place.engine}", run.effort.rounds * len(lanes)) as advance,
                    apart() if place.is_server_of_ours else contextlib.nullcontext(False) as is_apart,
                ):
                    for _number, lane in in_turn(lanes, run.effort.rounds):
                        lane.round(run.effort.pairs)
                        advance()
            finally:
                for lane in lanes:
                    lane.close()
        table, aims = _table(place, lanes, has_floor=floor_of(place) is not None)
        if is_apart:
            table.notes.append(APART)
        finding.tables.append(table)
        finding.aims.extend(aims)
    return finding


def _warm_up(lanes: list[Lane], pairs: int) -> None:
    for lane in lanes:
        lane.run(pairs)


def _lanes(place: Place, runner: asyncio.Runner) -> list[Lane]:
    """The floor first, where there is one; Leasehold, blocking and asyncio, with one lock object and many; peers."""
    lanes = []
    floor = floor_of(place)
    for contestant in (*([floor] if floor else []), LEASEHOLD, *peers_at(place, contending=False)):
        opened = contestant.open(place, "uncontended")
        lanes.append(Lane(contestant.label, _blocking(opened.again), opened.close))
        if contestant is LEASEHOLD:
            lanes.append(Lane(FRESH, _blocking(opened.fresh), lambda: None))
    for entrant in (LEASEHOLD_ASYNC, *async_peers_at(place)):
        lanes += _async_lanes(entrant, place, runner)
    return lanes


def _async_lanes(entrant: AsyncContestant, place: Place, runner: asyncio.Runner) -> list[Lane]:
    async def open_in_loop() -> AsyncOpened:
        return entrant.open(place, "uncontended-asyncio")

    opened = runner.run(open_in_loop())

    async def close() -> None:
        await opened.close()

    lanes = [Lane(f"{entrant.label} (asyncio)", _in_loop(opened.again, runner), lambda: runner.run(close()))]
    if entrant is LEASEHOLD_ASYNC:
        lanes.append(Lane(f"{FRESH} (asyncio)", _in_loop(opened.fresh, runner), lambda: None))
    return lanes


def _blocking(use: Use) -> Callable[[int], list[int]]:
    def run(pairs: int) -> list[int]:
        clock = time.perf_counter_ns
        taken = []
        for _ in range(pairs):
            began = clock()
            with use():
                pass
            taken.append(clock() - began)
        return taken

    return run


def _in_loop(use: AsyncUse, runner: asyncio.Runner) -> Callable[[int], list[int]]:
    async def run(pairs: int) -> list[int]:
        clock = time.perf_counter_ns
        taken = []
        for _ in range(pairs):
            began = clock()
            async with use():
                pass
            taken.append(clock() - began)
        return taken

    return lambda pairs: runner.run(run(pairs))


def _table(place: Place, lanes: list[Lane], *, has_floor: bool) -> tuple[Table, list[Aim]]:
    rows = []
    for lane in lanes:
        every = [pair / 1000 for pairs in lane.rounds for pair in pairs]
        figures = {MIDDLE: Figure(quantile(every, 0.5), "us"), SLOWEST: Figure(quantile(every, 0.99), "us")}
        figures[PROCESSOR] = Figure(quantile(lane.processor, 0.5) / 1000, "us")
        if has_floor:
            figures[RATIO] = Figure.of(spread(lane.ratios_to(lanes[0])), "floors")
        rows.append(Row(lane.label, figures))
    table = Table(
        "uncontended",
        f"Take + release, uncontended, on {place.engine}",
        [RATIO, MIDDLE, SLOWEST, PROCESSOR],
        rows,
        ["A ratio is the median over rounds of what a pair took, to what it took the floor in the same round."],
    )
    return table, _aims(place, table) if has_floor else []


def _aims(place: Place, table: Table) -> list[Aim]:
    ratios = {row.who: row.figures[RATIO] for row in table.rows}
    if place.engine not in AIMS:
        return []
    blocking, in_asyncio = AIMS[place.engine]
    aims = [Aim(f"take + release on {place.engine}, blocking", "at most", blocking, ratios[LEASEHOLD.label])]
    if in_asyncio is not None:
        label = f"{LEASEHOLD_ASYNC.label} (asyncio)"
        aims.append(Aim(f"take + release on {place.engine}, asyncio", "at most", in_asyncio, ratios[label]))
    return aims
