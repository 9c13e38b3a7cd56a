"""Files of code in which every expected finding stands in a comment on its line, and nothing else is found."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from leasehold.lint.rule import all_rules
from leasehold.lint.run import look_at_source

FIXTURES = sorted((Path(__file__).parents[1] / "lint").glob("*.py"))
EXPECTED = re.compile(r"# expect: (?P<codes>[A-Z0-9, ]+)$")
DEFAULT = [rule for rule in all_rules() if rule.by_default]


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: str(path.stem))
def test_fixture(path: Path) -> None:
    source = path.read_text()
    expected = {
        (number, code.strip())
        for number, line in enumerate(source.splitlines(), 1)
        if (match := EXPECTED.search(line))
        for code in match["codes"].split(",")
    }
    report = look_at_source(path.name, source, DEFAULT)
    assert report.problems == []
    assert {(finding.line, finding.code) for finding in report.findings} == expected


def test_there_are_fixtures() -> None:
    assert len(FIXTURES) >= 3
