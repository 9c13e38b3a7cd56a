"""Real processes: one that is really stopped, one that is really killed, two that really race."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.fences.file_guard import FileGuard
from tests.fences.guards import Guard, RedisGuard, SqliteGuard
from tests.fences.sql_guards import SqlGuard

ROOT = Path(__file__).parents[2]


SQL_WAYS = ["psycopg postgresql", "orm postgresql", "django sqlite", "pymysql mysql"]


@pytest.fixture(params=["sqlite", "file", "redis", "valkey", *SQL_WAYS])
def guard(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    resource: str,
    url_of: Callable[[str], str],
    sql_url_of: Callable[[str], str],
) -> Iterator[Guard]:
    if request.param == "sqlite":
        one: Guard = SqliteGuard(tmp_path / "thing.db", resource, patience=30)
    elif request.param == "file":
        one = FileGuard(tmp_path, resource)
    elif request.param in SQL_WAYS:
        client, engine = request.param.split()
        one = SqlGuard(f"{client} {sql_url_of(engine)}", resource, patience=30)
    else:
        one = RedisGuard(url_of(request.param), resource)
    yield one
    one.close()


def _address_of(guard: Guard) -> str:
    match guard:
        case SqliteGuard():
            return str(guard.path)
        case FileGuard():
            return str(guard.folder)
        case RedisGuard():
            return guard.url
        case SqlGuard():
            return guard.address
        case _:
            pytest.fail("no process knows how to reach this")


@contextmanager
def holder(guard: Guard, deed: str, token: int) -> Iterator[subprocess.Popen[str]]:
    """Start a holder of the guarded resource; it is gone when the block ends."""
    address = _address_of(guard)
    command = [sys.executable, "-W", "error", "-m", "tests.fences.holder", address, guard.resource, deed, str(token)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_holder_that_was_stopped_is_refused_after_it_thaws(guard: Guard) -> None:
    with holder(guard, "stall", 33) as stalled:
        _, status = os.waitpid(stalled.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), "it ended instead of freezing"
        guard.write(34, "written by the next holder")
        os.kill(stalled.pid, signal.SIGCONT)
        told, _ = stalled.communicate(timeout=60)
    assert told.split() == ["stale", "33", "34"]
    assert guard.peek() == "written by the next holder"


def test_a_holder_that_was_stopped_goes_on_when_nobody_came_after_it(guard: Guard) -> None:
    """The other half of the proof: it is the token that decides, not the pause."""
    with holder(guard, "stall", 33) as stalled:
        _, status = os.waitpid(stalled.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        guard.write(32, "written by the holder before")
        os.kill(stalled.pid, signal.SIGCONT)
        told, _ = stalled.communicate(timeout=60)
    assert told.split() == ["written"]
    assert guard.peek() == "written by the stalled holder"


@pytest.mark.parametrize("guard", ["sqlite", *SQL_WAYS], indirect=True)
def test_a_holder_that_is_killed_half_way_leaves_nothing(guard: Guard) -> None:
    guard.write(32, "whole")
    with holder(guard, "crash", 33) as crashed:
        assert crashed.wait(timeout=60) == -signal.SIGKILL
    assert (guard.peek(), guard.floor()) == ("whole", 32)
    guard.write(32, "still mine")
    assert guard.peek() == "still mine"


def test_two_processes_that_race_lose_nothing(guard: Guard) -> None:
    with ExitStack() as stack:
        racers = [stack.enter_context(holder(guard, "count", token)) for token in (1, 2)]
        accepted = [int(racer.communicate(timeout=60)[0]) for racer in racers]
    assert sum(accepted) > 0
    assert guard.peek() == str(sum(accepted))
