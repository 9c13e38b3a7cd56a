"""Real servers that the tests of the patterns share."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest
import redis
import redis.asyncio
from tests.support.consul_server import running_consul
from tests.support.etcd_server import running_etcd
from tests.support.mariadb_server import PASSWORD, MariadbServer, running_mariadb
from tests.support.postgres_server import PostgresServer, running_postgres
from tests.support.redis_server import RedisServer, running
from tests.support.redlock_servers import running_quorum
from tests.support.zookeeper_server import running_zookeeper

from leasehold.patterns.idempotency import AsyncRedisKeys, InThreads, RedisKeys, SqlKeys, Store

PATIENT = 120.0
"""Long enough for a hundred at once on a machine that has other things to do."""
STORES = ["sqlite", "postgresql", "mysql", "redis"]
_tables = itertools.count()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    with running_postgres() as server:
        yield server


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[MariadbServer]:
    with running_mariadb() as server:
        yield server


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with running(RedisServer("redis", tmp_path_factory.mktemp("redis"))) as server:
        yield server


@contextlib.contextmanager
def store_of(kind: str, request: pytest.FixtureRequest, folder: Path) -> Iterator[Any]:
    """An empty store of keys and notes on a real server, or in a file."""
    if kind == "redis":
        with redis.Redis(port=request.getfixturevalue("redis_server").port) as client:
            client.flushall()
            yield RedisKeys(client)
        return
    connect: Path | Callable[[], Any] = folder / "app.db"
    if kind == "postgresql":
        url = request.getfixturevalue("postgres_server").url
        connect = lambda: psycopg.connect(url)  # noqa: E731
    elif kind == "mysql":
        port = request.getfixturevalue("mariadb_server").port
        connect = lambda: pymysql.connect(  # noqa: E731
            host="127.0.0.1", port=port, user="leasehold", password=PASSWORD, database="leasehold"
        )
    keys = SqlKeys(connect, table=f"key_{os.getpid()}_{next(_tables)}")
    keys.create()
    yield keys
    keys.close()


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """An empty store, on each kind of them in turn."""
    with store_of(request.param, request, tmp_path) as store:
        yield store


@contextlib.asynccontextmanager
async def async_store_of(store: Store) -> AsyncIterator[Store]:
    """The same store for async code."""
    if isinstance(store, SqlKeys):
        yield InThreads(store)
        return
    assert isinstance(store, RedisKeys)
    port = store._client.connection_pool.connection_kwargs["port"]
    async with redis.asyncio.Redis(port=port) as client:
        yield AsyncRedisKeys(client)


@contextlib.contextmanager
def engine_of(kind: str, request: pytest.FixtureRequest, folder: Path) -> Iterator[str]:
    """The address of an engine for leases."""
    engine, _, purpose = kind.partition("+")
    with contextlib.ExitStack() as stack:
        match engine:
            case "sqlite":
                yield f"sqlite:///{folder}/leases.db"
            case "redis":
                yield f"redis://127.0.0.1:{request.getfixturevalue('redis_server').port}/0"
            case "redlock":
                yield stack.enter_context(running_quorum(3)).url
            case "etcd":
                yield stack.enter_context(running_etcd(folder)).url
            case "zookeeper":
                yield stack.enter_context(running_zookeeper()).url
            case "consul":
                yield stack.enter_context(running_consul()).url
            case _:
                url: str = request.getfixturevalue(f"{engine}_server").url
                yield url.replace("://", f"+{purpose}://", 1) if purpose else url
