"""A result that was stored in the caller's own transaction, and rolled back with it: the run has failed, at once."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import asyncmy
import psycopg
import pymysql
import pytest
import sqlalchemy
from tests.patterns.conftest import store_of
from tests.support.mariadb_server import PASSWORD

from leasehold import InProgress, Quarantined
from leasehold.patterns.idempotency import AsyncIdempotency, AsyncRun, Idempotency, InThreads, Run, SqlKeys
from leasehold.patterns.jobs import AsyncJobRun, AsyncJobs, JobRun, Jobs

KINDS = ["sqlite", "postgresql", "mysql"]
_tables = itertools.count()


class Boom(Exception):
    """Planted."""


@pytest.fixture(params=KINDS)
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SqlKeys]:
    with store_of(request.param, request, tmp_path) as store:
        yield store


@pytest.fixture
def own(kept: SqlKeys) -> Iterator[Any]:
    """A connection of the caller's own."""
    connection = kept.connections.connect()
    yield connection
    with contextlib.suppress(pymysql.err.Error):  # closed already
        connection.close()


def _failing(own: Any, end: Callable[[], object] | None) -> Callable[[Run | JobRun], None]:
    table = f"undone_{os.getpid()}_{next(_tables)}"
    own.cursor().execute(f"CREATE TABLE {table} (n INTEGER)")
    own.commit()

    def work(run: Run | JobRun) -> None:
        own.cursor().execute(f"INSERT INTO {table} VALUES (1)")
        run.complete("done", on=own)
        if end is not None:
            end()
        raise Boom

    return work


@pytest.mark.parametrize("end", ["rollback", "close"])
def test_a_key_is_free_again_or_in_quarantine_when_its_result_was_rolled_back(
    kept: SqlKeys, own: Any, end: str
) -> None:
    work = _failing(own, getattr(own, end))
    with pytest.raises(Boom):
        Idempotency(kept, scope="strict", on_error="quarantine").once("k", work)
    with pytest.raises(Quarantined):
        Idempotency(kept, scope="strict").once("k", lambda _run: pytest.fail("it ran again"))
    again = kept.connections.connect()
    with pytest.raises(Boom):
        Idempotency(kept, scope="plain").once("k", _failing(again, again.rollback))
    assert Idempotency(kept, scope="plain").once("k", lambda _run: "ran again") == "ran again"
    again.close()


def test_a_key_whose_result_was_committed_keeps_it_whatever_comes_afterwards(kept: SqlKeys, own: Any) -> None:
    keys = Idempotency(kept, scope="s", on_error="quarantine")
    with pytest.raises(Boom):
        keys.once("k", _failing(own, own.commit))
    assert keys.once("k", lambda _run: pytest.fail("it ran again")) == "done"


def test_nobody_waits_for_a_transaction_of_a_key_that_is_still_open(
    kept: SqlKeys, own: Any, caplog: pytest.LogCaptureFixture
) -> None:
    keys = Idempotency(kept, scope="s")
    with pytest.raises(Boom):  # and not a refusal of the database that somebody has waited for too long
        keys.once("k", _failing(own, None))
    assert "is open" in caplog.text
    with pytest.raises(InProgress):
        keys.once("k", lambda _run: pytest.fail("it ran again"))
    own.commit()
    assert keys.once("k", lambda _run: pytest.fail("it ran again")) == "done"


@pytest.mark.parametrize("end", ["rollback", "close"])
def test_a_job_whose_end_was_rolled_back_has_failed(kept: SqlKeys, own: Any, end: str) -> None:
    jobs = Jobs(kept, backoff=0)
    failing = jobs.once_per("1d", name="export")(_failing(own, getattr(own, end)))
    with pytest.raises(Boom):
        failing()
    [status] = jobs.status()
    assert not status.is_alive
    assert [one.state for one in status.runs] == ["failed"]
    outcome = jobs.once_per("1d", name="export")(lambda run: run.attempt)()
    assert (outcome.state, outcome.result) == ("ran", 2)


def test_a_job_whose_end_was_committed_or_is_still_open_is_left_as_it_is(kept: SqlKeys, own: Any) -> None:
    jobs = Jobs(kept, backoff=0)
    committed = jobs.once_per("1d", name="committed")(_failing(own, own.commit))
    with pytest.raises(Boom):
        committed()
    assert committed().result == "done"
    is_open = jobs.once_per("1d", name="open")(_failing(own, None))
    with pytest.raises(Boom):
        is_open()
    assert is_open().state == "under way"
    own.commit()
    assert is_open().result == "done"


def test_a_rollback_of_sqlalchemy_is_seen(tmp_path: Path) -> None:
    store = SqlKeys(tmp_path / "app.db")
    store.create()
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path}/app.db")

    def work(run: Run) -> None:
        with engine.begin() as own:
            run.complete("done", on=own)
            raise Boom

    keys = Idempotency(store, scope="s")
    with pytest.raises(Boom):
        keys.once("k", work)
    assert keys.once("k", lambda _run: "ran again") == "ran again"
    engine.dispose()
    store.close()


def test_a_connection_of_sqlite3_that_is_closed_has_no_transaction(tmp_path: Path) -> None:
    store, own = SqlKeys(tmp_path / "app.db"), sqlite3.connect(tmp_path / "own.db")
    own.execute("CREATE TABLE t (n)")
    own.execute("INSERT INTO t VALUES (1)")
    assert store.is_open_on(own)
    own.close()
    assert not store.is_open_on(own)


@pytest.mark.parametrize("kind", ["postgresql", "mysql"])
def test_async_runs_whose_result_was_rolled_back_have_failed(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    async def connected() -> Any:
        if kind == "postgresql":
            return await psycopg.AsyncConnection.connect(request.getfixturevalue("postgres_server").url)
        port = request.getfixturevalue("mariadb_server").port
        return await asyncmy.connect(
            host="127.0.0.1", port=port, user="leasehold", password=PASSWORD, database="leasehold"
        )

    async def run(store: InThreads) -> None:
        own = await connected()

        def failing(end: Callable[[], Awaitable[object]] | None) -> Callable[[AsyncRun | AsyncJobRun], Awaitable[None]]:
            async def work(run: AsyncRun | AsyncJobRun) -> None:
                await run.complete("done", on=own)
                if end is not None:
                    await end()
                raise Boom

            return work

        async def again(_run: object) -> str:
            return "ran again"

        keys, jobs = AsyncIdempotency(store, scope="s"), AsyncJobs(store, backoff=0)
        for name, end, expected in (("a", own.rollback, "ran again"), ("b", own.commit, "done")):
            with pytest.raises(Boom):
                await keys.once(name, failing(end))
            assert await keys.once(name, again) == expected
            with pytest.raises(Boom):
                await jobs.once_per("1d", name=name)(failing(end))()
            assert (await jobs.once_per("1d", name=name)(again)()).result == expected
        with pytest.raises(Boom):
            await keys.once("c", failing(None))
        with pytest.raises(InProgress):
            await keys.once("c", again)
        await own.rollback()
        closing = own.close()
        if closing is not None:
            await closing

    with store_of(kind, request, tmp_path) as store:
        asyncio.run(run(InThreads(store)))
