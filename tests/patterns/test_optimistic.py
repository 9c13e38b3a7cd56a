"""Conflicts are recognised in the words of each library, tried again within bounds, and no update is lost."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import sqlite3
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import aiohttp
import boto3  # type: ignore[import-untyped]
import botocore.exceptions  # type: ignore[import-untyped]
import httpx
import psycopg
import pymysql
import pytest
import redis
import sqlalchemy
import sqlalchemy.orm
from botocore.config import Config  # type: ignore[import-untyped]
from tests.support.mariadb_server import PASSWORD, MariadbServer
from tests.support.postgres_server import PostgresServer
from tests.support.redis_server import RedisServer

from leasehold import Misuse, TooManyConflicts, VersionConflict
from leasehold.patterns.optimistic import Versioned, Versions, is_conflict, retry_on_conflict

_tables = itertools.count()
Connect = Callable[[], Any]


@pytest.fixture(params=["sqlite", "postgresql", "mysql"])
def connect(request: pytest.FixtureRequest, tmp_path: Path) -> Connect:
    if request.param == "sqlite":
        return lambda: sqlite3.connect(tmp_path / "app.db", timeout=10)
    if request.param == "postgresql":
        url = request.getfixturevalue("postgres_server").url
        return lambda: psycopg.connect(url)
    return lambda: _mysql(request.getfixturevalue("mariadb_server"))


def _mysql(server: MariadbServer) -> Any:
    return pymysql.connect(
        host="127.0.0.1", port=server.port, user="leasehold", password=PASSWORD, database="leasehold"
    )


@pytest.fixture
def table(connect: Connect) -> str:
    name = f"version_{os.getpid()}_{next(_tables)}"
    with contextlib.closing(connect()) as connection:
        Versions(connection, table=name).create()
        connection.commit()
    return name


def test_a_value_is_written_only_at_the_version_that_was_read(connect: Connect, table: str) -> None:
    with contextlib.closing(connect()) as connection:
        store = Versions(connection, table=table)
        assert store.read("a") == Versioned(None, 0)
        assert store.write("a", {"n": 1}, 0) == 1
        assert store.write("a", {"n": 2}, 1) == 2
        for late in (0, 1, 3):
            with pytest.raises(VersionConflict, match="'a' is not at version"):
                store.write("a", {"n": 9}, late)
        assert store.read("a") == Versioned({"n": 2}, 2)
        store.write("A", "another name", 0)
        with pytest.raises(VersionConflict):
            store.write_all({"b": Versioned(1, 0), "a": Versioned(9, 1)})
        assert store.read("b") == Versioned(None, 0), "all or none"


def test_transfers_between_accounts_keep_the_sum(connect: Connect, table: str) -> None:
    with contextlib.closing(connect()) as connection:
        store = Versions(connection, table=table)
        for account in "abc":
            store.write(account, 100, 0)

    def clerk(number: int) -> int:
        with contextlib.closing(connect()) as connection:
            store = Versions(connection, table=table)

            @retry_on_conflict(attempts=200, within=30)
            def transfer(source: str, target: str) -> None:
                one, other = store.read(source), store.read(target)
                time.sleep(0.001)
                store.write_all(
                    {
                        source: Versioned(one.value - 1, one.version),
                        target: Versioned(other.value + 1, other.version),
                    }
                )

            for step in range(15):
                transfer("abc"[(number + step) % 3], "abc"[(number + step + 1) % 3])
            return int(transfer.conflicts.in_vain)  # type: ignore[attr-defined]

    with ThreadPoolExecutor(4) as pool:
        in_vain = sum(pool.map(clerk, range(4)))
    with contextlib.closing(connect()) as connection:
        store = Versions(connection, table=table)
        accounts = [store.read(account) for account in "abc"]
    assert sum(account.value for account in accounts) == 300
    assert sum(account.version for account in accounts) == 3 + 2 * 4 * 15
    assert in_vain > 0, "they never met, so nothing was shown"


def test_conflicts_of_postgresql_are_recognised(postgres_server: PostgresServer) -> None:
    with psycopg.connect(postgres_server.url) as one, psycopg.connect(postgres_server.url) as other:
        one.execute("CREATE TABLE IF NOT EXISTS conflict (n INTEGER)")
        one.execute("INSERT INTO conflict VALUES (1)")
        one.commit()
        for connection in (one, other):
            connection.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
            connection.execute("SELECT sum(n) FROM conflict")
        one.execute("UPDATE conflict SET n = n + 1")
        one.commit()
        with pytest.raises(psycopg.Error) as raised:
            other.execute("UPDATE conflict SET n = n + 1")
        other.rollback()
        assert is_conflict(raised.value)
        with pytest.raises(psycopg.Error) as raised:
            one.execute("SELECT 1 / 0")
        one.rollback()
        assert not is_conflict(raised.value)


def test_deadlocks_of_mysql_are_recognised(mariadb_server: MariadbServer) -> None:
    with contextlib.closing(_mysql(mariadb_server)) as one, contextlib.closing(_mysql(mariadb_server)) as other:
        with one.cursor() as cursor:
            cursor.execute("CREATE TABLE IF NOT EXISTS conflict (k INTEGER PRIMARY KEY, n INTEGER)")
            cursor.execute("REPLACE INTO conflict VALUES (1, 0), (2, 0)")
            one.commit()
        errors = []
        meet = threading.Barrier(2)

        def cross(connection: Any, keys: tuple[int, int]) -> None:
            with connection.cursor() as cursor:
                cursor.execute(f"UPDATE conflict SET n = n + 1 WHERE k = {keys[0]}")
                meet.wait(10)
                try:
                    cursor.execute(f"UPDATE conflict SET n = n + 1 WHERE k = {keys[1]}")
                except pymysql.Error as error:
                    errors.append(error)
            connection.rollback()

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(cross, (one, other), ((1, 2), (2, 1))))
        assert [is_conflict(error) for error in errors] == [True]
        with one.cursor() as cursor, pytest.raises(pymysql.Error) as raised:
            cursor.execute("SELECT * FROM nowhere")
        assert not is_conflict(raised.value)


def test_a_busy_file_is_recognised(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as one:
        one.execute("CREATE TABLE t (n INTEGER)")
        one.execute("BEGIN IMMEDIATE")
        with contextlib.closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as other:
            with pytest.raises(sqlite3.OperationalError) as raised:
                other.execute("BEGIN IMMEDIATE")
            assert is_conflict(raised.value)
            with pytest.raises(sqlite3.OperationalError) as raised:
                other.execute("SELECT * FROM nowhere")
            assert not is_conflict(raised.value)


def test_watch_of_redis_is_recognised(redis_server: RedisServer) -> None:
    with redis.Redis(port=redis_server.port) as client, client.pipeline() as pipeline:
        pipeline.watch("n")
        client.incr("n")
        pipeline.multi()
        pipeline.incr("n")
        with pytest.raises(redis.WatchError) as raised:
            pipeline.execute()
    assert is_conflict(raised.value)


def test_versions_and_errors_of_sqlalchemy_are_recognised(tmp_path: Path) -> None:
    class Base(sqlalchemy.orm.DeclarativeBase):
        pass

    class Account(Base):
        __tablename__ = "account"
        id: sqlalchemy.orm.Mapped[int] = sqlalchemy.orm.mapped_column(primary_key=True)
        balance: sqlalchemy.orm.Mapped[int]
        version: sqlalchemy.orm.Mapped[int] = sqlalchemy.orm.mapped_column()
        __mapper_args__ = {"version_id_col": version}  # noqa: RUF012

    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path / 'a.db'}")
    Base.metadata.create_all(engine)
    with sqlalchemy.orm.Session(engine) as session:
        session.add(Account(id=1, balance=100))
        session.commit()
    with sqlalchemy.orm.Session(engine) as one, sqlalchemy.orm.Session(engine) as other:
        for session in (one, other):
            account = session.get_one(Account, 1)
            account.balance += 1
        one.commit()
        with pytest.raises(sqlalchemy.orm.exc.StaleDataError) as raised:
            other.commit()
        other.rollback()
    assert is_conflict(raised.value)
    with engine.connect() as connection, pytest.raises(sqlalchemy.exc.OperationalError) as wrong:
        connection.execute(sqlalchemy.text("SELECT * FROM nowhere"))
    assert not is_conflict(wrong.value)
    engine.dispose()


def _with_httpx(url: str) -> Exception:
    with pytest.raises(httpx.HTTPStatusError) as raised:
        httpx.put(url, trust_env=False).raise_for_status()
    return raised.value


def _with_urllib(url: str) -> Exception:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with pytest.raises(urllib.error.HTTPError) as raised:
        opener.open(urllib.request.Request(url, method="PUT"), timeout=20)
    raised.value.close()
    return raised.value


def _with_aiohttp(url: str) -> Exception:
    async def put() -> None:
        async with aiohttp.ClientSession() as session, session.put(url) as answer:
            answer.raise_for_status()

    with pytest.raises(aiohttp.ClientResponseError) as raised:
        asyncio.run(put())
    return raised.value


def _with_boto(url: str) -> Exception:
    server, _, key = url.rpartition("/")
    keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "region_name": "us-east-1"}
    settings = Config(retries={"max_attempts": 1}, s3={"addressing_style": "path"}, proxies={})
    client = boto3.client("s3", endpoint_url=server, config=settings, **keys)
    with pytest.raises(botocore.exceptions.ClientError) as raised:
        client.put_object(Bucket="bucket", Key=key, Body=b"", IfNoneMatch="*")
    client.close()
    error: Exception = raised.value
    return error


@pytest.mark.parametrize("ask", [_with_httpx, _with_urllib, _with_aiohttp, _with_boto])
def test_a_precondition_that_failed_is_recognised(ask: Callable[[str], Exception]) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            is_stale = "stale" in self.path
            code = "PreconditionFailed" if is_stale else "AccessDenied"
            body = f"<Error><Code>{code}</Code></Error>".encode()
            self.send_response(412 if is_stale else 403)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    try:
        for path, expected in (("stale", True), ("broken", False)):
            assert is_conflict(ask(f"http://127.0.0.1:{server.server_port}/{path}")) is expected
    finally:
        server.shutdown()
        serving.join()
        server.server_close()


def test_attempts_and_time_are_bounded_and_the_error_gives_advice() -> None:
    attempts = []

    @retry_on_conflict(attempts=4, within=30)
    def always() -> None:
        attempts.append(1)
        raise VersionConflict("again")

    with pytest.raises(TooManyConflicts, match="wrong pattern") as raised:
        always()
    assert (len(attempts), raised.value.attempts) == (4, 4)
    assert isinstance(raised.value.__cause__, VersionConflict)

    @retry_on_conflict(attempts=10_000, within=0.05)
    def slow() -> None:
        time.sleep(0.02)
        raise VersionConflict("again")

    with pytest.raises(TooManyConflicts) as raised:
        slow()
    assert raised.value.attempts < 20


def test_other_errors_pass_at_once() -> None:
    attempts = []

    @retry_on_conflict
    def broken() -> None:
        attempts.append(1)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        broken()
    assert len(attempts) == 1


def test_it_refuses_to_nest_and_works_again_afterwards() -> None:
    @retry_on_conflict
    def inner() -> str:
        return "done"

    @retry_on_conflict
    def outer() -> str:
        return inner()

    with pytest.raises(Misuse, match="outermost"):
        outer()
    assert inner() == "done"


def test_a_task_that_outlives_the_call_that_began_it_is_not_inside_of_it() -> None:
    @retry_on_conflict
    def inner() -> str:
        return "done"

    async def later(may_begin: asyncio.Event) -> str:
        await may_begin.wait()
        return inner()

    async def run() -> None:
        may_begin, beside = asyncio.Event(), list[asyncio.Task[str]]()

        @retry_on_conflict
        async def outer(*, waits: bool) -> None:
            beside.append(asyncio.create_task(later(may_begin)))
            if waits:
                may_begin.set()
                with pytest.raises(Misuse, match="task"):
                    await beside[-1]

        await outer(waits=False)
        may_begin.set()
        assert await beside[0] == "done"
        may_begin.clear()
        await outer(waits=True)

    asyncio.run(run())


def test_async_functions_are_retried_too() -> None:
    attempts = []

    @retry_on_conflict(attempts=5)
    async def sometimes() -> str:
        attempts.append(1)
        if len(attempts) < 3:
            raise VersionConflict("again")
        return "done"

    async def run() -> None:
        assert await sometimes() == "done"
        assert {*await asyncio.gather(sometimes(), sometimes())} == {"done"}  # tasks are not nested

    asyncio.run(run())
    assert len(attempts) == 5


def test_what_is_wrong_is_refused_at_once(tmp_path: Path) -> None:
    for settings in ({"attempts": 0}, {"attempts": 1.5}, {"within": -1}, {"within": "soon"}):
        with pytest.raises(Misuse):
            retry_on_conflict(**settings)
    with pytest.raises(Misuse):
        retry_on_conflict(7)  # type: ignore[call-overload]
    with contextlib.closing(sqlite3.connect(tmp_path / "a.db")) as connection:
        store = Versions(connection)
        store.create()
        for name, value, version in (("", 1, 0), ("a", object(), 0), ("a", 1, -1), ("a", 1, True), ("a", 1, "1")):
            with pytest.raises(Misuse):
                store.write(name, value, version)  # type: ignore[arg-type]
    with pytest.raises(Misuse):
        Versions("app.db")
