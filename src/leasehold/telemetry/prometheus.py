"""Metrics for Prometheus: ``pip install 'leasehold[prometheus]'``.

>>> import pathlib, tempfile, leasehold
>>> from prometheus_client import CollectorRegistry
>>> registry = CollectorRegistry()
>>> with leasehold.watch(PrometheusWatcher(registry)):
...     with leasehold.Leasehold(pathlib.Path(tempfile.mkdtemp()) / "leases.db") as locks, locks.lock("export/7"):
...         pass
>>> registry.get_sample_value("leasehold_hold_seconds_count", {"engine": "sqlite", "group": "export"})
1.0
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from leasehold.client import Leasehold, population
from leasehold.errors import EngineError, Misuse, NotSupported
from leasehold.roster import Scout
from leasehold.telemetry.figures import BUCKETS, HELD_NOW, METRICS, WAITING_NOW, figures
from leasehold.telemetry.groups import Groups

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram, generate_latest
    from prometheus_client.core import GaugeMetricFamily
except ModuleNotFoundError as missing:
    raise NotSupported(f"this needs the package {missing.name}: pip install 'leasehold[prometheus]'") from None

if TYPE_CHECKING:
    from leasehold.core.engine import NameStatus
    from leasehold.events import Event

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
MOST_NAMES: Final = 1000
SHORTEST_INTERVAL: Final = 5.0


class PrometheusWatcher:
    """Counts what happens in this process, for ``leasehold.watch``.

    `group` makes of a lock's name the label under which it is counted; see `Groups` for the default and its bound.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY, *, group: Callable[[str], str] | None = None) -> None:
        """Put the metrics into a registry; a registry takes them once."""
        self._group = Groups() if group is None else group if isinstance(group, Groups) else Groups(group)
        self._metrics: dict[str, Counter | Histogram] = {}
        try:
            for name, kind, text, labels in METRICS:
                self._metrics[name] = (
                    Counter(name, text, labels, registry=registry)
                    if kind == "counter"
                    else Histogram(name, text, labels, registry=registry, buckets=BUCKETS)
                )
            registry.register(_Population())
        except ValueError as twice:
            raise Misuse(
                "this registry has Leasehold's metrics already; make one PrometheusWatcher for a registry"
            ) from twice

    def __call__(self, event: Event) -> None:
        """Count an event."""
        for metric, labels, value in figures(event, self._group):
            child = self._metrics[metric.name].labels(*labels)
            if isinstance(child, Counter):
                child.inc(value)
            else:
                child.observe(value)


class _Population:
    """What the clients of this process do at the moment of being asked."""

    def describe(self) -> list[GaugeMetricFamily]:
        """Nothing has to be asked to know the names."""
        return [GaugeMetricFamily(name, text, labels=["engine"]) for name, text in (HELD_NOW, WAITING_NOW)]

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """The gauges, counted now."""
        held, waiting = (GaugeMetricFamily(name, text, labels=["engine"]) for name, text in (HELD_NOW, WAITING_NOW))
        for engine, now in population().items():
            held.add_metric([engine], now.held)
            waiting.add_metric([engine], now.waiting)
        return [held, waiting]


class EngineCollector:
    """What an engine knows of all its clients: holders, queues and the longest wait, for each group of names.

    Register it in one process (``leasehold serve`` does), not in each: every look asks the engine for up to
    `most_names` names, at most once in `every` seconds.
    """

    def __init__(
        self,
        locks: Leasehold,
        *,
        group: Callable[[str], str] | None = None,
        most_names: int = MOST_NAMES,
        every: float = SHORTEST_INTERVAL,
    ) -> None:
        """Look through this client."""
        self._locks, self._most_names, self._every = locks, most_names, every
        self._group = Groups() if group is None else group if isinstance(group, Groups) else Groups(group)
        self._looking = threading.Lock()
        self._seen: list[GaugeMetricFamily] = []
        self._seen_at = float("-inf")

    def describe(self) -> list[GaugeMetricFamily]:
        """Nothing has to be asked to know the names."""
        return self._families()

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Look, unless somebody did a moment ago."""
        with self._looking:
            if time.monotonic() - self._seen_at >= self._every:
                self._seen = self._look()
                self._seen_at = time.monotonic()
            return self._seen

    @staticmethod
    def _families() -> list[GaugeMetricFamily]:
        by_group = ["engine", "group"]
        return [
            GaugeMetricFamily("leasehold_engine_up", "Whether the engine answered (1) or not (0).", labels=["engine"]),
            GaugeMetricFamily(
                "leasehold_engine_more", "Whether there are more names than were looked at.", labels=["engine"]
            ),
            GaugeMetricFamily("leasehold_engine_holders", "Leases that are held, by anybody.", labels=by_group),
            GaugeMetricFamily("leasehold_engine_waiters", "Waiters in all queues of the group.", labels=by_group),
            GaugeMetricFamily(
                "leasehold_engine_longest_queue", "Waiters for the name that most wait for.", labels=by_group
            ),
            GaugeMetricFamily(
                "leasehold_engine_longest_wait_seconds", "For how long somebody has waited by now.", labels=by_group
            ),
        ]

    def _look(self) -> list[GaugeMetricFamily]:
        families = self._families()
        up, more, *by_group = families
        engine = self._locks.facts.engine
        sums: dict[str, list[float]] = {}
        try:
            found = Scout(self._locks).look_at_all(lambda _name: True, most=self._most_names)
        except EngineError:
            up.add_metric([engine], 0)
            return [up]
        for name, status in found.statuses.items():
            if status is not None:
                _add(sums.setdefault(self._group(name), [0.0] * len(by_group)), status)
        up.add_metric([engine], 1)
        more.add_metric([engine], not found.listing_ended)
        for group, values in sums.items():
            for family, value in zip(by_group, values, strict=True):
                family.add_metric([engine, group], value)
        return families


def _add(sums: list[float], status: NameStatus) -> None:
    """Holders, waiters, the longest queue, the longest wait."""
    queue = len(status.waiters)
    sums[0] += len(status.holders)
    sums[1] += queue
    sums[2] = max(sums[2], queue)
    sums[3] = max(sums[3], *(waiter.waited_for for waiter in status.waiters), 0.0)


def render(registry: CollectorRegistry = REGISTRY) -> bytes:
    """The metrics of a registry in the text format of Prometheus, to be served as `CONTENT_TYPE`."""
    return generate_latest(registry)
