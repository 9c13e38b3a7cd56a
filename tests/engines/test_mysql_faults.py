"""A server that is away, goes away, comes back, refuses to write, or ends connections: a clear error, and in time."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.engines.driving import eventually
from tests.engines.mysql_help import calling, opened
from tests.engines.sql_help import soon, want
from tests.support.mariadb_server import MariadbServer, running_mariadb

from leasehold import Leasehold
from leasehold.core.engine import Busy, Grant
from leasehold.core.worlds import run_blocking
from leasehold.errors import EngineError, EngineUnavailable, GuaranteeWarning, OutcomeUnknown
from leasehold.testing.proxy import Proxy
from leasehold.wires.mysql_line import NUDGE
from leasehold.wires.mysql_packets import written
from leasehold.wires.sql_table import Request

WORLDS = ("blocking", "asyncio")


@pytest.fixture(params=WORLDS)
def world(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=["mariadb", "mysql"])
def own_server(request: pytest.FixtureRequest) -> Iterator[MariadbServer]:
    """A server that these tests stop and start."""
    with running_mariadb(engine=request.param) as server:
        yield server


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    since = time.monotonic()
    yield
    assert time.monotonic() - since < seconds


def test_a_server_that_is_down_is_named_at_once_and_used_when_it_comes_up(
    own_server: MariadbServer, world: str
) -> None:
    own_server.stop()
    with calling(own_server.url, world) as (engine, run):
        with within(3.0), pytest.raises(EngineUnavailable, match=r"mysql://127\.0\.0\.1:\d+/leasehold .*refused"):
            run(engine.take(want("a", "h1"), until=soon(engine)))
        own_server.start()
        assert isinstance(run(engine.take(want("a", "h2"), until=soon(engine))), Grant)
        assert run(engine.release("a", "h2", until=soon(engine)))


def test_a_server_that_goes_away_takes_no_answer_with_it(own_server: MariadbServer, world: str) -> None:
    """Leases and queues are in the tables; a waiter notices that its listener broke, and asks again."""
    with calling(own_server.url, world) as (engine, run):
        grant = run(engine.take(want("b", "h1"), until=soon(engine)))
        assert isinstance(run(engine.take(want("b", "h2"), until=soon(engine), patience=30.0)), Busy)
        own_server.kill()
        with within(3.0):
            run(engine.wait(want("b", "h2"), soon(engine)))
        with within(3.0), pytest.raises((EngineUnavailable, OutcomeUnknown)):
            run(engine.release("b", "h1", until=soon(engine)))
        own_server.start()
        status = run(engine.status("b", until=soon(engine)))
        assert [one.token for one in status.holders] == [grant.token]
        assert run(engine.release("b", "h1", until=soon(engine)))
        second = run(engine.take(want("b", "h2"), until=soon(engine), patience=30.0))
        assert second.token > grant.token
        assert run(engine.release("b", "h2", until=soon(engine)))


def test_a_connection_that_the_server_killed_is_replaced(mariadb_server: MariadbServer, world: str) -> None:
    with calling(mariadb_server.url, world) as (engine, run):
        assert isinstance(run(engine.take(want("a", "h1"), until=soon(engine))), Grant)
        assert isinstance(run(engine.take(want("a", "h2"), until=soon(engine), patience=30.0)), Busy)
        for number in mariadb_server.connections():
            with contextlib.suppress(Exception):
                mariadb_server.sql(f"KILL CONNECTION {number}")
        with within(3.0):
            run(engine.wait(want("a", "h2"), soon(engine)))
        assert run(engine.release("a", "h1", until=soon(engine)))
        assert isinstance(run(engine.take(want("a", "h2"), until=soon(engine), patience=30.0)), Grant)


def test_a_server_that_takes_no_writes_is_left(mariadb_server: MariadbServer, world: str) -> None:
    """Before it is found out by a write, and also when it turns so while connections are open."""
    with calling(mariadb_server.url, world) as (engine, run):
        assert isinstance(run(engine.take(want("a", "h1"), until=soon(engine))), Grant)
        mariadb_server.sql("SET GLOBAL read_only = 1")
        try:
            for _ in range(2):
                with pytest.raises(EngineUnavailable, match="takes no writes"):
                    run(engine.take(want("b", "h2"), until=soon(engine)))
        finally:
            mariadb_server.sql("SET GLOBAL read_only = 0")
        assert run(engine.release("a", "h1", until=soon(engine)))


def test_of_several_servers_the_one_that_can_be_written_to_is_used(own_server: MariadbServer) -> None:
    with running_mariadb(engine=own_server.engine, read_only="1") as replica:
        replica.sql("CREATE TABLE leasehold.leasehold_meta (one INT, version INT, base BIGINT)")
        replica.sql("INSERT INTO leasehold.leasehold_meta VALUES (1, 1, 0)")
        url = replica.url.removesuffix("/leasehold") + f",127.0.0.1:{own_server.port}/leasehold"
        with opened(url) as engine:
            assert isinstance(run_blocking(engine.take(want("a", "h"), until=soon(engine))), Grant)
            assert run_blocking(engine.release("a", "h", until=soon(engine)))
        assert own_server.sql("SELECT COUNT(*) FROM leasehold.leasehold_lease WHERE name = 'a'") != [(0,)]


@pytest.mark.parametrize("way", ["requests", "replies"])
def test_what_is_cut_one_way_is_told_in_time(mariadb_server: MariadbServer, world: str, way: str) -> None:
    with (
        Proxy("127.0.0.1", mariadb_server.port) as proxy,
        calling(mariadb_server.url_at(proxy.host, proxy.port), world) as (engine, run),
    ):
        assert isinstance(run(engine.take(want("a", "h1"), until=soon(engine))), Grant)
        proxy.cut("requests" if way == "requests" else "replies")
        with within(2.0), pytest.raises(OutcomeUnknown):
            run(engine.release("a", "h1", until=soon(engine, 0.3)))
        with within(2.0), pytest.raises(EngineUnavailable, match="no answer in time"):
            run(engine.release("a", "h1", until=soon(engine, 0.3)))
        proxy.heal()
        assert run(engine.release("a", "h1", until=soon(engine))) is (way == "requests")


def test_who_stalls_in_the_middle_of_a_transaction_loses_it(mariadb_server: MariadbServer) -> None:
    """A process that stops between two requests must not keep a name's row locked for as long as it likes."""
    with opened(mariadb_server.url, namespace="stalls") as engine, opened(mariadb_server.url) as other:
        assert isinstance(run_blocking(engine.take(want("a", "h1"), until=soon(engine))), Grant)
        stalled = run_blocking(engine._wire.lend(soon(engine)))
        load = engine._leases.load("a", "h1")
        run_blocking(stalled.ask_all([engine.begin, *load], soon(engine), commits=False))
        other._leases, other._namespace = engine._leases, engine._namespace
        with within(4.0):
            assert run_blocking(other.release("a", "h1", until=soon(other, 8.0)))
        with pytest.raises(EngineError):
            run_blocking(stalled.ask_all([engine.commit], soon(engine), commits=True))
        engine._wire.drop(stalled, EngineError())


def test_a_row_that_somebody_else_keeps_locked_is_told_in_time(mariadb_server: MariadbServer) -> None:
    with opened(mariadb_server.url) as engine, contextlib.closing(mariadb_server.superuser()) as admin:
        assert isinstance(run_blocking(engine.take(want("a", "h1"), until=soon(engine))), Grant)
        admin.begin()
        with admin.cursor() as cursor:
            cursor.execute("SELECT * FROM leasehold.leasehold_lease FOR UPDATE")
        with within(8.0), pytest.raises(EngineUnavailable, match="keeps the row locked"):
            run_blocking(engine.release("a", "h1", until=soon(engine, 10.0)))
        admin.rollback()
        assert run_blocking(engine.release("a", "h1", until=soon(engine)))


def test_no_connection_left_is_told(mariadb_server: MariadbServer) -> None:
    mariadb_server.sql("ALTER USER leasehold WITH MAX_USER_CONNECTIONS 1")
    try:
        with opened(mariadb_server.url) as engine, opened(mariadb_server.url) as other:
            run_blocking(engine.take(want("a", "h1"), until=soon(engine)))
            with pytest.raises(EngineUnavailable, match="no connection left"):
                run_blocking(other.take(want("a", "h1"), until=soon(engine)))
    finally:
        mariadb_server.sql("ALTER USER leasehold WITH MAX_USER_CONNECTIONS 0")


def test_a_weak_deployment_is_warned_of(mariadb_server: MariadbServer) -> None:
    with opened(mariadb_server.url) as engine:
        run_blocking(engine.check_purpose("correctness", until=soon(engine)))
        mariadb_server.sql("SET GLOBAL innodb_flush_log_at_trx_commit = 2")
        try:
            with pytest.warns(GuaranteeWarning, match="innodb_flush_log_at_trx_commit to 1"):
                run_blocking(engine.check_purpose("correctness", until=soon(engine)))
        finally:
            mariadb_server.sql("SET GLOBAL innodb_flush_log_at_trx_commit = 1")


@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
def test_a_binary_log_that_replicas_could_not_follow_is_refused(kind: str) -> None:
    settings = {"log_bin": "binary-log", "server_id": "1", "sync_binlog": "0", "binlog_format": "STATEMENT"}
    with running_mariadb(engine=kind, files=None, **settings) as server:
        with opened(server.url) as engine, pytest.raises(EngineError, match="set it to ROW or MIXED"):
            run_blocking(engine.take(want("a", "h1"), until=soon(engine)))
        server.sql("SET GLOBAL binlog_format = 'ROW'")
        with opened(server.url) as engine, pytest.warns(GuaranteeWarning, match="set sync_binlog to 1"):
            run_blocking(engine.check_purpose("correctness", until=soon(engine)))


def test_nothing_is_left_behind(mariadb_server: MariadbServer, world: str) -> None:
    eventually(lambda: not mariadb_server.connections())
    with calling(mariadb_server.url, world) as (engine, run):
        run(engine.take(want("a", "h1"), until=soon(engine)))
        run(engine.take(want("a", "h2"), until=soon(engine), patience=30.0))
        run(engine.release("a", "h2", until=soon(engine)))
        run(engine.release("a", "h1", until=soon(engine)))
    eventually(lambda: not mariadb_server.connections())


def test_a_server_that_isolates_snapshots_is_asked_again_when_a_row_has_changed() -> None:
    """MariaDB does so since 11.6: whoever waited for a row that was changed meanwhile is refused."""
    held: list[int] = []

    def take_often() -> None:
        with Leasehold(server.url) as locks:
            for _ in range(10):
                with locks.lock("name", ttl=30, wait=60) as lease:
                    held.append(lease.token)

    settings = {"innodb-snapshot-isolation": "ON"}
    with running_mariadb(files=None, **settings) as server, ThreadPoolExecutor(8) as threads:
        for done in [threads.submit(take_often) for _ in range(8)]:
            done.result()
    assert held == sorted(set(held))
    assert len(held) == 80


def test_a_waiter_that_cannot_be_interrupted_at_once_does_not_keep_who_releases(
    mariadb_server: MariadbServer, world: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The release is committed before it."""
    with calling(mariadb_server.url, world) as (engine, run):
        run(engine.take(want("n", "h1"), until=soon(engine)))
        assert isinstance(run(engine.take(want("n", "h2"), until=soon(engine), patience=30.0)), Busy)
        monkeypatch.setattr(engine._post, "interrupt_next", Request(written(NUDGE, "SELECT SLEEP(5)")))
        with within(3.0):
            assert run(engine.release("n", "h1", until=soon(engine, 2.0)))
        assert isinstance(run(engine.take(want("n", "h2"), until=soon(engine))), Grant)
        assert run(engine.release("n", "h2", until=soon(engine)))


def test_a_listener_that_is_replaced_is_closed(mariadb_server: MariadbServer, world: str) -> None:
    """Two who begin to wait at the same moment may each open one."""
    with calling(mariadb_server.url, world) as (engine, run):
        listener: Any = engine._wire._listener  # type: ignore[attr-defined]
        run(listener._open(soon(engine)))
        first = listener._ear
        run(listener._open(soon(engine)))
        assert first.line.socket == -1
        assert listener._ear.line.socket >= 0
