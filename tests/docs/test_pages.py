"""Every snippet of the README and of the documentation runs as printed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.docs.run_page import RUNNABLE, blocks_of

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
WITH_SNIPPETS = [page for page in PAGES if any(block.kind in RUNNABLE for block in blocks_of(page.read_text()))]
ADDRESSES = {
    "redis": "localhost:6379/0",
    "postgresql": "app:secret@localhost:5432/app",
    "mariadb": "app:secret@localhost:3306/app",
    "etcd": "localhost:2379",
    "zookeeper": "localhost:2181",
    "consul": "localhost:8500",
    "redlock": "one:6379,two:6379,three:6379",
    "rediscluster": "cluster://one:6379,two:6379",
    "gcs": "https://storage.googleapis.com",
}
"""How pages write the addresses of servers: as a reader would, who has one on the same host."""


def run_page(
    page: Path, folder: Path, servers: Mapping[str, str], settings: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run one page in an empty folder with an empty home."""
    home = folder / "home"
    home.mkdir()
    environment = {
        "HOME": str(home),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        **settings,
        "TERM": "dumb",
    }
    command = [sys.executable, "-W", "error", str(ROOT / "tests/docs/run_page.py"), str(page), json.dumps(servers)]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def servers_of(page: Path, request: pytest.FixtureRequest) -> dict[str, str]:
    """Start the servers that a page speaks of: what stands for each of them there, and what is to be there instead."""
    runnable = "".join(block.text for block in blocks_of(page.read_text()) if block.kind in RUNNABLE)
    servers: dict[str, str] = {}
    for engine, address in ADDRESSES.items():
        if address in runnable:
            scheme, _, rest = request.getfixturevalue(f"docs_{engine}_url").partition("://")
            servers[address] = f"{scheme.rpartition('+')[2]}://{rest}" if "://" in address else rest
    return servers


def aws_of(page: Path, request: pytest.FixtureRequest) -> dict[str, str]:
    """What boto3 reads: where what plays AWS is, and any credentials."""
    if "import boto3" not in page.read_text():
        return {}
    return {
        "AWS_ENDPOINT_URL": request.getfixturevalue("docs_aws_url"),
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
    }


@pytest.mark.parametrize("page", WITH_SNIPPETS, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_snippet_runs(page: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """A reader who copies from the page gets what it says. Only the servers that it speaks of are started."""
    result = run_page(page, tmp_path, servers_of(page, request), aws_of(page, request))
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
    assert run_page(page, tmp_path, {}, {}).returncode != 0


def test_the_readme_has_snippets() -> None:
    """The list of pages is not empty by accident."""
    assert ROOT / "README.md" in WITH_SNIPPETS
