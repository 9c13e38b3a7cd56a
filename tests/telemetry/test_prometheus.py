"""Metrics for Prometheus: what is counted, under which labels, and what never gets into them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families
from tests.support.redis_server import RedisServer, running
from tests.telemetry.conftest import wait_for

import leasehold
from leasehold import Leasehold, Misuse, NotAcquired
from leasehold.core.held import RAN_OUT
from leasehold.events import (
    EVENTS,
    About,
    Broken,
    Conflicting,
    Crowded,
    Elected,
    Event,
    Failed,
    GaveUp,
    Granted,
    Keyed,
    Lost,
    Missed,
    Refused,
    Released,
    Renewed,
    Resigned,
    Tried,
)
from leasehold.telemetry.figures import METRICS, figures
from leasehold.telemetry.groups import MOST_GROUPS, OTHER, Groups
from leasehold.telemetry.prometheus import EngineCollector, PrometheusWatcher, render

ABOUT = About("redis", "redis://host:6379/0", "account/42", "exclusive")
ONE_OF_EACH: tuple[Event, ...] = (
    Granted(ABOUT, 7, 0.2, True, 30.0),
    GaveUp(ABOUT, 5.0, True, "worker@host:1"),
    Failed(ABOUT, "acquire", "EngineUnavailable", 2.0),
    Failed(ABOUT, "renew", "OutcomeUnknown", 0.0),
    Renewed(ABOUT, 7, 29.0),
    Released(ABOUT, 7, 1.0),
    Lost(ABOUT, 7, 31.0, RAN_OUT),
    Broken(ABOUT, 8, "operator@host:1", "its host is gone"),
    Crowded(ABOUT, 30, 40.0, 20.0, "take another pattern"),
    Refused("account/42", 7, "stale", 8),
    Tried("add", 3, 2, False),
    Conflicting("add", 60, 40, "take another pattern"),
    Keyed("shop/eu", "order-7", "in progress"),
    Keyed("job/nightly/eu", "2026-01-01", "ran"),
    Missed("job/nightly/eu", "2026-01-02", "2026-01-04", 3, "nobody asked in time"),
    Elected("billing/leader", 7),
    Resigned("billing/leader", 7, "it is not healthy"),
)


class Counted:
    """A registry of the test's own, read as Prometheus would."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.watcher = PrometheusWatcher(self.registry)

    @property
    def text(self) -> str:
        return render(self.registry).decode()

    def __call__(self, name: str, **labels: str) -> float:
        found = [
            sample.value
            for family in text_string_to_metric_families(self.text)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]
        return sum(found)


@pytest.fixture
def counted() -> Iterator[Counted]:
    counted = Counted()
    with leasehold.watch(counted.watcher):
        yield counted


def test_each_event_moves_its_metrics() -> None:
    counted = Counted()
    assert {type(event) for event in ONE_OF_EACH} == set(EVENTS)
    for event in ONE_OF_EACH:
        counted.watcher(event)
    lock = {"engine": "redis", "group": "account"}
    expected = {
        ("leasehold_wait_seconds_sum", "granted"): 0.2,
        ("leasehold_wait_seconds_sum", "gave_up"): 5.0,
        ("leasehold_wait_seconds_count", "failed"): 1,
        ("leasehold_renewals_total", "failed"): 1,
        ("leasehold_renewals_total", "renewed"): 1,
    }
    for (name, outcome), value in expected.items():
        assert counted(name, outcome=outcome, **lock) == value, (name, outcome)
    assert counted("leasehold_contended_total", **lock) == 2
    assert counted("leasehold_hold_seconds_sum", **lock) == 32
    assert counted("leasehold_lost_total", reason="ran_out", **lock) == 1
    assert counted("leasehold_force_releases_total", **lock) == 1
    assert counted("leasehold_crowded_total", **lock) == 1
    assert counted("leasehold_refused_writes_total", group="account", reason="stale") == 1
    assert counted("leasehold_optimistic_attempts_total", function="add") == 3
    assert counted("leasehold_optimistic_conflicts_total", function="add") == 2
    assert counted("leasehold_idempotent_calls_total", scope="shop", outcome="in_progress") == 1
    assert counted("leasehold_idempotent_calls_total", scope="job/nightly", outcome="ran") == 1
    assert counted("leasehold_missed_ticks_total", scope="job/nightly") == 3
    assert counted("leasehold_elections_total", group="billing") == 1
    assert counted("leasehold_resignations_total", group="billing") == 1


def test_every_metric_is_moved_by_some_event() -> None:
    moved = {figure.metric.name for event in ONE_OF_EACH for figure in figures(event, str)}
    assert moved == {metric.name for metric in METRICS}


def test_real_leases_are_counted(counted: Counted, locks: Leasehold) -> None:
    with locks.lock("export/1"), pytest.raises(NotAcquired), locks.lock("export/1", wait=0.1):
        pass
    with locks.lock("export/2"):
        assert counted("leasehold_held", engine="sqlite") == 1
    lock = {"engine": "sqlite", "group": "export"}
    assert counted("leasehold_wait_seconds_count", outcome="granted", **lock) == 2
    assert counted("leasehold_wait_seconds_count", outcome="gave_up", **lock) == 1
    assert counted("leasehold_contended_total", **lock) == 1
    assert counted("leasehold_hold_seconds_count", **lock) == 2
    assert counted("leasehold_held", engine="sqlite") == 0


def test_who_waits_now_is_seen_here_and_on_the_engine(counted: Counted, locks: Leasehold) -> None:
    counted.registry.register(EngineCollector(locks, every=0))
    lock = {"engine": "sqlite", "group": "export"}
    with locks.lock("export/1"):
        waiter = threading.Thread(target=lambda: locks.lock("export/1", wait=30).acquire().release())
        waiter.start()
        wait_for(lambda: counted("leasehold_engine_waiters", **lock) == 1, "somebody waits")
        assert counted("leasehold_waiting", engine="sqlite") == 1
        assert counted("leasehold_engine_longest_queue", **lock) == 1
        wait_for(lambda: counted("leasehold_engine_longest_wait_seconds", **lock) > 0, "time goes by")
        assert counted("leasehold_engine_holders", **lock) == 1
        assert counted("leasehold_engine_up") == 1
    waiter.join(30)
    assert counted("leasehold_waiting", engine="sqlite") == 0


def test_an_engine_that_does_not_answer_is_down_and_breaks_nothing(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    with running(RedisServer("redis", tmp_path)) as server, Leasehold(server.url, request_timeout=0.3) as locks:
        registry.register(EngineCollector(locks, every=0))
        assert registry.get_sample_value("leasehold_engine_up", {"engine": "redis"}) == 1
        server.kill()
        assert registry.get_sample_value("leasehold_engine_up", {"engine": "redis"}) == 0


def test_an_engine_is_not_asked_at_every_look(locks: Leasehold) -> None:
    collector = EngineCollector(locks, every=600)
    registry = CollectorRegistry()
    registry.register(collector)
    labels = {"engine": "sqlite", "group": "export"}
    with locks.lock("export/1"):
        assert registry.get_sample_value("leasehold_engine_holders", labels) == 1
    assert registry.get_sample_value("leasehold_engine_holders", labels) == 1, "not asked again"


def test_names_beyond_the_bound_are_counted_together() -> None:
    registry = CollectorRegistry()
    watcher = PrometheusWatcher(registry)
    for number in range(5 * MOST_GROUPS):
        watcher(Released(ABOUT._replace(name=f"order-{number}"), 1, 0.1))
    text = render(registry).decode()
    assert text.count("leasehold_hold_seconds_count{") == MOST_GROUPS + 1
    other = {"engine": "redis", "group": OTHER}
    assert registry.get_sample_value("leasehold_hold_seconds_count", other) == 4 * MOST_GROUPS


def test_people_choose_their_own_groups() -> None:
    registry = CollectorRegistry()
    PrometheusWatcher(registry, group=lambda name: name[:3])(Released(ABOUT, 1, 0.1))
    assert registry.get_sample_value("leasehold_hold_seconds_count", {"engine": "redis", "group": "acc"}) == 1


def test_a_hostile_name_is_one_label(counted: Counted, locks: Leasehold) -> None:
    with locks.lock('x"}\\1<script>' + "y" * 200):
        pass
    names = {
        sample.labels["group"]
        for family in text_string_to_metric_families(counted.text)
        for sample in family.samples
        if "group" in sample.labels
    }
    assert len(names) == 1
    assert len(names.pop()) <= 64


def test_no_password_gets_into_a_metric(counted: Counted, tmp_path: Path) -> None:
    settings = ("--requirepass", "canary-31337")
    with running(RedisServer("redis", tmp_path, *settings)) as server:
        with Leasehold(f"redis://:canary-31337@127.0.0.1:{server.port}/0") as locks, locks.lock("export/1"):
            pass
        locks = Leasehold(f"redis://:canary-wrong@127.0.0.1:{server.port}/0")
        with locks, pytest.raises(leasehold.EngineError), locks.lock("export/1", wait=0.1):
            pass
    assert counted("leasehold_wait_seconds_count", outcome="granted", engine="redis") == 1
    assert counted("leasehold_wait_seconds_count", outcome="failed", engine="redis") == 1
    assert "canary" not in counted.text


def test_a_registry_takes_the_metrics_once() -> None:
    registry = CollectorRegistry()
    PrometheusWatcher(registry)
    with pytest.raises(Misuse, match="one PrometheusWatcher for a registry"):
        PrometheusWatcher(registry)


@pytest.mark.parametrize("wrong", [{"of": 3}, {"most": 0}, {"most": True}])
def test_groups_that_cannot_be_right_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(Misuse):
        Groups(**wrong)  # type: ignore[arg-type]
