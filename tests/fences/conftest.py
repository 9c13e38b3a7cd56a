"""Real resources for the fences: SQLite files, and servers that the tests start."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator

import pytest
from tests.fences.guards import Guard
from tests.fences.local_server import running
from tests.fences.places import prepared as with_tables
from tests.fences.places import started
from tests.fences.registry import KINDS, opened
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
        return with_tables(url)

    return prepared


@pytest.fixture(scope="session")
def address_of(
    tmp_path_factory: pytest.TempPathFactory, url_of: Callable[[str], str], sql_url_of: Callable[[str], str]
) -> Iterator[Callable[[str], str]]:
    """Where the resources of a kind of fence are; its server is started when it is first asked for."""
    with contextlib.ExitStack() as stack:

        @functools.cache
        def address(place: str) -> str:
            if place in ("redis", "valkey"):
                return url_of(place)
            if place in ("postgresql", "mysql", "sqlite"):
                return sql_url_of(place)
            return started(place, tmp_path_factory.mktemp(place), stack)

        yield address


@pytest.fixture(scope="session")
def fresh_of(address_of: Callable[[str], str]) -> Callable[..., Fresh]:
    """Makes guards, of a kind of fence, of resources that nobody has touched."""

    def of(kind: str, *, patience: float = 0.2) -> Fresh:
        return lambda: opened(kind, address_of(KINDS[kind].place), f"thing:{next(_numbers)}", patience=patience)

    return of


@pytest.fixture
def resource() -> str:
    """A name that no other test has touched."""
    return f"thing:{next(_numbers)}"


@pytest.fixture(params=KINDS)
def fresh(request: pytest.FixtureRequest, fresh_of: Callable[..., Fresh]) -> Fresh:
    """The same for every kind of fence."""
    return fresh_of(request.param)


@pytest.fixture
def guard(fresh: Fresh) -> Iterator[Guard]:
    one = fresh()
    yield one
    one.close()
