"""The many histories are explored from the start of the run, by a process that takes only what the tests leave idle.

Nearly all other tests wait for leases to run out; the processor has little to do meanwhile. Of several workers of xdist
the first one starts the process, and whichever comes to the tests of the histories waits for what it leaves behind.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from leasehold.sim.runner import Tally, explore

HISTORIES = int(os.environ.get("LEASEHOLD_HISTORIES", "20000"))
WITHIN = 1100.0


class Exploration:
    """Under way in a process of its own."""

    def __init__(self, file: Path) -> None:
        self._file = file
        command = [sys.executable, "-m", "tests.sim.explorer", str(HISTORIES), str(file)]
        self._process = subprocess.Popen(command, cwd=Path(__file__).parents[2])

    @pytest.hookimpl
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Another worker may still wait for it; without one, or after an interruption, nobody does."""
        if not hasattr(session.config, "workerinput") or session.shouldstop:
            self._process.kill()
        self._process.wait(WITHIN)


def _file(config: pytest.Config) -> Path:
    """Where the tally is left: the same place for all workers of a run."""
    run: dict[str, Any] = getattr(config, "workerinput", {"testrunuid": str(os.getpid())})
    folder = Path(tempfile.gettempdir()) / f"leasehold-histories-{run['testrunuid']}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder / "tally"


def _is_under_way(session: pytest.Session) -> bool:
    wanted = any("tally" in getattr(item, "fixturenames", ()) for item in session.items)
    return wanted and len(session.items) > 100  # a few tests end too soon for this to be worth it


def pytest_collection_finish(session: pytest.Session) -> None:
    first = getattr(session.config, "workerinput", {"workerid": "gw0"})["workerid"] == "gw0"
    if first and _is_under_way(session) and not session.config.option.collectonly:
        session.config.pluginmanager.register(Exploration(_file(session.config)), "exploration")


@pytest.fixture(scope="session")
def tally(request: pytest.FixtureRequest) -> Tally:
    if not _is_under_way(request.session):
        return explore(range(HISTORIES), jobs=min(os.cpu_count() or 1, 4))
    file, give_up_at = _file(request.config), time.monotonic() + WITHIN
    while not file.exists():
        assert time.monotonic() < give_up_at, "the exploration has not ended"
        time.sleep(0.1)
    tally: Tally = pickle.loads(file.read_bytes())
    file.unlink()
    file.parent.rmdir()
    return tally
