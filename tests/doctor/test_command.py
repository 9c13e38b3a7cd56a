"""`leasehold doctor` as people and scripts see it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.tool import Command
from tests.support.redis_server import RedisServer, running


@pytest.fixture
def leasehold(tmp_path: Path) -> Iterator[Command]:
    command = Command(f"sqlite:///{tmp_path}/leases.db", tmp_path)
    yield command
    command.end_all()


def test_a_good_engine_exits_with_0(leasehold: Command) -> None:
    result = leasehold("doctor", "--within", "20")
    assert result.returncode == 0, result
    assert "sqlite at sqlite:///" in result.stdout
    assert "Fit for" in result.stdout


def test_levels_are_exit_codes(leasehold: Command, tmp_path: Path) -> None:
    with running(RedisServer("redis", tmp_path, "--requirepass", "canary-9")) as server:
        url = f"redis://:canary-9@127.0.0.1:{server.port}/0"
        weak = leasehold("doctor", "--json", "--within", "20", LEASEHOLD_URL=url)
        assert weak.returncode == 1, weak
        told = json.loads(weak.stdout)
        assert told["worst"] == "warning"
        assert told["reachable"] is True
        assert {"check", "level", "seen", "fix"} == set(told["findings"][0])
        server.kill()
        gone = leasehold("doctor", "--within", "1", LEASEHOLD_URL=url)
    assert gone.returncode == 78
    assert "canary" not in weak.stdout + weak.stderr + gone.stdout + gone.stderr


def test_a_url_that_cannot_be_right_is_a_usage_error(leasehold: Command) -> None:
    for url in ("", "gopher://x"):
        result = leasehold("doctor", "--on", url)
        assert result.returncode == 64
        assert len(result.stderr.splitlines()) == 1


def test_a_file_that_cannot_be_used_is_not_to_be_started(tmp_path: Path) -> None:
    command = Command(f"sqlite:///{tmp_path}/leases.db", tmp_path)
    assert command("status").returncode == 0
    for ending in ("wal", "shm"):
        (tmp_path / f"leases.db-{ending}").unlink(missing_ok=True)
        (tmp_path / f"leases.db-{ending}").mkdir()
    result = command("doctor", "--json")
    assert result.returncode == 78
    [finding] = [one for one in json.loads(result.stdout)["findings"] if one["level"] == "problem"]
    assert finding["fix"].startswith("check who may read and write the file and its folder")
