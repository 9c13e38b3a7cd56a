"""A lock in the caller's own transaction: lock, fence and write commit together, or not at all."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from tests.engines.driving import eventually
from tests.engines.sql_help import fresh_namespace
from tests.support.postgres_server import PostgresServer

from leasehold import EngineError, Leasehold, Misuse, NotAcquired
from leasehold.engines.postgres import lock_in_transaction, lock_in_transaction_async

RACERS, ROUNDS = 4, 15
Open = Callable[[str], contextlib.AbstractContextManager[Any]]


@contextlib.contextmanager
def by_psycopg(url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(url) as connection:
        yield connection


@contextlib.contextmanager
def by_sqlalchemy(url: str) -> Iterator[sqlalchemy.Connection]:
    engine = sqlalchemy.create_engine(url.replace("postgresql", "postgresql+psycopg", 1), poolclass=sqlalchemy.NullPool)
    with engine.connect() as connection:
        yield connection


@contextlib.contextmanager
def by_session(url: str) -> Iterator[Session]:
    with by_sqlalchemy(url) as connection, Session(connection) as session:
        yield session


KINDS = pytest.mark.parametrize("open_one", [by_psycopg, by_sqlalchemy, by_session])


def execute(connection: Any, query: str) -> list[Any]:
    text = query if isinstance(connection, psycopg.Connection) else sqlalchemy.text(query)
    result = connection.execute(text)
    return list(result) if query.startswith("SELECT") else []


@pytest.fixture
def url(postgres_server: PostgresServer) -> str:
    """A database that has the tables, and a counter that nothing but the lock protects."""
    with Leasehold(postgres_server.url) as locks:
        locks.status("any")
    postgres_server.sql("DROP TABLE IF EXISTS counter")
    postgres_server.sql("CREATE TABLE counter (total bigint, tokens bigint[])")
    postgres_server.sql("ALTER TABLE counter OWNER TO leasehold")
    postgres_server.sql("INSERT INTO counter VALUES (0, '{}')")
    return postgres_server.url


def count_once(connection: Any, namespace: str) -> None:
    """Read and write in two steps: without the lock, updates are lost."""
    token = lock_in_transaction(connection, "counter", namespace=namespace, wait=30)
    [[total]] = execute(connection, "SELECT total FROM counter")
    time.sleep(0.001)
    execute(connection, f"UPDATE counter SET total = {total + 1}, tokens = tokens || {token}::bigint")
    connection.commit()


@KINDS
def test_racers_lose_no_update_and_tokens_rise(open_one: Open, url: str, postgres_server: PostgresServer) -> None:
    namespace = fresh_namespace()

    def race() -> None:
        with open_one(url) as connection:
            for _ in range(ROUNDS):
                count_once(connection, namespace)

    with ThreadPoolExecutor(RACERS) as racers:
        for racer in [racers.submit(race) for _ in range(RACERS)]:
            racer.result(60)
    [(total, tokens)] = postgres_server.sql("SELECT total, tokens FROM counter")
    assert total == RACERS * ROUNDS
    assert all(one < other for one, other in itertools.pairwise(tokens))


async def count_in_asyncio(connection: Any, run: Callable[[str], Any], namespace: str) -> None:
    for _ in range(ROUNDS):
        token = await lock_in_transaction_async(connection, "counter", namespace=namespace, wait=30)
        [[total]] = list(await run("SELECT total FROM counter"))
        await run(f"UPDATE counter SET total = {total + 1}, tokens = tokens || {token}::bigint")
        await connection.commit()


def test_racing_tasks_lose_no_update_either(url: str, postgres_server: PostgresServer) -> None:
    namespace = fresh_namespace()

    async def by_connection() -> None:
        async with await psycopg.AsyncConnection.connect(url) as connection:

            async def run(query: str) -> list[Any]:
                cursor = await connection.execute(query.encode())
                return await cursor.fetchall() if cursor.description else []

            await count_in_asyncio(connection, run, namespace)

    async def by_sqlalchemy(*, session: bool) -> None:
        engine = create_async_engine(url.replace("postgresql", "postgresql+psycopg", 1))
        opened = AsyncSession(engine) if session else engine.connect()
        async with opened as connection:
            await count_in_asyncio(connection, lambda query: connection.execute(sqlalchemy.text(query)), namespace)
        await engine.dispose()

    async def main() -> None:
        await asyncio.gather(
            by_connection(), by_connection(), by_sqlalchemy(session=False), by_sqlalchemy(session=True)
        )

    asyncio.run(main())
    [(total, tokens)] = postgres_server.sql("SELECT total, tokens FROM counter")
    assert total == 4 * ROUNDS
    assert all(one < other for one, other in itertools.pairwise(tokens))


@KINDS
def test_a_rollback_undoes_lock_and_write(open_one: Open, url: str, postgres_server: PostgresServer) -> None:
    namespace = fresh_namespace()
    with open_one(url) as connection, open_one(url) as other:
        first = lock_in_transaction(connection, "counter", namespace=namespace)
        execute(connection, "UPDATE counter SET total = 7")
        connection.rollback()
        second = lock_in_transaction(other, "counter", namespace=namespace, wait=0)
        other.commit()
        assert second > first
        assert postgres_server.sql("SELECT total FROM counter") == [(0,)]


def test_a_holder_that_dies_lets_go_at_once(url: str, postgres_server: PostgresServer) -> None:
    namespace = fresh_namespace()
    with by_psycopg(url) as other:
        holder = psycopg.connect(url)
        lock_in_transaction(holder, "counter", namespace=namespace)
        holder.execute("UPDATE counter SET total = 7")
        postgres_server.terminate(holder.info.backend_pid)
        lock_in_transaction(other, "counter", namespace=namespace, wait=10)
        assert other.execute("SELECT total FROM counter").fetchall() == [(0,)]
        with pytest.raises(psycopg.OperationalError):
            holder.commit()


@KINDS
def test_who_comes_in_vain_keeps_the_transaction(open_one: Open, url: str) -> None:
    namespace = fresh_namespace()
    with open_one(url) as connection, open_one(url) as other:
        lock_in_transaction(connection, "counter", namespace=namespace)
        execute(other, "UPDATE counter SET total = 3")
        for wait in (0, 0.2):
            before = time.monotonic()
            with pytest.raises(NotAcquired, match="'counter'"):
                lock_in_transaction(other, "counter", namespace=namespace, wait=wait)
            assert time.monotonic() - before >= wait
        assert execute(other, "SELECT total FROM counter") == [(3,)]
        other.commit()


def test_leases_and_transactions_exclude_each_other(url: str) -> None:
    namespace = fresh_namespace()
    with Leasehold(url, namespace=namespace, label="nightly") as locks, by_psycopg(url) as connection:
        with locks.lock("counter", ttl=0.6) as lease:
            with pytest.raises(NotAcquired, match="held by nightly@") as caught:
                # Longer than the lease would live without renewals, which must not be held up by whoever waits.
                lock_in_transaction(connection, "counter", namespace=namespace, wait=1.5)
            assert caught.value.token == lease.token
            assert not lease.lost
        token = lock_in_transaction(connection, "counter", namespace=namespace, wait=0)
        assert token > lease.token
        later: list[int] = []

        def take() -> None:
            with locks.lock("counter", wait=20) as lease:
                later.append(lease.token)

        taker = threading.Thread(target=take)
        taker.start()
        time.sleep(0.3)
        assert not later
        connection.commit()
        taker.join(20)
        assert later[0] > token


def test_it_comes_after_those_who_wait_for_leases(url: str) -> None:
    namespace = fresh_namespace()
    order: list[str] = []
    with Leasehold(url, namespace=namespace) as locks, by_psycopg(url) as connection:

        def take() -> None:
            with locks.lock("counter", wait=20):
                order.append("lease")

        with locks.lock("counter"):
            waiter = threading.Thread(target=take)
            waiter.start()
            eventually(lambda: bool((status := locks.status("counter")) and status.waiters))
        lock_in_transaction(connection, "counter", namespace=namespace, wait=20)
        order.append("transaction")
        connection.commit()
        waiter.join(20)
    assert order == ["lease", "transaction"]


@KINDS
def test_settings_of_the_transaction_are_left_alone(open_one: Open, url: str) -> None:
    settings = (
        "SELECT current_setting('lock_timeout'), current_setting('search_path'), "
        "current_setting('idle_in_transaction_session_timeout'), current_setting('synchronous_commit')"
    )
    with open_one(url) as connection:
        execute(connection, "SET LOCAL lock_timeout = '4321ms'")
        before = execute(connection, settings)
        lock_in_transaction(connection, "counter", namespace=fresh_namespace())
        assert execute(connection, settings) == before
        assert before[0][0] == "4321ms"


def test_without_a_transaction_it_says_so(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        with pytest.raises(Misuse, match="no transaction is open"):
            lock_in_transaction(connection, "counter")
        with connection.transaction():
            assert lock_in_transaction(connection, "counter", namespace=fresh_namespace()) > 0


def test_without_tables_it_says_so_and_the_transaction_goes_on(url: str) -> None:
    with by_psycopg(url) as connection:
        with pytest.raises(EngineError, match=r"no tables of Leasehold in the schema 'elsewhere'.*tables_sql"):
            lock_in_transaction(connection, "counter", schema="elsewhere")
        assert connection.execute("SELECT total FROM counter").fetchone() == (0,)


def test_a_transaction_that_sees_the_past_begins_anew(url: str) -> None:
    """It could not see what the one before it wrote."""
    namespace = fresh_namespace()
    with by_psycopg(url) as connection, by_psycopg(url) as other:
        other.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        for expected in (psycopg.errors.UniqueViolation, psycopg.errors.SerializationFailure):
            other.execute("SELECT 1")
            lock_in_transaction(connection, "counter", namespace=namespace)
            connection.commit()
            with pytest.raises(expected):
                lock_in_transaction(other, "counter", namespace=namespace, wait=5)
            other.rollback()


def test_what_is_no_transaction_of_this_world_is_refused(url: str) -> None:
    async def misuse() -> None:
        async with await psycopg.AsyncConnection.connect(url) as connection:
            with pytest.raises(Misuse, match="Connection of psycopg"):
                lock_in_transaction(connection, "counter")
        with by_psycopg(url) as blocking, pytest.raises(Misuse, match="AsyncConnection of psycopg"):
            await lock_in_transaction_async(blocking, "counter")

    asyncio.run(misuse())
    sqlite = sqlalchemy.create_engine("sqlite://")
    with sqlite.connect() as connection, pytest.raises(Misuse, match="connect to PostgreSQL"):
        lock_in_transaction(connection, "counter")
    with pytest.raises(Misuse, match="not str"):
        lock_in_transaction(url, "counter")
    sqlite.dispose()
