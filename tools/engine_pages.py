"""Writes what an engine says of itself into its page: `python tools/engine_pages.py` (add `--check` to only compare).

A page marks the place with ``<!-- facts of URL -->`` and ``<!-- end of facts -->``. So all pages have the same
headings, and none can say anything else than the engine's own data does.
"""

from __future__ import annotations

import re
import sys
import warnings
from pathlib import Path

from leasehold import Capability, Facts, GuaranteeWarning, Leasehold

PAGES = Path(__file__).parents[1] / "docs" / "engines"
REGION = re.compile(r"(<!-- facts of (?P<url>\S+) -->\n).*?(<!-- end of facts -->)", re.DOTALL)
HEADINGS = {
    "not_guaranteed": "What it does not guarantee",
    "tokens": "Where tokens come from, and when they could go back",
    "timekeeper": "Who keeps time",
    "ends": "What ends a lease",
    "loss_told": "When a holder knows of a loss, at the latest",
    "takeover": "When a dead holder is replaced, at the latest",
    "failover": "Failover",
    "proxies": "Poolers and proxies",
    "enforce_with": "Enforce it with",
}


def facts_of(url: str) -> Facts:
    """What the engine behind the URL says of itself; nothing is sent."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GuaranteeWarning)
        return Leasehold(url).facts


def rendered(facts: Facts) -> str:
    """The facts as Markdown."""
    fit = "yes" if facts.guarantee.fit_for_correctness else "no"
    lines = [f'Fit for `purpose="correctness"`: **{fit}**. Shortest TTL: {facts.least_ttl:g} s.', ""]
    for field, heading in HEADINGS.items():
        lines += [f"## {heading}", "", getattr(facts.guarantee, field), ""]
    lines += ["## What it can do", "", "| | |", "|---|---|"]
    lines += [f"| {'✓' if one in facts.capabilities else ' '} | {one.value} |" for one in Capability]
    return "\n".join(lines) + "\n"


def updated(page: str) -> str:
    """The page with its facts written anew."""
    return REGION.sub(lambda match: f"{match[1]}{rendered(facts_of(match['url']))}{match[3]}", page)


def main() -> int:
    """Rewrite the pages, or say which are out of date."""
    stale = [page for page in sorted(PAGES.glob("*.md")) if updated(page.read_text()) != page.read_text()]
    for page in stale:
        if "--check" in sys.argv:
            print(f"{page.name} is out of date; run python tools/engine_pages.py")
        else:
            page.write_text(updated(page.read_text()))
            print(f"wrote {page.name}")
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
