"""The many histories are explored from the start of the run, by a process that takes only what the tests leave idle.

Nearly all tests before them wait for leases to run out; the processor has little to do meanwhile.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from leasehold.sim.runner import Tally, explore

HISTORIES = int(os.environ.get("LEASEHOLD_HISTORIES", "20000"))


class Exploration:
    """Under way in a process of its own."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._file = Path(self._folder.name) / "tally"
        command = [sys.executable, "-m", "tests.sim.explorer", str(HISTORIES), str(self._file)]
        self._process = subprocess.Popen(command, cwd=Path(__file__).parents[2])

    def result(self) -> Tally:
        """Wait for its end."""
        if code := self._process.wait():
            raise RuntimeError(f"the exploration ended with {code}")
        tally: Tally = pickle.loads(self._file.read_bytes())
        return tally

    def pytest_unconfigure(self) -> None:
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()


def pytest_collection_finish(session: pytest.Session) -> None:
    wanted = any("tally" in getattr(item, "fixturenames", ()) for item in session.items)
    with_others = len(session.items) > 100  # a few tests end too soon for this to be worth it
    if wanted and with_others and not hasattr(session.config, "workerinput") and not session.config.option.collectonly:
        session.config.pluginmanager.register(Exploration(), "exploration")


@pytest.fixture(scope="session")
def tally(request: pytest.FixtureRequest) -> Iterator[Tally]:
    exploration = request.config.pluginmanager.get_plugin("exploration")
    if isinstance(exploration, Exploration):
        yield exploration.result()
    else:
        yield explore(range(HISTORIES), jobs=min(os.cpu_count() or 1, 4))
