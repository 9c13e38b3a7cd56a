"""A PostgreSQL server that is away, crashes, ends sessions, has no room, or is kept busy by others."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

import pytest
from tests.engines.driving import WORLDS, eventually
from tests.engines.postgres_help import assert_hidden, calling, exercise
from tests.engines.sql_help import fresh_namespace, want
from tests.support.postgres_server import PostgresServer, running_postgres

from leasehold import EngineError, EngineUnavailable, GuaranteeWarning, Leasehold
from leasehold.core.engine import Busy, Grant
from leasehold.testing.ports import free_port
from leasehold.wires.sql_table import Request, Row


@pytest.fixture(params=WORLDS)
def world(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def mortal() -> Iterator[PostgresServer]:
    """A server that tests may stop; each leaves it running."""
    with running_postgres() as server:
        yield server


# Away


def test_a_server_that_is_not_there_is_told_soon(world: str, postgres_server: PostgresServer) -> None:
    port = free_port()
    with calling(postgres_server.url_at("127.0.0.1", port), world, seconds=2.0) as engine:
        started = time.monotonic()
        with pytest.raises(EngineUnavailable, match=r"Connection refused.*is the server running") as told:
            engine.take(want("n", "h"))
        assert time.monotonic() - started < 2.0
        assert f"postgresql://127.0.0.1:{port}/leasehold cannot be reached" in str(told.value)
        assert_hidden(told.value)


def test_who_waits_gets_the_name_when_the_server_comes(mortal: PostgresServer) -> None:
    mortal.stop()
    starter = threading.Timer(1.0, mortal.start)
    starter.start()
    try:
        with Leasehold(mortal.url, namespace=fresh_namespace()) as locks, locks.lock("n", wait=60) as lease:
            assert lease.token > 0
    finally:
        starter.join()


def test_a_lease_outlives_a_crash_of_the_server(mortal: PostgresServer) -> None:
    namespace = fresh_namespace()
    with Leasehold(mortal.url, namespace=namespace) as locks, Leasehold(mortal.url, namespace=namespace) as others:
        with locks.lock("n", ttl=20) as lease:
            mortal.kill()
            with pytest.raises(EngineUnavailable, match="cannot be reached"):
                others.lock("n", wait=0).acquire()
            mortal.start()
            assert others.lock("n", wait=0).try_acquire() is None
            lease.extend()
        assert others.lock("n", wait=5).acquire().token > lease.token


def test_a_lease_that_could_not_be_renewed_is_lost_on_time(mortal: PostgresServer) -> None:
    with Leasehold(mortal.url, namespace=fresh_namespace()) as locks:
        lease = locks.lock("n", ttl=1.0).acquire()
        mortal.stop()
        try:
            assert lease.wait_lost(5.0)
            assert lease.lost
        finally:
            mortal.start()


# Sessions that are ended


def test_ended_sessions_are_replaced_without_a_word(postgres_server: PostgresServer, world: str) -> None:
    with calling(postgres_server.url, world) as engine:
        exercise(engine)
        for pid in postgres_server.backends("leasehold:test%"):
            postgres_server.terminate(pid)
        exercise(engine)


def test_who_waits_is_woken_by_another_session(postgres_server: PostgresServer, world: str) -> None:
    """One whose ear was cut off asks again at once, and listens anew."""
    with calling(postgres_server.url, world) as engine:
        first, second = want("n", "a" * 32), want("n", "b" * 32)
        engine.take(first)
        assert isinstance(engine.take(second, patience=60.0), Busy)
        for pid in postgres_server.backends("leasehold:test%"):
            postgres_server.terminate(pid)
        assert engine.wait(second, 30.0) < 10.0
        assert isinstance(engine.take(second, patience=60.0), Busy)
        assert engine.release("n", first.holder)
        assert engine.wait(second, 30.0) < 10.0
        assert isinstance(engine.take(second, patience=60.0), Grant)


def test_one_who_stalls_in_a_transaction_closes_the_name_for_a_moment_only(postgres_server: PostgresServer) -> None:
    with calling(postgres_server.url, "blocking") as stalled, calling(postgres_server.url, "blocking") as other:
        stalled.engine._leases = other.engine._leases
        engine = stalled.engine
        line = stalled._run(engine._wire.lend(engine.world.now() + 5))
        other.take(want("n", "a" * 32, ttl=0.05))
        time.sleep(0.1)
        begun = [engine.begin, *engine._leases.load("n")]
        stalled._run(line.ask_all(begun, engine.world.now() + 5, commits=False))
        started = time.monotonic()
        assert isinstance(other.take(want("n", "b" * 32)), Grant)
        assert time.monotonic() - started > 0.5
        line.close()


def test_nothing_is_left_behind(postgres_server: PostgresServer, world: str) -> None:
    with calling(postgres_server.url, world) as engine:
        exercise(engine)
        assert postgres_server.backends("leasehold:test%")
    eventually(lambda: not postgres_server.backends("leasehold:test%"))


# Servers that have no room, or are kept busy


def test_too_many_connections_are_told(postgres_server: PostgresServer, world: str) -> None:
    postgres_server.sql("ALTER ROLE leasehold CONNECTION LIMIT 0")
    try:
        with (
            calling(postgres_server.url, world) as engine,
            pytest.raises(EngineUnavailable, match=r"too many connections for role.*raise max_connections"),
        ):
            engine.take(want("n", "h"))
    finally:
        postgres_server.sql("ALTER ROLE leasehold CONNECTION LIMIT -1")


def test_somebody_who_keeps_the_row_locked_is_told_of(postgres_server: PostgresServer, world: str) -> None:
    with calling(postgres_server.url, world) as engine, contextlib.closing(postgres_server.superuser()) as stranger:
        engine.take(want("n", "a" * 32))
        engine.release("n", "a" * 32)
        with stranger.transaction():
            stranger.execute("SELECT 1 FROM leasehold_lease WHERE name = 'n' FOR UPDATE")
            with pytest.raises(EngineUnavailable, match="keeps the row locked; look in pg_stat_activity"):
                engine.take(want("n", "b" * 32))
        assert isinstance(engine.take(want("n", "b" * 32)), Grant)


def test_tables_of_another_version_are_left_alone(postgres_server: PostgresServer, world: str) -> None:
    url = f"{postgres_server.url}?schema=elsewhere"
    postgres_server.sql("CREATE SCHEMA elsewhere AUTHORIZATION leasehold")
    try:
        with calling(url, world) as engine:
            exercise(engine)
        postgres_server.sql("UPDATE elsewhere.leasehold_meta SET version = 99")
        with (
            calling(url, world) as engine,
            pytest.raises(EngineError, match=r"another version of Leasehold \(theirs is 99, .*\?schema="),
        ):
            engine.take(want("n", "h"))
    finally:
        postgres_server.sql("DROP SCHEMA elsewhere CASCADE")


# Settings that are too weak


@pytest.mark.parametrize(
    ("more", "setting", "why"),
    [
        ("?durable=false", "synchronous_commit = on", "may undo its latest grants"),
        ("", "synchronous_commit = off", "may undo its latest grants"),
    ],
)
def test_weak_settings_are_warned_of(postgres_server: PostgresServer, more: str, setting: str, why: str) -> None:
    postgres_server.sql(f"ALTER ROLE leasehold SET {setting}")
    try:
        with Leasehold(postgres_server.url + more, namespace=fresh_namespace()) as locks:
            locks.lock("n").acquire().release()
            with pytest.warns(GuaranteeWarning, match=why):
                locks.lock("n", purpose="correctness").acquire().release()
    finally:
        postgres_server.sql("ALTER ROLE leasehold RESET synchronous_commit")


# Answers that belong to another request


def test_the_grant_of_another_is_not_taken_for_ones_own(
    postgres_server: PostgresServer, world: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with calling(postgres_server.url, world) as engine:
        asked = engine.engine._ask
        answers: list[list[Row]] = []

        async def once(request: Request, until: float) -> list[Row]:
            """Whatever is asked, tell what was answered first."""
            if not answers:
                answers.append(await asked(request, until))
            return answers[0]

        monkeypatch.setattr(engine.engine, "_ask", once)
        assert isinstance(engine.take(want("a", "h1")), Grant)
        with pytest.raises(EngineError, match="makes no sense"):
            engine.take(want("b", "h2"))
        assert engine.names(after=None, limit=10) == ["a"]


# The end


def test_a_step_after_the_end_leaves_no_connection_behind(postgres_server: PostgresServer, world: str) -> None:
    """A thread that is still at work when its client is closed."""
    with calling(postgres_server.url, world) as engine:
        pool = engine.engine._wire._pool  # type: ignore[attr-defined]
        engine.take(want("n", "h"))
        assert len(pool._open) == 1, "while a client is open, its connections are kept"
        engine._run(engine.engine.close())
        assert engine.release("n", "h") is True
        assert not pool._open
