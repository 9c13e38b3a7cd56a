"""What is kept about the linter beside its code is true: its page of rules, the reviewed findings, its hook."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import lint_pages
from leasehold.lint.config import Config
from leasehold.lint.rule import all_rules
from leasehold.lint.run import lint

ROOT = Path(__file__).parents[2]
CODES = {rule.code for rule in all_rules()}


def test_the_page_of_rules_is_up_to_date() -> None:
    assert lint_pages.PAGE.read_text() == lint_pages.rendered(), "run python tools/lint_pages.py"


def test_every_finding_in_popular_packages_is_reviewed() -> None:
    kept = json.loads((ROOT / "docs/data/lint-corpus.json").read_text())
    assert len(kept["packages"]) >= 15
    assert kept["lines"] > 1_000_000
    for finding in kept["findings"]:
        assert finding["code"] in CODES
        assert len(finding["why"]) > 40, (
            f"say why {finding['package']} {finding['file']} {finding['code']} is defensible"
        )


def test_the_hook_names_a_command_that_exists() -> None:
    lines = (ROOT / ".pre-commit-hooks.yaml").read_text().splitlines()
    [entry] = [line.partition("entry:")[2] for line in lines if "entry:" in line]
    assert shlex.split(entry) == ["leasehold", "lint"]


def test_this_repository_is_clean() -> None:
    """Its own source has no finding; what it does on purpose says so on its line."""
    report = lint([str(ROOT / "src"), str(ROOT / "tools")], Config())
    assert report.findings == []
    assert report.problems == []
    assert report.files > 100
