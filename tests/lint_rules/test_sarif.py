"""The SARIF output has what the schema of SARIF 2.1.0 requires, and nothing that it does not know."""

from __future__ import annotations

import json
from typing import Any

import pytest

from leasehold.lint.finding import Problem
from leasehold.lint.rule import all_rules
from leasehold.lint.run import Report, look_at_source
from leasehold.lint.shown import as_sarif

# Of the objects that are written: the properties that the schema requires, and others that it knows.
SCHEMA: dict[str, tuple[set[str], set[str]]] = {
    "log": ({"version", "runs"}, {"$schema"}),
    "run": ({"tool"}, {"results", "invocations", "columnKind"}),
    "tool": ({"driver"}, set()),
    "driver": ({"name"}, {"semanticVersion", "rules"}),
    "rule": ({"id"}, {"name", "shortDescription", "fullDescription", "help", "defaultConfiguration"}),
    "invocation": ({"executionSuccessful"}, {"toolExecutionNotifications"}),
    "notification": ({"message"}, {"level", "locations"}),
    "result": ({"message"}, {"ruleId", "ruleIndex", "level", "locations", "partialFingerprints"}),
    "region": (set(), {"startLine", "startColumn", "endLine", "endColumn"}),
}
BAD = 'def f(redis, t):\n    return redis.set("é-lock", t, nx=True)\n'


def has(kind: str, value: dict[str, Any]) -> None:
    required, known = SCHEMA[kind]
    assert required <= set(value) <= required | known, (kind, set(value))


@pytest.fixture
def log() -> dict[str, Any]:
    report = look_at_source("src/a b.py", BAD, all_rules())
    report.problems.append(Problem("src/broken.py", "is not Python"))
    document: dict[str, Any] = json.loads(as_sarif(report, "0.1.0"))
    return document


def test_every_object_is_as_the_schema_says(log: dict[str, Any]) -> None:
    has("log", log)
    assert log["version"] == "2.1.0"
    [run] = log["runs"]
    has("run", run)
    has("tool", run["tool"])
    has("driver", run["tool"]["driver"])
    for rule in run["tool"]["driver"]["rules"]:
        has("rule", rule)
        assert all(rule[name]["text"] for name in ("shortDescription", "fullDescription", "help"))
    for invocation in run["invocations"]:
        has("invocation", invocation)
        for notification in invocation["toolExecutionNotifications"]:
            has("notification", notification)
    for result in run["results"]:
        has("result", result)


def test_a_result_points_at_its_rule_and_place(log: dict[str, Any]) -> None:
    run = log["runs"][0]
    [result] = run["results"]
    assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"] == "LH102"
    place = result["locations"][0]["physicalLocation"]
    assert place["artifactLocation"] == {"uri": "src/a%20b.py"}
    has("region", place["region"])
    line = BAD.splitlines()[1]
    region = place["region"]
    assert line[region["startColumn"] - 1 : region["endColumn"] - 1] == 'redis.set("é-lock", t, nx=True)'


def test_a_run_that_left_files_out_did_not_succeed(log: dict[str, Any]) -> None:
    assert log["runs"][0]["invocations"][0]["executionSuccessful"] is False
    clean = json.loads(as_sarif(Report(), "0.1.0"))
    assert clean["runs"][0]["invocations"][0]["executionSuccessful"] is True
