"""`LEASEHOLD_TEST_<ENGINE>_URL` points the contract suite at a server of one's own, whichever engine it is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import servers

HERE = Path(__file__).parent
GIVEN = {
    "REDIS": "redis://127.0.0.1:1",
    "VALKEY": "valkey://127.0.0.1:1",
    "REDIS_CLUSTER": "redis+cluster://127.0.0.1:1",
    "REDLOCK": "redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3",
    "ETCD": "etcd://127.0.0.1:1",
    "ZOOKEEPER": "zookeeper://127.0.0.1:1",
    "CONSUL": "consul://127.0.0.1:1",
    "POSTGRESQL": "postgresql://u:p@127.0.0.1:1/d",
    "MARIADB": "mariadb://u:p@127.0.0.1:1/d",
    "MYSQL": "mysql://u:p@127.0.0.1:1/d",
}
NONE_ITSELF = {"test_planted", "test_both_worlds", Path(__file__).stem}
SUITES = {path.stem for path in HERE.glob("test_*.py") if "def engine_under_test(" in path.read_text()} - NONE_ITSELF


def test_every_suite_goes_where_it_is_pointed() -> None:
    """Nobody listens there: a suite that starts a server of its own all the same would pass."""
    given = {f"LEASEHOLD_TEST_{engine}_URL": url for engine, url in GIVEN.items()}
    environment = {**os.environ, **given, "COLUMNS": "300"}
    only = "test_a_free_name_is_taken_at_once and asyncio and not sqlite"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-m", "", "-k", only, "--tb=line", str(HERE)]
    said = subprocess.run(command, env=environment, cwd=HERE.parents[1], capture_output=True, text=True, check=False)
    failed = re.findall(
        r"^FAILED tests/contract/(\w+)\.py::\S+ - .*EngineUnavailable.*127\.0\.0\.1:1\b", said.stdout, re.MULTILINE
    )
    assert set(failed) == SUITES, said.stdout
    assert len(failed) == len(SUITES) + 1, "Redis and Valkey share a file"
    assert " passed" not in said.stdout


def test_a_test_that_needs_a_server_of_its_own_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.support.programs import program_of

    monkeypatch.setattr(servers, "find", lambda _engine: None)
    with pytest.raises(pytest.fail.Exception, match="ensure etcd"):
        program_of("etcd")
    monkeypatch.setenv("LEASEHOLD_TEST_ETCD_URL", "etcd://127.0.0.1:1")
    with pytest.raises(pytest.skip.Exception, match="one of its own"):
        program_of("etcd")
