"""The dashboard and the alert rules speak of metrics that there are, by labels that they have."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families
from tests.cli.tool import call_in_process
from tests.telemetry.test_prometheus import ONE_OF_EACH

import servers
from leasehold import Leasehold
from leasehold.patterns.jobs.book import Book
from leasehold.patterns.jobs.jobs import status_of
from leasehold.serve.metrics import exposition
from leasehold.serve.watch import Watch
from leasehold.telemetry.groups import Groups
from leasehold.telemetry.journal import Told
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


@pytest.fixture
def served(locks: Leasehold) -> dict[str, set[str]]:
    """The samples that `leasehold serve` has, with their labels."""
    watch = Watch(locks, every=1.0)
    watch.books.jobs["export"] = status_of("export", Book(schedule="every 60s"), 0.0)
    watch.books.journal = Told({"stale": 1})
    labels: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(exposition(watch, Groups())):
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


def test_the_alerts_ask_for_what_there_is(emitted: dict[str, set[str]], served: dict[str, set[str]]) -> None:
    expressions = list(alert_expressions())
    assert len(expressions) > 8
    assert {one: wrong for one in expressions if (wrong := wrong_in(one, {**served, **emitted}))} == {}


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


# The rules as Prometheus itself reads them

RULE_TESTS = Path(__file__).with_name("alerts_test.yml")


def promtool(*arguments: object) -> subprocess.CompletedProcess[str]:
    program = servers.find("promtool")
    assert program is not None, "promtool is missing: python tools/servers.py ensure promtool"
    return subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=120)


def unit_tested(rules: Any, tests: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run unit tests of rules. Descriptions are long and the same for every alert: summaries are enough."""
    for rule in rules["groups"][0]["rules"]:
        del rule["annotations"]["description"]
    (folder / "alerts.yml").write_text(yaml.safe_dump(rules))
    (folder / "alerts_test.yml").write_text(tests)
    return promtool("test", "rules", folder / "alerts_test.yml")


def test_prometheus_accepts_the_alerts(tmp_path: Path) -> None:
    file = tmp_path / "alerts.yml"
    file.write_text(printed("alerts"))
    checked = promtool("check", "rules", file)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    file.write_text(printed("alerts").replace("increase(", "increases("))
    assert promtool("check", "rules", file).returncode != 0


def test_alerts_fire_when_they_should_and_only_then(tmp_path: Path) -> None:
    told = unit_tested(yaml.safe_load(printed("alerts")), RULE_TESTS.read_text(), tmp_path)
    assert told.returncode == 0, told.stdout + told.stderr


def test_every_alert_is_seen_to_fire() -> None:
    rules = {rule["alert"] for group in yaml.safe_load(printed("alerts"))["groups"] for rule in group["rules"]}
    cases = [case for one in yaml.safe_load(RULE_TESTS.read_text())["tests"] for case in one["alert_rule_test"]]
    assert {case["alertname"] for case in cases if case.get("exp_alerts")} == rules


def test_a_rule_that_is_too_strict_is_found(tmp_path: Path) -> None:
    rules = yaml.safe_load(printed("alerts").replace("> 300", "> 300000"))
    told = unit_tested(rules, RULE_TESTS.read_text(), tmp_path)
    assert told.returncode != 0
    assert "LeaseholdQueueStuck" in told.stdout + told.stderr
