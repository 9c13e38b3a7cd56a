"""Each attempt has a fresh transaction: one that is open before it is refused, and none that failed stays open."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import aiosqlite
import asyncmy
import asyncpg  # type: ignore[import-untyped]
import psycopg
import psycopg2
import pymysql
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from tests.fences.sql_guards import django_connection
from tests.patterns.test_guards import Account, Base
from tests.support.mariadb_server import PASSWORD
from tests.support.postgres_server import PostgresServer

from leasehold import Misuse, TooManyConflicts, VersionConflict
from leasehold.patterns.databases import handle_of
from leasehold.patterns.optimistic import Versioned, Versions, retry_on_conflict

OPEN = "a transaction is open already"
_tables = itertools.count()


def _table() -> str:
    return f"attempt_{os.getpid()}_{next(_tables)}"


def _at_mariadb(request: pytest.FixtureRequest) -> dict[str, Any]:
    port = request.getfixturevalue("mariadb_server").port
    return {"host": "127.0.0.1", "port": port, "user": "leasehold", "password": PASSWORD, "database": "leasehold"}


def _address(kind: str, request: pytest.FixtureRequest, folder: Path) -> str:
    """Of a database, for SQLAlchemy: with the driver that stands in `kind`."""
    scheme = kind.partition("+")[0]
    if scheme == "sqlite":
        return f"{kind}:///{folder / 'app.db'}"
    server = request.getfixturevalue("postgres_server" if scheme == "postgresql" else "mariadb_server")
    return f"{kind}://{server.url.partition('://')[2]}"


@pytest.fixture(
    params=[
        "sqlite3",
        "psycopg",
        "psycopg2",
        "pymysql",
        "django",
        "connection sqlite",
        "session sqlite",
        "session postgresql+psycopg",
        "session mysql+pymysql",
    ]
)
def connection(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """In the mode in which each library opens it."""
    with contextlib.ExitStack() as stack:
        kind, _, database = request.param.partition(" ")
        if database:
            engine = sqlalchemy.create_engine(_address(database, request, tmp_path))
            stack.callback(engine.dispose)
            yield stack.enter_context(Session(engine) if kind == "session" else engine.connect())
            return
        opened: dict[str, Callable[[], Any]] = {
            "sqlite3": lambda: sqlite3.connect(tmp_path / "app.db"),
            "psycopg": lambda: psycopg.connect(request.getfixturevalue("postgres_server").url),
            "psycopg2": lambda: psycopg2.connect(request.getfixturevalue("postgres_server").url),
            "pymysql": lambda: pymysql.connect(**_at_mariadb(request)),
            "django": lambda: django_connection(f"sqlite:///{tmp_path / 'app.db'}"),
        }
        yield stack.enter_context(contextlib.closing(opened[kind]()))


@pytest.fixture
def store(connection: Any) -> Versions:
    store = Versions(connection, table=_table())
    store.create()
    if not hasattr(connection, "in_atomic_block"):
        connection.commit()
    return store


@contextlib.contextmanager
def _outer_transaction(connection: Any) -> Iterator[None]:
    """As people begin one, and committed at the end."""
    if hasattr(connection, "in_atomic_block"):
        with handle_of(connection).transaction():
            yield
        return
    if isinstance(connection, Session):
        connection.execute(sqlalchemy.text("SELECT 1"))
    elif hasattr(connection, "exec_driver_sql"):
        connection.exec_driver_sql("SELECT 1")
    else:
        begins_by_itself = type(connection).__module__.startswith("psycopg")
        with contextlib.closing(connection.cursor()) as cursor:
            cursor.execute("SELECT 1" if begins_by_itself else "BEGIN")
    yield
    connection.commit()


def test_with_on_each_attempt_is_a_transaction_that_is_committed_or_undone(connection: Any, store: Versions) -> None:
    attempts = list[int]()

    @retry_on_conflict(on=connection)
    def add(amount: int) -> int:
        attempts.append(amount)
        kept = store.read("a")
        store.write(f"attempt-{len(attempts)}", True, 0)
        if len(attempts) < 3:
            raise VersionConflict("planted")
        return store.write("a", (kept.value or 0) + amount, kept.version)

    assert add(10) == 1
    if not hasattr(connection, "in_atomic_block"):
        connection.rollback()
    assert store.read("a") == Versioned(10, 1), "what was done is committed"
    assert [store.read(f"attempt-{number}").version for number in (1, 2, 3)] == [0, 0, 1], "what was in vain is undone"


def _of_the_connection(connection: Any, store: Versions, called: list[str]) -> dict[str, Callable[[], object]]:
    """Every way in which it is told or found which connection a function uses."""

    def work(*_given: Any, **_more: Any) -> None:
        called.append("work")

    def work_on(connection: Any) -> None:
        called.append("work")

    return {
        "on the connection": retry_on_conflict(on=connection)(work),
        "on what a function gives": retry_on_conflict(on=lambda: connection)(work),
        "on the store": retry_on_conflict(on=store)(work),
        "on a parameter": lambda: retry_on_conflict(on="connection")(work_on)(connection),
        "an argument": lambda: retry_on_conflict(work)(1, connection),
        "an argument by name": lambda: retry_on_conflict(work)(session=connection),
        "a store as an argument": lambda: retry_on_conflict(work)(store),
        "whatever counts as a conflict": lambda: retry_on_conflict(is_conflict=lambda _: True)(work)(connection),
    }


def test_an_open_transaction_is_refused_before_anything_is_done(connection: Any, store: Versions) -> None:
    called = list[str]()
    ways = _of_the_connection(connection, store, called)
    with _outer_transaction(connection):
        store.write("outer", True, 0)
        for way, call in ways.items():
            with pytest.raises(Misuse, match=OPEN):
                call()
            assert called == [], way
    if not hasattr(connection, "in_atomic_block"):
        connection.rollback()
    with _outer_transaction(connection):
        assert store.read("outer").version == 1, "what was refused has left the outer transaction as it was"
    for call in ways.values():
        call()
    assert len(called) == len(ways)


def test_what_an_attempt_in_vain_left_open_is_rolled_back(connection: Any, store: Versions) -> None:
    attempts = list[int]()

    @retry_on_conflict
    def add(connection: Any) -> None:
        attempts.append(len(attempts))
        with contextlib.ExitStack() as stack:
            transaction = _outer_transaction(connection)  # which commits at the end, and leaves it open on an error
            transaction.__enter__()
            if hasattr(connection, "in_atomic_block"):
                stack.push(transaction)
            store.write(f"attempt-{len(attempts)}", True, 0)
            if len(attempts) < 3:
                raise VersionConflict("planted")
            if not hasattr(connection, "in_atomic_block"):
                connection.commit()

    add(connection)
    assert [store.read(f"attempt-{number}").version for number in (1, 2, 3)] == [0, 0, 1]


def test_a_conflict_at_the_commit_is_tried_again_and_other_errors_undo(postgres_server: PostgresServer) -> None:
    table = _table()
    with psycopg.connect(postgres_server.url, autocommit=True) as setting_up:
        setting_up.execute(f"CREATE TABLE {table} (n INTEGER)")
        setting_up.execute(f"INSERT INTO {table} VALUES (0)")

    @retry_on_conflict(on="connection", attempts=1000, within=120)
    def add(connection: psycopg.Connection[Any]) -> None:
        [[count]] = connection.execute(f"SELECT n FROM {table}").fetchall()
        connection.execute(f"UPDATE {table} SET n = %s", [count + 1])

    def clerk(_number: int) -> None:
        with psycopg.connect(postgres_server.url) as connection:
            connection.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
            for _ in range(10):
                add(connection)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(clerk, range(4)))
    with psycopg.connect(postgres_server.url) as connection:

        @retry_on_conflict(on=connection)
        def fails() -> None:
            connection.execute(f"UPDATE {table} SET n = 0")
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fails()
        assert connection.execute(f"SELECT n FROM {table}").fetchone() == (40,)


def test_objects_of_a_session_are_read_again_when_somebody_was_quicker(postgres_server: PostgresServer) -> None:
    engine = sqlalchemy.create_engine(postgres_server.url.replace("postgresql:", "postgresql+psycopg:", 1))
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        session.add(Account(id=1, balance=100))
    quicker = [0, 20, 10]  # what somebody else adds in between, the last one first

    @retry_on_conflict(on="session")
    def add(amount: int, *, session: Session) -> None:
        account = session.get_one(Account, 1)
        if others := quicker.pop():
            with Session(engine) as another, another.begin():
                another.get_one(Account, 1).balance += others
        account.balance += amount

    with Session(engine) as session:
        add(5, session=session)
        assert (session.get_one(Account, 1).balance, session.get_one(Account, 1).version) == (135, 4)
    assert add.conflicts.in_vain == 2  # type: ignore[attr-defined]
    Base.metadata.drop_all(engine)
    engine.dispose()


def test_a_connection_that_is_gone_is_not_said_to_be_in_a_transaction(postgres_server: PostgresServer) -> None:
    with psycopg.connect(postgres_server.url) as connection:
        connection.close()
        with pytest.raises(psycopg.OperationalError):
            retry_on_conflict(lambda given: given.execute("SELECT 1"))(connection)


def test_what_cannot_be_a_connection_is_refused(tmp_path: Path) -> None:
    def work(session: object = None) -> None:
        pytest.fail("nothing may be done without its transaction")

    wrong: Any
    for wrong, what in ((7, "not a int"), ("connection", "session"), (b"app.db", "not a bytes")):
        with pytest.raises(Misuse, match=what):
            retry_on_conflict(on=wrong)(work)
    for given in ("session", object, lambda: None):
        with pytest.raises(Misuse, match="cannot begin a transaction"):
            retry_on_conflict(on=given)(work)()
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'app.db'}")
    with pytest.raises(Misuse, match="in async code one of"):
        retry_on_conflict(on=AsyncSession(engine))(work)()


# Async code


@contextlib.asynccontextmanager
async def _asynchronous(kind: str, request: pytest.FixtureRequest, folder: Path) -> AsyncIterator[Any]:
    async with contextlib.AsyncExitStack() as stack:
        match kind:
            case "psycopg":
                url = request.getfixturevalue("postgres_server").url
                yield await stack.enter_async_context(await psycopg.AsyncConnection.connect(url))
            case "asyncpg":
                opened = await asyncpg.connect(request.getfixturevalue("postgres_server").url)
                stack.push_async_callback(opened.close)
                yield opened
            case "asyncmy":
                opened = await asyncmy.connect(**_at_mariadb(request))
                stack.callback(opened.close)
                yield opened
            case "aiosqlite":
                yield await stack.enter_async_context(aiosqlite.connect(folder / "app.db"))
            case _:
                engine = create_async_engine(_address(kind.partition(" ")[2], request, folder))
                stack.push_async_callback(engine.dispose)
                opened = AsyncSession(engine) if kind.startswith("session") else engine.connect()
                yield await stack.enter_async_context(opened)


async def _say(connection: Any, sql: str) -> Any:
    """Carry out a statement; the first value of its answer, if it has one."""
    if isinstance(connection, AsyncSession):
        connection = await connection.connection()
    if hasattr(connection, "fetchval"):
        return await connection.fetchval(sql)
    if hasattr(connection, "exec_driver_sql"):
        result = await connection.exec_driver_sql(sql)
        return result.scalar() if result.returns_rows else None
    cursor = connection.cursor()
    async with cursor if hasattr(cursor, "__aenter__") else await cursor as cursor:
        await cursor.execute(sql)
        return (await cursor.fetchone())[0] if cursor.description else None


ASYNC = ["psycopg", "asyncmy", "connection sqlite+aiosqlite", "session postgresql+psycopg", "session mysql+asyncmy"]


@pytest.mark.parametrize("kind", [*ASYNC, "asyncpg", "aiosqlite"])
def test_async_attempts_have_fresh_transactions(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    table, attempts = _table(), list[bool]()
    begin = None if "sqlalchemy" in kind or " " in kind or kind == "psycopg" else "BEGIN"

    async def work(connection: Any, *, commits: bool) -> None:
        attempts.append(commits)
        if commits and begin:
            await _say(connection, begin)
        await _say(connection, f"INSERT INTO {table} VALUES ({len(attempts)})")
        if len(attempts) < 3:
            raise VersionConflict("planted")
        if commits:
            await (connection.execute("COMMIT") if kind == "asyncpg" else connection.commit())

    async def check(connection: Any, call: Any) -> None:
        attempts.clear()
        await call()
        assert len(attempts) == 3
        if begin:
            await _say(connection, begin)
        assert await _say(connection, f"SELECT sum(n) FROM {table}") == 3, "only the third attempt is kept"
        with pytest.raises(Misuse, match=OPEN):  # in the transaction of the sum
            await call()
        assert len(attempts) == 3
        await _say(connection, f"DELETE FROM {table}")
        await (connection.execute("COMMIT") if kind == "asyncpg" else connection.commit())

    async def run() -> None:
        async with _asynchronous(kind, request, tmp_path) as connection:
            await _say(connection, f"CREATE TABLE {table} (n INTEGER)")
            if kind != "asyncpg":
                await connection.commit()
            found = retry_on_conflict(work)
            await check(connection, lambda: found(connection, commits=True))
            if kind in ASYNC:
                for told in (retry_on_conflict(on=connection)(work), retry_on_conflict(on="connection")(work)):
                    await check(connection, lambda told=told: told(connection, commits=False))
            else:
                with pytest.raises(Misuse, match="cannot begin a transaction"):
                    await retry_on_conflict(on=lambda: connection)(work)(connection, commits=False)

    asyncio.run(run())


def test_attempts_that_are_all_in_vain_leave_nothing_open(tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "app.db")) as connection:
        connection.execute("CREATE TABLE thing (n INTEGER)")

        @retry_on_conflict(attempts=2)
        def work(connection: sqlite3.Connection) -> None:
            connection.execute("INSERT INTO thing VALUES (1)")
            raise VersionConflict("planted")

        with pytest.raises(TooManyConflicts):
            work(connection)
        assert not connection.in_transaction
        assert connection.execute("SELECT count(*) FROM thing").fetchone() == (0,)
