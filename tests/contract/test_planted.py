"""The suite finds what it is there to find: a bug is planted in the product, and the scenario about it must fail."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

SUITE = """
import pathlib, tempfile
import pytest
from leasehold.testing import EngineUnderTest
from leasehold.testing.contract import *

{planted}

@pytest.fixture(scope="session")
def engine_under_test():
    return EngineUnderTest(url=f"sqlite:///{{pathlib.Path(tempfile.mkdtemp()) / 'leases.db'}}")
"""

BUGS = {
    "the lease is never renewed": (
        "import leasehold.core.keeper as k\nk.Keeper._due = lambda self: ([], None)",
        "test_a_lease_is_renewed_for_as_long_as_it_is_held",
    ),
    "nobody is told of a loss": (
        "import leasehold.core.keeper as k\nk.Keeper._lose = lambda self, held: self.forget(held)",
        "test_the_loss_is_told_at_the_holders_own_deadline",
    ),
    "an interrupted attempt is not given back": (
        "import leasehold.desk as d\nd.Desk.abandon = lambda self, attempts: []",
        "cancellation_anywhere or cancelled_waiter",
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str, tmp_path: Path) -> None:
    """Without the bug the same scenarios pass; with it at least one fails."""
    planted, scenarios = BUGS[bug]
    assert _run(tmp_path, "", scenarios) == pytest.ExitCode.OK
    assert _run(tmp_path, planted, scenarios) == pytest.ExitCode.TESTS_FAILED


def _run(folder: Path, planted: str, scenarios: str) -> int:
    module = folder / "test_planted_suite.py"
    module.write_text(SUITE.format(planted=planted))
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-k", scenarios, str(module)]
    return subprocess.run(
        command, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, timeout=110, check=False
    ).returncode
