"""Values come back as they were written, whatever the table, the connection and the mode of the server are like."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import asyncmy
import pymysql
import pytest
import sqlalchemy
from pymysql.constants import CLIENT
from tests.support.mariadb_server import PASSWORD, MariadbServer

from leasehold import VersionConflict
from leasehold.patterns.optimistic import AsyncVersions, Versioned, Versions

TEXTS = ["Łódź", "客户 😀", "caf\udce9.txt", "a\0b", {"名": ["ß", None]}]
_tables = itertools.count()


def _table() -> str:
    return f"text_{os.getpid()}_{next(_tables)}"


def _mysql(server: MariadbServer, **settings: Any) -> Any:
    address: dict[str, Any] = {"host": "127.0.0.1", "port": server.port, "database": "leasehold"}
    return pymysql.connect(**address, user="leasehold", password=PASSWORD, **settings)


def _writes_and_reads_back(store: Versions) -> None:
    for number, text in enumerate(TEXTS):
        assert store.write(f"t{number}", text, 0) == 1
        assert store.read(f"t{number}") == Versioned(text, 1)
        assert store.write(f"t{number}", [text], 1) == 2
        assert store.read(f"t{number}") == Versioned([text], 2)


@pytest.mark.parametrize("settings", [{}, {"charset": "latin1"}, {"charset": "utf8"}, {"sql_mode": ""}])
def test_texts_of_all_languages_come_back_from_mysql(mariadb_server: MariadbServer, settings: dict[str, str]) -> None:
    with contextlib.closing(_mysql(mariadb_server, **settings)) as connection:
        store = Versions(connection, table=_table())
        store.create()
        _writes_and_reads_back(store)


@pytest.mark.parametrize("mode", ["STRICT_ALL_TABLES", ""])
def test_a_table_in_another_character_set_loses_nothing(mariadb_server: MariadbServer, mode: str) -> None:
    table = _table()
    with contextlib.closing(_mysql(mariadb_server, sql_mode=mode)) as connection:
        with connection.cursor() as cursor:
            cursor.execute(
                f"CREATE TABLE {table} (name VARBINARY(255) PRIMARY KEY, version BIGINT NOT NULL, "
                "value MEDIUMTEXT NOT NULL) CHARACTER SET latin1"
            )
        _writes_and_reads_back(Versions(connection, table=table))


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_texts_of_all_languages_come_back_elsewhere(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'app.db'}"
    if kind == "postgresql":
        url = request.getfixturevalue("postgres_server").url.replace("postgresql://", "postgresql+psycopg://")
    engine = sqlalchemy.create_engine(url)
    with engine.connect() as connection:
        store = Versions(connection, table=_table())
        store.create()
        _writes_and_reads_back(store)
    engine.dispose()


def test_a_value_that_does_not_fit_is_refused_and_nothing_is_written(mariadb_server: MariadbServer) -> None:
    table = _table()
    with contextlib.closing(_mysql(mariadb_server)) as connection:
        with connection.cursor() as cursor:
            cursor.execute(f"CREATE TABLE {table} (name VARBINARY(255) PRIMARY KEY, version BIGINT, value CHAR(9))")
        store = Versions(connection, table=table)
        with pytest.raises(pymysql.err.DataError):
            store.write("a", "much too long", 0)
        assert store.read("a") == Versioned(None, 0)


def _by_pymysql(server: MariadbServer) -> Any:
    return contextlib.closing(_mysql(server))


def _by_pymysql_that_counts_found_rows(server: MariadbServer) -> Any:
    return contextlib.closing(_mysql(server, client_flag=CLIENT.FOUND_ROWS))


def _by_sqlalchemy(scheme: str) -> Callable[[MariadbServer], Any]:
    @contextlib.contextmanager
    def opened(server: MariadbServer) -> Any:
        engine = sqlalchemy.create_engine(f"{scheme}://{server.url.partition('://')[2]}")
        with engine.connect() as connection:
            yield connection
        engine.dispose()

    return opened


@pytest.mark.parametrize(
    "opened",
    [
        _by_pymysql,
        _by_pymysql_that_counts_found_rows,
        _by_sqlalchemy("mysql+pymysql"),
        _by_sqlalchemy("mariadb+pymysql"),
    ],
    ids=["pymysql", "pymysql that counts found rows", "sqlalchemy, mysql", "sqlalchemy, mariadb"],
)
def test_who_comes_second_to_a_new_name_is_told(mariadb_server: MariadbServer, opened: Any) -> None:
    table = _table()
    with opened(mariadb_server) as connection:
        store = Versions(connection, table=table)
        store.create()
        store.write("a", "first", 0)
        with pytest.raises(VersionConflict):
            store.write_all({"a": Versioned("first", 0), "b": Versioned(1, 0)})
        assert store.read("a") == Versioned("first", 1)
        assert store.read("b") == Versioned(None, 0), "all or none"
        assert store.write("a", "second", 1) == 2


def test_who_comes_second_to_a_new_name_is_told_in_async_code(mariadb_server: MariadbServer) -> None:
    async def run() -> None:
        address: dict[str, Any] = {"host": "127.0.0.1", "port": mariadb_server.port, "database": "leasehold"}
        connection = await asyncmy.connect(**address, user="leasehold", password=PASSWORD)
        store = AsyncVersions(connection, table=_table())
        await store.create()
        assert await store.write("a", "Łódź", 0) == 1
        with pytest.raises(VersionConflict):
            await store.write("a", "Łódź", 0)
        assert await store.read("a") == Versioned("Łódź", 1)
        connection.close()

    asyncio.run(run())


def test_of_many_who_write_a_new_name_at_once_one_does(mariadb_server: MariadbServer) -> None:
    table = _table()
    with contextlib.closing(_mysql(mariadb_server)) as connection:
        Versions(connection, table=table).create()

    def write(_: int) -> bool:
        with contextlib.closing(_mysql(mariadb_server, client_flag=CLIENT.FOUND_ROWS)) as connection:
            try:
                Versions(connection, table=table).write("a", "the same", 0)
            except VersionConflict:
                return False
            return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(write, range(8))) == 1
