"""Writes the page of all lint rules from their docstrings: `python tools/lint_pages.py` (`--check` only compares).

The code on it is marked as ``py``, which is shown but not run: half of it is wrong on purpose.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from leasehold.lint.rule import FAMILIES, Rule, all_rules

PAGE = Path(__file__).parents[1] / "docs" / "lint-rules.md"
INTRODUCTION = """\
<!-- written by tools/lint_pages.py from the docstrings of the rules -->
# Lint rules

What [`leasehold lint`](lint.md) finds. `leasehold explain LH110` shows the same in the terminal.
"""


def rendered() -> str:
    """The whole page."""
    parts = [INTRODUCTION]
    for family in dict.fromkeys(FAMILIES.values()):
        rules = [one for one in all_rules() if one.family == family]
        parts.append(f"## {family[0].upper()}{family[1:]}\n")
        parts.append("| code | name | finds |\n|---|---|---|")
        parts += [f"| [{one.code}](#{one.code.lower()}) | {one.name} | {one.title} |" for one in rules]
        parts += ["", *(_rule(one) for one in rules)]
    return "\n".join(parts).rstrip() + "\n"


def _rule(one: Rule) -> str:
    page = re.sub(r"^## (\w.*)$", r"**\1**", one.page, flags=re.MULTILINE)
    only = "" if one.by_default else "\n*Runs only when it is selected.*\n"
    return f"### {one.code} {one.name} {{ #{one.code.lower()} }}\n{only}\n{page}\n"


def main() -> int:
    """Write the page, or say that it is out of date."""
    if PAGE.exists() and PAGE.read_text() == rendered():
        return 0
    if "--check" in sys.argv:
        print("docs/lint-rules.md is out of date; run python tools/lint_pages.py")
        return 1
    PAGE.write_text(rendered())
    print("wrote docs/lint-rules.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
