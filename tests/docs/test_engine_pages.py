"""The page of an engine says what the engine's own data says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import engine_pages

WITH_FACTS = [page for page in sorted(engine_pages.PAGES.glob("*.md")) if "<!-- facts of" in page.read_text()]


@pytest.mark.parametrize("page", WITH_FACTS, ids=lambda page: str(page.name))
def test_the_page_is_up_to_date(page: Path) -> None:
    """Whoever changes a guarantee runs the tool again."""
    text = page.read_text()
    assert engine_pages.updated(text) == text, "run python tools/engine_pages.py"


def test_the_engines_beside_each_other_are_up_to_date_and_all_there() -> None:
    page = (engine_pages.PAGES / "comparison.md").read_text()
    assert engine_pages.updated(page) == page, "run python tools/engine_pages.py"
    for link in engine_pages.COMPARED:
        assert (engine_pages.PAGES / link.partition("(")[2].rstrip(")")).exists()


def test_a_page_that_claims_more_is_found() -> None:
    """The comparison itself can fail."""
    text = WITH_FACTS[0].read_text()
    claim = re.sub(r"## Failover\n\n", "## Failover\n\nNothing is ever lost. ", text)
    assert claim != text
    assert engine_pages.updated(claim) == text


def test_every_heading_is_filled() -> None:
    """No engine leaves a question open."""
    for page in WITH_FACTS:
        for match in engine_pages.REGION.finditer(page.read_text()):
            guarantee = engine_pages.facts_of(match["url"]).guarantee
            assert all(getattr(guarantee, field) for field in engine_pages.HEADINGS)
