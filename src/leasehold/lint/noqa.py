"""``# noqa`` comments: a line that was looked at and is meant to be so."""

from __future__ import annotations

import re

from leasehold.lint.finding import Finding

_NOQA = re.compile(r"#\s*noqa(?P<codes>\s*:\s*(?P<list>[A-Z]+[0-9]+(?:[\s,]+[A-Z]+[0-9]+)*))?", re.IGNORECASE)


def is_silenced(finding: Finding, lines: list[str]) -> bool:
    """Whether a comment on one of the finding's lines silences its rule (or every rule)."""
    return any(_silences(line, finding.code) for line in lines[finding.line - 1 : max(finding.last_line, finding.line)])


def _silences(line: str, code: str) -> bool:
    if "noqa" not in line and "NOQA" not in line:
        return False
    for match in _NOQA.finditer(line):
        if match["list"] is None or code in re.split(r"[\s,]+", match["list"].upper()):
            return True
    return False
