from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from leasehold.testing import EngineUnderTest
from leasehold.testing.contract import *  # noqa: F403


@pytest.fixture(scope="session", params=["sqlite"])
def engine_under_test(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineUnderTest]:
    path = tmp_path_factory.mktemp("sqlite") / "leases.db"
    blockers: list[sqlite3.Connection] = []

    def pause() -> None:
        blocker = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        blocker.execute("BEGIN IMMEDIATE")
        blockers.append(blocker)

    def resume() -> None:
        blockers.pop().close()

    yield EngineUnderTest(url=f"sqlite:///{path}", pause=pause, resume=resume)
