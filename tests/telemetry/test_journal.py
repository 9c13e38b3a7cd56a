"""The journal of refused writes: what one process saw is read by another, whatever goes wrong in between."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.mariadb_server import running_mariadb
from tests.support.postgres_server import running_postgres
from tests.support.redis_server import RedisServer, running
from tests.telemetry.conftest import wait_for

import leasehold
from leasehold import Leasehold, NotSupported, StaleToken
from leasehold.events import Refused
from leasehold.fences import SqliteFence
from leasehold.telemetry import journal as journals
from leasehold.telemetry.journal import LONGEST_TEXT, MOST_KEPT, Journal, read


@pytest.fixture(params=["sqlite", "redis", "postgresql", pytest.param("mariadb", marks=pytest.mark.nightly)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/leases.db"
    elif request.param == "redis":
        with running(RedisServer("redis", tmp_path)) as redis:
            yield redis.url
    elif request.param == "postgresql":
        with running_postgres() as postgres:
            yield postgres.url
    else:
        with running_mariadb() as mariadb:
            yield mariadb.url


def test_what_a_fence_refuses_is_read_by_others(url: str) -> None:
    with contextlib.closing(sqlite3.connect(":memory:")) as database, Leasehold(url, label="late") as locks:
        fence = SqliteFence(database)
        fence.create()
        with fence.writing("invoices", 34):
            pass
        with Leasehold(url) as others:
            assert read(others) is None
            with Journal(locks) as journal, leasehold.watch(journal), pytest.raises(StaleToken):
                fence.writing("invoices", 33).__enter__()
            told = read(others)
    assert told is not None
    assert told.counts == {"stale": 1, "used": 0, "jump": 0}
    [one] = told.last
    assert (one.resource, one.token, one.seen, one.reason) == ("invoices", 33, 34, "stale")
    assert one.by.startswith("late@")
    assert abs(one.at - time.time()) < 60


def test_those_who_only_read_leave_no_trace(tmp_path: Path) -> None:
    with running_postgres() as postgres, Leasehold(postgres.url) as locks:
        locks.lock("name").acquire().release()
        before = postgres.sql("SELECT count(*) FROM pg_tables")
        assert read(locks) is None
        assert postgres.sql("SELECT count(*) FROM pg_tables") == before
    with Leasehold(tmp_path / "leases.db") as file:
        assert read(file) is None
    assert list(tmp_path.iterdir()) == []


def test_many_processes_write_into_one(locks: Leasehold) -> None:
    some = [Journal(locks) for _ in range(4)]
    for number in range(25):
        for journal in some:
            journal(Refused(f"resource-{number}", 1, "stale", 2))
    threads = [threading.Thread(target=journal.close) for journal in some]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    told = read(locks)
    assert told is not None
    assert (told.counts["stale"], len(told.last)) == (100, 100)


def test_it_is_bounded(locks: Leasehold) -> None:
    with Journal(locks) as journal:
        for number in range(3 * MOST_KEPT):
            journal(Refused("x" * 10_000 + str(number), number, "jump", None))
    told = read(locks)
    assert told is not None
    assert (told.counts["jump"], len(told.last)) == (3 * MOST_KEPT, MOST_KEPT)
    assert told.last[-1].token == 3 * MOST_KEPT - 1
    assert {len(one.resource) for one in told.last} == {LONGEST_TEXT}


def test_an_engine_that_comes_back_is_told_then(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journals, "TOGETHER", 0.05)
    monkeypatch.setattr(journals, "LONGEST_PAUSE", 0.05)
    server = RedisServer("redis", tmp_path)
    with Leasehold(server.url) as locks, Journal(locks) as journal:
        with caplog.at_level(logging.WARNING, "leasehold"):
            journal(Refused("invoices", 1, "stale", 2))
            wait_for(lambda: "cannot be written down" in caplog.text, "it says so")
            journal(Refused("invoices", 2, "used", 3))
        with running(server):

            def told() -> Any:
                found = read(locks)
                return found is not None and found.counts["used"] and found

            wait_for(told, "both are written down")
            assert [one.token for one in told().last] == [1, 2]


FORKS = """
import os, sys
from leasehold import Leasehold
from leasehold.events import Refused
from leasehold.telemetry.journal import Journal

with Leasehold(sys.argv[1]) as locks, Journal(locks) as journal:
    journal(Refused("parent", 1, "stale", 2))
    child = os.fork()
    if not child:
        journal(Refused("child", 1, "stale", 2))
        journal.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""


def test_a_forked_child_writes_what_is_its_own(locks: Leasehold, file: Path) -> None:
    subprocess.run([sys.executable, "-c", FORKS, f"sqlite:///{file}"], check=True, timeout=60)
    told = read(locks)
    assert told is not None
    assert sorted(one.resource for one in told.last) == ["child", "parent"]
    assert told.counts["stale"] == 2


ENDS = """
import sys
from leasehold import Leasehold, watch
from leasehold.events import Refused
from leasehold.telemetry.journal import Journal

watch(Journal(Leasehold(sys.argv[1])))
from leasehold import watching
watching.note(Refused("last words", 1, "stale", 2))
"""


def test_a_program_that_ends_at_once_has_told(locks: Leasehold, file: Path) -> None:
    subprocess.run([sys.executable, "-c", ENDS, f"sqlite:///{file}"], check=True, timeout=60)
    told = read(locks)
    assert told is not None
    assert [one.resource for one in told.last] == ["last words"]


def test_an_engine_without_notes_says_so() -> None:
    with Leasehold("etcd://127.0.0.1:1") as locks, pytest.raises(NotSupported, match="keeps no"):
        Journal(locks)
