"""The two worlds of a scenario play at the same time, and each test tells what came of its own world."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

SUITE = """
import asyncio, threading
import pytest
from leasehold.testing import EngineUnderTest
from leasehold.testing.stage import make_stage, scenario

both, inside = threading.Barrier(2), []

@pytest.fixture(scope="session")
def engine_under_test():
    return EngineUnderTest(url="sqlite:///leases.db")

@scenario()
async def test_together(stage):
    await asyncio.to_thread(both.wait, 60)

@scenario(alone=True)
async def test_alone(stage):
    inside.append(stage.world)
    await asyncio.sleep(0.1)
    assert inside == [stage.world]
    inside.remove(stage.world)

@pytest.mark.parametrize("number", [1, 2])
@scenario()
async def test_fails_in_async_code(stage, number):
    assert stage.world == "blocking" or number == 2, "planted"

@scenario()
async def test_fails_in_blocking_code(stage):
    assert stage.world == "asyncio", "planted"

@scenario()
async def test_is_left_out_in_async_code(stage):
    if stage.world == "asyncio":
        pytest.skip("planted")
"""

EXPECTED = {
    "together[blocking]": "PASSED",
    "together[asyncio]": "PASSED",
    "alone[blocking]": "PASSED",
    "alone[asyncio]": "PASSED",
    "fails_in_async_code[blocking-1]": "PASSED",
    "fails_in_async_code[blocking-2]": "PASSED",
    "fails_in_async_code[asyncio-1]": "FAILED",
    "fails_in_async_code[asyncio-2]": "PASSED",
    "fails_in_blocking_code[blocking]": "FAILED",
    "fails_in_blocking_code[asyncio]": "PASSED",
    "is_left_out_in_async_code[blocking]": "PASSED",
    "is_left_out_in_async_code[asyncio]": "SKIPPED",
}


def test_each_test_tells_what_came_of_its_own_world(tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text(SUITE)
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-p", "tests.contract.conftest"]
    run = subprocess.run(
        [*command, str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tools'}"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert dict(re.findall(r"::test_(\S+) ([A-Z]+)", run.stdout)) == EXPECTED, run.stdout
    assert "planted" in run.stdout
