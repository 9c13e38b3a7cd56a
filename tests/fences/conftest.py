"""Real resources for the fences: SQLite files, and servers that the tests start."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.fences.guards import AsyncRedisGuard, Guard, RedisGuard, SqliteGuard
from tests.fences.local_server import running
from tests.fences.sql_guards import AsyncSqlGuard, SqlGuard
from tests.support.mariadb_server import MariadbServer, running_mariadb
from tests.support.postgres_server import PostgresServer, running_postgres

_numbers = itertools.count()

Fresh = Callable[[], Guard]


@pytest.fixture(scope="session")
def url_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    """Start a server when it is first asked for; tests share it, each with resources of its own."""
    with contextlib.ExitStack() as stack:

        @functools.cache
        def started(engine: str) -> str:
            return stack.enter_context(running(engine, tmp_path_factory.mktemp(engine))).url

        yield started


@pytest.fixture(params=["redis", "valkey"])
def redis_url(request: pytest.FixtureRequest, url_of: Callable[[str], str]) -> str:
    return url_of(request.param)


@pytest.fixture(scope="session")
def sql_server() -> Iterator[PostgresServer]:
    with running_postgres(fsync="off") as server:
        yield server


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[MariadbServer]:
    with running_mariadb() as server:
        yield server


@pytest.fixture(scope="session")
def sql_url_of(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Callable[[str], str]:
    """The URL of a database with the tables of the tests in it, in a server that is started when it is first needed."""

    @functools.cache
    def prepared(engine: str) -> str:
        if engine == "sqlite":
            url = f"sqlite:///{tmp_path_factory.mktemp('sqlite')}/things.db"
        elif engine == "mysql":
            url = request.getfixturevalue("mariadb_server").url.replace("mariadb:", "mysql:")
        else:
            url = request.getfixturevalue("sql_server").url
        SqlGuard.prepare(f"core {url}")
        return url

    return prepared


@pytest.fixture
def fresh_sql(sql_url_of: Callable[[str], str]) -> Callable[[str], Fresh]:
    """Makes guards that go a way such as "orm postgresql" or "core sqlite asyncio"."""

    def of(way: str) -> Fresh:
        client, engine, *world = way.split()
        kind = AsyncSqlGuard if world else SqlGuard
        return lambda: kind(f"{client} {sql_url_of(engine)}", f"thing:{next(_numbers)}")

    return of


@pytest.fixture
def resource() -> str:
    """A name that no other test has touched."""
    return f"thing:{next(_numbers)}"


@pytest.fixture
def fresh_sqlite(tmp_path: Path) -> Fresh:
    return lambda: SqliteGuard(tmp_path / f"{next(_numbers)}.db")


@pytest.fixture
def fresh_redis(redis_url: str) -> Fresh:
    return lambda: RedisGuard(redis_url, f"thing:{next(_numbers)}")


@pytest.fixture(params=["sqlite", "redis", "redis asyncio", "valkey", "valkey asyncio"])
def fresh(request: pytest.FixtureRequest, fresh_sqlite: Fresh, url_of: Callable[[str], str]) -> Fresh:
    """Makes guards of resources that nobody has touched, for every kind of fence."""
    engine, _, world = request.param.partition(" ")
    if engine == "sqlite":
        return fresh_sqlite
    kind = AsyncRedisGuard if world else RedisGuard
    return lambda: kind(url_of(engine), f"thing:{next(_numbers)}")


@pytest.fixture
def guard(fresh: Fresh) -> Iterator[Guard]:
    one = fresh()
    yield one
    one.close()
