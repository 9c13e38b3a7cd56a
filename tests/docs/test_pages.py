"""Every snippet of the README and of the documentation runs as printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.docs.run_page import RUNNABLE, blocks_of

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
WITH_SNIPPETS = [page for page in PAGES if any(block.kind in RUNNABLE for block in blocks_of(page.read_text()))]
SERVERS = re.compile(r"LEASEHOLD_DOCS_([A-Z]+)_URL")


def run_page(page: Path, folder: Path, servers: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run one page in an empty folder with an empty home."""
    home = folder / "home"
    home.mkdir()
    environment = {
        "HOME": str(home),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        **servers,
        "TERM": "dumb",
    }
    command = [sys.executable, "-W", "error", str(ROOT / "tests/docs/run_page.py"), str(page)]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize("page", WITH_SNIPPETS, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_snippet_runs(page: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """A reader who copies from the page gets what it says. Only the servers that it speaks of are started."""
    wanted = set(SERVERS.findall(page.read_text()))
    servers = {
        f"LEASEHOLD_DOCS_{engine}_URL": request.getfixturevalue(f"docs_{engine.lower()}_url") for engine in wanted
    }
    result = run_page(page, tmp_path, servers)
    assert result.returncode == 0, f"{result.stdout[-2000:]}\n{result.stderr[-4000:]}"


@pytest.mark.parametrize(
    "broken",
    [
        "```python\nraise ValueError('planted')\n```\n",
        "```console\n$ false\n```\n",
        "```python\nassert 1 == 2\n```\n",
        '```python title="saved.py"\nassert 1 == 2\n```\n\n```python\nimport saved\n```\n',
    ],
)
def test_a_broken_snippet_is_found(broken: str, tmp_path: Path) -> None:
    """The runner itself can fail."""
    page = tmp_path / "page.md"
    page.write_text(f"# Title\n\n{broken}")
    assert run_page(page, tmp_path, {}).returncode != 0


def test_the_readme_has_snippets() -> None:
    """The list of pages is not empty by accident."""
    assert ROOT / "README.md" in WITH_SNIPPETS
