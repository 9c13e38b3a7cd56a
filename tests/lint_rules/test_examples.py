"""The page of every rule tells the truth: what it calls bad is found, what it calls good is not."""

from __future__ import annotations

import pytest

from leasehold.lint.rule import FAMILIES, Rule, all_rules
from leasehold.lint.run import Report, look_at_source

RULES = all_rules()
DEFAULT = [one for one in RULES if one.by_default]


def codes(report: Report) -> list[str]:
    assert report.problems == []
    return [finding.code for finding in report.findings]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_bad_is_found(rule: Rule) -> None:
    examples = rule.examples("Bad")
    assert examples, "a page shows bad code"
    for example in examples:
        assert rule.code in codes(look_at_source("example.py", example, [rule])), example


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_good_is_not_found_by_any_rule(rule: Rule) -> None:
    examples = rule.examples("Good")
    assert examples, "a page shows good code"
    for example in examples:
        assert codes(look_at_source("example.py", example, [*DEFAULT, rule])) == [], example


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_page_is_whole(rule: Rule) -> None:
    assert rule.code[:4] in FAMILIES
    assert all(rule.section(heading) for heading in ("Why", "Bad", "Good", "Not")), rule.code
    assert len(rule.title) < 110
    assert rule.words


def test_codes_and_names_are_unique() -> None:
    assert len({rule.code for rule in RULES}) == len({rule.name for rule in RULES}) == len(RULES)
    assert len(RULES) >= 8
