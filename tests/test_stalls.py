"""A failed test is run again when the machine stood still, and only then."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# What else the machine has to do is left out of it.
CONFTEST = """
from pathlib import Path
from tests.support import stalls
from tests.support.stalls import stalls_are_no_failures

stalls.PRESSURE = Path("nowhere")

def pytest_configure(config):
    stalls_are_no_failures(config)
"""
# Called through PyDLL, the C library sleeps with the interpreter locked: no thread of this process gets on.
FAILS_TWICE = """
import ctypes

runs = []

def test_on_a_machine():
    runs.append(1)
    if {stands_still}:
        ctypes.PyDLL(None).usleep(300_000)
    assert len(runs) == 3
"""


@pytest.mark.parametrize("stands_still", [True, False])
def test_only_a_machine_that_stood_still_earns_a_test_another_run(tmp_path: Path, stands_still: bool) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(FAILS_TWICE.format(stands_still=stands_still))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
        str(tmp_path),
    ]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (run.returncode == 0) is stands_still, run.stdout
    assert run.stdout.count("RUN AGAIN") == (2 if stands_still else 0)
