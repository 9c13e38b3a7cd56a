"""Real servers that the tests of the patterns share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.mariadb_server import MariadbServer, running_mariadb
from tests.support.postgres_server import PostgresServer, running_postgres
from tests.support.redis_server import RedisServer, running


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
