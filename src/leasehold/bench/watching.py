"""What watching costs: take and release a free name while nobody watches, or several kinds of watchers do."""

from __future__ import annotations

import contextlib
import importlib.util
import time
from collections.abc import Callable, Iterator

import leasehold
from leasehold.bench.effort import Run
from leasehold.bench.figures import in_turn, quantile, spread
from leasehold.bench.places import Place
from leasehold.bench.results import Figure, Finding, Row, Table
from leasehold.events import Event

RATIO, MIDDLE = "to nobody watching (p10-p90)", "p50 µs"
NOBODY = "nobody watches"


def _ignore(_event: Event) -> None:
    """See an event, and do nothing."""


def _watchers() -> dict[str, Callable[[], Callable[[Event], object]] | None]:
    kinds: dict[str, Callable[[], Callable[[Event], object]] | None] = {NOBODY: None, "a watcher": lambda: _ignore}
    if importlib.util.find_spec("prometheus_client") is not None:
        kinds["Prometheus"] = _prometheus
    return kinds


def _prometheus() -> Callable[[Event], object]:
    from prometheus_client import CollectorRegistry

    from leasehold.telemetry.prometheus import PrometheusWatcher

    return PrometheusWatcher(CollectorRegistry())


@contextlib.contextmanager
def _watched(watcher: Callable[[Event], object] | None) -> Iterator[None]:
    if watcher is None:
        yield
    else:
        with leasehold.watch(watcher):
            yield


def measure(run: Run) -> Finding:
    """Each kind in turn, in rounds, on every engine."""
    finding = Finding([], [])
    for place in run.places:
        watchers = {kind: make() if make is not None else None for kind, make in _watchers().items()}
        rounds: dict[str, list[list[int]]] = {kind: [] for kind in watchers}
        steps = (run.effort.rounds + 1) * len(watchers)
        with (
            leasehold.Leasehold(place.on, namespace=place.namespace) as locks,
            run.steps.of(f"watching on {place.engine}", steps) as advance,
        ):
            for number, kind in in_turn(list(watchers), run.effort.rounds + 1):
                with _watched(watchers[kind]):
                    taken = _pairs(locks, run.effort.pairs)
                if number:  # the first round warms up
                    rounds[kind].append(taken)
                advance()
        finding.tables.append(_table(place, rounds))
    return finding


def _pairs(locks: leasehold.Leasehold, pairs: int) -> list[int]:
    lock, clock, taken = locks.lock("watched"), time.perf_counter_ns, []
    for _ in range(pairs):
        began = clock()
        with lock:
            pass
        taken.append(clock() - began)
    return taken


def _table(place: Place, rounds: dict[str, list[list[int]]]) -> Table:
    rows = []
    for kind, taken in rounds.items():
        ratios = [sum(mine) / sum(its) for mine, its in zip(taken, rounds[NOBODY], strict=True)]
        middle = quantile([pair / 1000 for pairs in taken for pair in pairs], 0.5)
        rows.append(Row(kind, {RATIO: Figure.of(spread(ratios), "times"), MIDDLE: Figure(middle, "us")}))
    return Table("watching", f"Take + release on {place.engine}, watched", [RATIO, MIDDLE], rows, [])
