"""The dashboard and the alert rules speak of metrics that there are, by labels that they have."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
import yaml
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families
from tests.cli.tool import call_in_process
from tests.telemetry.test_prometheus import ONE_OF_EACH

from leasehold import Leasehold
from leasehold.telemetry.prometheus import EngineCollector, PrometheusWatcher, render

ADDED_BY_PROMETHEUS = {"job", "instance"}
NAME = re.compile(r"\bleasehold_\w+")
SELECTED = re.compile(r"(leasehold_\w+)\s*\{([^}]*)\}")
GROUPED = re.compile(r"\bby \(([^)]*)\)")


def printed(what: str) -> str:
    result = call_in_process(["monitoring", what], {"HOME": "/nonexistent"})
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.fixture
def emitted(locks: Leasehold) -> dict[str, set[str]]:
    """The samples that the exporter emits, with their labels."""
    registry = CollectorRegistry()
    watcher = PrometheusWatcher(registry)
    registry.register(EngineCollector(locks))
    for event in ONE_OF_EACH:
        watcher(event)
    with locks.lock("export/7"):
        text = render(registry).decode()
    labels: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
    return labels


def dashboard_expressions() -> Iterator[str]:
    board = json.loads(printed("grafana"))
    for panel in board["panels"]:
        assert panel["title"]
        assert panel["description"]
        for target in panel["targets"]:
            yield target["expr"]
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]


def alert_expressions() -> Iterator[str]:
    for group in yaml.safe_load(printed("alerts"))["groups"]:
        for rule in group["rules"]:
            assert rule["annotations"]["summary"]
            assert rule["annotations"]["description"]
            assert rule["labels"]["severity"] in ("info", "warning", "critical")
            yield rule["expr"]


def wrong_in(expression: str, emitted: dict[str, set[str]]) -> list[str]:
    """What an expression asks for that no exporter has."""
    names = set(NAME.findall(expression))
    wrong = sorted(names - set(emitted))
    known = set().union(ADDED_BY_PROMETHEUS, *(emitted.get(name, set()) for name in names))
    for name, selector in SELECTED.findall(expression):
        asked = set(re.findall(r"(\w+)\s*=", selector))
        wrong += sorted(f"{name}.{label}" for label in asked - emitted.get(name, set()) - ADDED_BY_PROMETHEUS)
    for labels in GROUPED.findall(expression):
        wrong += sorted(set(re.split(r",\s*", labels)) - known)
    return wrong


def test_the_dashboard_asks_for_what_there_is(emitted: dict[str, set[str]]) -> None:
    expressions = list(dashboard_expressions())
    assert len(expressions) > 20
    assert {one: wrong for one in expressions if (wrong := wrong_in(one, emitted))} == {}


def test_the_alerts_ask_for_what_there_is(emitted: dict[str, set[str]]) -> None:
    expressions = list(alert_expressions())
    assert len(expressions) > 8
    assert {one: wrong for one in expressions if (wrong := wrong_in(one, emitted))} == {}


def test_every_metric_is_on_the_dashboard_or_in_an_alert(emitted: dict[str, set[str]]) -> None:
    """A metric that nobody looks at is one too many; those that only explain others may be left out."""
    shown = {name for one in (*dashboard_expressions(), *alert_expressions()) for name in NAME.findall(one)}
    only_explain = {"leasehold_crowded", "leasehold_engine_more", "leasehold_engine_holders"}
    assert {family(name) for name in emitted} - {family(name) for name in shown} == only_explain


def family(name: str) -> str:
    return re.sub(r"_(bucket|count|sum|created|total)$", "", name)


@pytest.mark.parametrize(
    "planted",
    [
        "rate(leasehold_waits_total[5m])",
        'leasehold_lost_total{cause="ran_out"}',
        "sum by (function) (leasehold_lost_total)",
    ],
)
def test_a_wrong_expression_is_found(planted: str, emitted: dict[str, set[str]]) -> None:
    assert wrong_in(planted, emitted)
