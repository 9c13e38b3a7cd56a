"""The site as a whole: its pages are found, its links lead somewhere, and the reference leaves nothing out."""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import yaml
from tests.docs.run_page import blocks_of

import leasehold
import reference_pages

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)")
HEADING = re.compile(r"^#+ +(?P<text>.*?)(?: *\{ *#(?P<id>[^ }]+) *\})? *$", re.MULTILINE)
PARSERS: dict[str, Callable[[str], object]] = {"yaml": yaml.safe_load, "toml": tomllib.loads, "json": json.loads}


@pytest.fixture(scope="module")
def reference() -> dict[str, str]:
    return reference_pages.pages()


@pytest.fixture(scope="module")
def pages(reference: Mapping[str, str]) -> dict[str, str]:
    """Every page of the site by its path, those of the reference as they would be built."""
    kept = {
        str(path.relative_to(DOCS)): path.read_text()
        for path in DOCS.rglob("*.md")
        if path.parent != reference_pages.FOLDER
    }
    return {**kept, **{f"reference/{name}": text for name, text in reference.items()}}


def in_nav(entry: object) -> list[str]:
    if isinstance(entry, str):
        return [entry]
    below = entry.values() if isinstance(entry, dict) else entry if isinstance(entry, list) else []
    return [page for one in below for page in in_nav(one)]


def anchors_of(page: str) -> set[str]:
    """Where a link into the page may lead: its headings, as the site names them."""
    code_free = re.sub(r"^( *)(`{3,}).*?^\1\2$", "", page, flags=re.MULTILINE | re.DOTALL)
    found = set()
    for heading in HEADING.finditer(code_free):
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading["text"]).replace("`", "").replace("*", "")
        slug = re.sub(r"[^\w\s-]", "", text).strip().lower()
        found.add(heading["id"] or re.sub(r"[-\s]+", "-", slug))
    return found


def broken_links(pages: Mapping[str, str]) -> list[str]:
    broken = []
    for path, text in pages.items():
        code_free = re.sub(r"^( *)(`{3,}).*?^\1\2$", "", text, flags=re.MULTILINE | re.DOTALL)
        for link in LINK.finditer(re.sub(r"`[^`\n]*`", "", code_free)):
            target, _, anchor = link["target"].partition("#")
            if re.match(r"[a-z]+:", target):
                continue
            other = str((DOCS / path).parent.joinpath(target).resolve().relative_to(DOCS)) if target else path
            if other not in pages and not (DOCS / other).is_file():
                broken.append(f"{path}: {link['target']}: there is no such page")
            elif anchor and other in pages and anchor not in anchors_of(pages[other]):
                broken.append(f"{path}: {link['target']}: the page has no such heading")
    return broken


def test_every_page_is_in_the_navigation_once(pages: Mapping[str, str]) -> None:
    listed = in_nav(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    assert sorted(listed) == sorted(pages)


def test_every_link_leads_somewhere(pages: Mapping[str, str]) -> None:
    assert broken_links(pages) == []


@pytest.mark.parametrize("link", ["[x](nowhere.md)", "[x](index.md#nowhere)", "[x](#nowhere)", "![x](img/nowhere.svg)"])
def test_a_broken_link_is_found(pages: Mapping[str, str], link: str) -> None:
    """The search itself can fail."""
    assert broken_links({**pages, "planted.md": link}) != []


def test_the_readme_links_to_what_there_is() -> None:
    for link in LINK.finditer((ROOT / "README.md").read_text()):
        target, _, anchor = link["target"].partition("#")
        if not re.match(r"[a-z]+:", target):
            assert (ROOT / target).exists(), link["target"]
            assert not anchor or anchor in anchors_of((ROOT / target).read_text()), link["target"]


def test_pages_ask_nothing_of_other_hosts(pages: Mapping[str, str]) -> None:
    for path, text in pages.items():
        assert not re.search(r"<script|<link|<iframe|!\[[^]]*\]\(https?:|```mermaid", text), path


def test_examples_of_settings_can_be_read(pages: Mapping[str, str]) -> None:
    """What is shown as YAML, TOML or JSON is that; an ellipsis stands for more."""
    for path, text in pages.items():
        for block in blocks_of(text):
            if block.kind in PARSERS and "…" not in block.text:
                try:
                    PARSERS[block.kind](block.text)
                except ValueError as error:
                    pytest.fail(f"{path}:{block.line}: {error}")


def missing_from(reference: Mapping[str, str]) -> list[str]:
    """Public names that no page of the reference has a heading for."""
    headings = "\n".join(reference.values())
    return [
        f"{module}.{name}"
        for module in with_public_names()
        for name in importlib.import_module(module).__all__
        if f"### {name} {{ #{name} }}" not in headings
    ]


def with_public_names() -> list[str]:
    """The modules that users import from, where they list their public names."""
    patterns = importlib.import_module("leasehold.patterns")
    below = [one.name for one in pkgutil.iter_modules(patterns.__path__, "leasehold.patterns.")]
    offered = ["leasehold", "leasehold.fences", "leasehold.testing", *below]
    return [name for name in offered if hasattr(importlib.import_module(name), "__all__")]


def test_no_public_name_is_missing_from_the_reference(reference: Mapping[str, str]) -> None:
    assert len(leasehold.__all__) > 40
    assert missing_from(reference) == []


def test_a_missing_name_is_found(reference: Mapping[str, str]) -> None:
    """The search itself can fail."""
    without = {**reference, "leasehold.md": reference["leasehold.md"].replace("### Lock {", "### Clock {")}
    assert missing_from(without) == ["leasehold.Lock"]


def test_the_reference_shows_what_is_said_in_the_source(reference: Mapping[str, str]) -> None:
    page = reference["leasehold.md"]
    assert "def lock(name: str, *, reentrant: bool = False, **terms: Unpack[LockTerms]) -> Lock" in page
    assert "The fencing token: strictly greater than every token granted before for this name." in page
    assert "| `ttl` | `float` | How long the lease lasts without a renewal. |" in page
    assert "request_timeout: float = 2.0" in page, "a default that is a constant is shown by its value"
    assert "--longest-hold" in reference["command.md"]
