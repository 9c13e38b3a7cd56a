"""Each pattern beside the library that people use today for the same: the same operation, in turns.

The library is what a ratio is to; where a library does less than the pattern does, a note below the table says what.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.util
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from leasehold.bench.effort import Run
from leasehold.bench.figures import in_turn, quantile, spread
from leasehold.bench.places import Place
from leasehold.bench.results import Figure, Finding, Row, Table

RATIO, MIDDLE, SLOWEST = "to the library (p10-p90)", "p50 µs", "p99 µs"
Use = Callable[[int], object]
"""Does the operation once, given a number that it gets only once."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One operation, done by a library (the first) and by Leasehold."""

    title: str
    uses: Mapping[str, Use]
    notes: list[str]
    rarely: int = 1
    """So many times fewer rounds, of one each, for what takes seconds."""
    taken: dict[str, list[list[float]]] = field(default_factory=dict)
    """Microseconds, round by round."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Where comparisons are made, and what has to be installed for them."""

    engine: str
    packages: tuple[str, ...]
    module: str


KINDS = (
    Kind("redis", ("redis", "starlette", "fastapi", "idempotency_header_middleware"), "idempotency"),
    Kind("sqlite", ("tenacity",), "optimistic"),
    Kind("sqlite", ("apscheduler", "sqlalchemy"), "jobs"),
    Kind("zookeeper", ("kazoo",), "zookeeper"),
)


def measure(run: Run) -> Finding:
    """Every comparison whose engine is among the places, and whose library is installed.

    Only in places of our own: the libraries write under names that cannot all be told from those of a user.
    """
    tables = []
    for place in filter(lambda place: place.private, run.places):
        for kind in KINDS:
            if kind.engine == place.kind and all(importlib.util.find_spec(package) for package in kind.packages):
                tables += [_table(one) for one in _compared(run, kind, place)]
    return Finding(tables, [])


def _compared(run: Run, kind: Kind, place: Place) -> list[Comparison]:
    module = importlib.import_module(f"leasehold.bench.pattern.{kind.module}")
    with asyncio.Runner() as runner, contextlib.ExitStack() as stack:
        comparisons: list[Comparison] = stack.enter_context(module.comparisons(place, runner))
        for comparison in comparisons:
            _take_turns(run, comparison)
        return comparisons


def _take_turns(run: Run, comparison: Comparison) -> None:
    rounds = max(run.effort.rounds // comparison.rarely, 2)
    pairs = run.effort.pairs if comparison.rarely == 1 else 1
    numbers = iter(range(10**9))
    with run.steps.of(comparison.title, rounds * len(comparison.uses)) as advance:
        for use in comparison.uses.values() if comparison.rarely == 1 else ():
            _timed(use, numbers, pairs)  # to warm up
        for _number, (who, use) in in_turn(list(comparison.uses.items()), rounds):
            comparison.taken.setdefault(who, []).append(_timed(use, numbers, pairs))
            advance()


def _timed(use: Use, numbers: Iterator[int], pairs: int) -> list[float]:
    clock, taken = time.perf_counter_ns, []
    for _ in range(pairs):
        number = next(numbers)
        began = clock()
        use(number)
        taken.append((clock() - began) / 1000)
    return taken


def _table(comparison: Comparison) -> Table:
    library = next(iter(comparison.uses))
    rows = []
    for who, rounds in comparison.taken.items():
        every = [one for each in rounds for one in each]
        ratios = [sum(mine) / sum(its) for mine, its in zip(rounds, comparison.taken[library], strict=True)]
        figures = {
            RATIO: Figure.of(spread(ratios), "times"),
            MIDDLE: Figure(quantile(every, 0.5), "us"),
            SLOWEST: Figure(quantile(every, 0.99), "us"),
        }
        rows.append(Row(who, figures))
    rows.sort(key=lambda row: list(comparison.uses).index(row.who))
    return Table("patterns", comparison.title, [RATIO, MIDDLE, SLOWEST], rows, comparison.notes)
