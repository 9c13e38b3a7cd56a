"""Real servers that several files of engine tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.mariadb_server import MariadbServer, running_mariadb
from tests.support.postgres_server import PostgresServer, running_postgres


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One server for all tests that neither stop it nor change its settings."""
    with running_postgres() as server:
        yield server


@pytest.fixture(scope="session", params=["mariadb", "mysql"])
def mariadb_server(request: pytest.FixtureRequest) -> Iterator[MariadbServer]:
    """The same of MariaDB, and then of MySQL, which is to do what MariaDB does."""
    with running_mariadb(engine=request.param) as server:
        yield server
