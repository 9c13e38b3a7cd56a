"""Plain connections notice that their transaction was ended inside of a block, without asking the server."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import psycopg2
import pymysql
import pytest
from tests.fences.sql_guards import AsyncSqlGuard, SqlGuard, django_connection

from leasehold.errors import Misuse, StaleToken
from leasehold.fences import AsyncSqlFence, SqlFence

UrlOf = Callable[[str], str]
INSERT = "INSERT INTO thing (resource, value) VALUES (%s, 'not fenced')"


def connected(url: str) -> Any:
    """Without autocommit: as PyMySQL and psycopg2 come."""
    if url.startswith("postgresql"):
        return psycopg2.connect(url)
    parts = urlsplit(url)
    return pymysql.connect(
        host=parts.hostname,
        port=parts.port or 0,
        user=parts.username,
        password=parts.password or "",
        database=parts.path.strip("/"),
    )


def execute(connection: Any, sql: str, *values: object) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql, values or None)


ENDS: dict[str, Callable[[Any], object]] = {
    "commit()": lambda connection: connection.commit(),
    "rollback()": lambda connection: connection.rollback(),
    "COMMIT": lambda connection: execute(connection, "COMMIT"),
    "BEGIN": lambda connection: execute(connection, " begin "),
    "START TRANSACTION": lambda connection: execute(connection, "START TRANSACTION READ WRITE"),
    "begin()": lambda connection: connection.begin(),
    "a table is made": lambda connection: execute(connection, "CREATE TABLE IF NOT EXISTS made_inside (a INT)"),
}
IN_POSTGRESQL = ("commit()", "rollback()", "COMMIT")


@pytest.mark.parametrize(
    ("engine", "end"), [*(("mysql", end) for end in ENDS), *(("postgresql", end) for end in IN_POSTGRESQL)]
)
def test_the_end_of_the_transaction_is_noticed_without_autocommit(
    engine: str, end: str, sql_url_of: UrlOf, resource: str
) -> None:
    connection = connected(sql_url_of(engine))
    with pytest.raises(Misuse, match="inside of the fenced block"), SqlFence(connection).writing(resource, 5):
        ENDS[end](connection)
        execute(connection, INSERT, resource)
    for token in (6, 7):  # and it is usable
        with SqlFence(connection).writing(resource, token):
            execute(connection, INSERT, f"{resource}/{token}")
    execute(connection, INSERT, f"{resource}/taken back")
    connection.rollback()
    connection.close()
    other = SqlGuard(f"core {sql_url_of(engine)}", resource)
    assert other.floor() == 7
    rows = other.ask("SELECT resource FROM thing WHERE resource LIKE :like ORDER BY resource", like=f"{resource}/%")
    other.ask("DROP TABLE IF EXISTS made_inside")
    other.end()
    assert rows == [(f"{resource}/6",), (f"{resource}/7",)]
    other.close()


@pytest.mark.parametrize("end", ["COMMIT", "commit()", "begin()"])
def test_the_end_of_the_transaction_is_noticed_in_async_code(end: str, sql_url_of: UrlOf, resource: str) -> None:
    guard = AsyncSqlGuard(f"asyncmy {sql_url_of('mysql')}", resource)

    async def work() -> None:
        async with AsyncSqlFence(guard.given).writing(resource, 5):
            await (guard.ask(end) if end == "COMMIT" else getattr(guard.given, end.strip("()"))())
            await guard.ask("BEGIN")
            await guard.ask("INSERT INTO thing (resource, value) VALUES (:r, 'not fenced')", r=resource)

    with pytest.raises(Misuse, match="inside of the fenced block"):
        guard.run(work())
    assert guard.peek() is None
    guard.write(6, "usable")
    guard.close()


def test_async_blocks_join_nest_and_set_up(sql_url_of: UrlOf, resource: str) -> None:
    guard = AsyncSqlGuard(f"asyncmy {sql_url_of('mysql')}", resource)
    table = "fence_of_asyncmy"

    async def work() -> None:
        fence = AsyncSqlFence(guard.given, table=table)
        await fence.create()
        await fence.create()
        with pytest.raises(Misuse, match="no transaction is open"):
            await fence.check(resource, 5)
        async with guard.handle.transaction():
            await fence.check(resource, 5)
            async with fence.writing(f"{resource}/kept", 6):
                pass
            with pytest.raises(ZeroDivisionError):
                async with fence.writing(f"{resource}/undone", 7):
                    raise ZeroDivisionError
            with pytest.raises(StaleToken):
                async with fence.writing(resource, 4):
                    pytest.fail("the block ran")
        assert [await fence.floor(f"{resource}{more}") for more in ("", "/kept", "/undone")] == [5, 6, None]
        await guard.alone(f"DROP TABLE {table}")

    guard.run(work())
    guard.close()


def test_pymysql_keeps_its_errors_beside_django(sql_url_of: UrlOf) -> None:
    with closing(django_connection(sql_url_of("mysql"))) as connection:
        connection.ensure_connection()
    assert pymysql.err.OperationalError is pymysql.OperationalError


def test_a_deadlock_that_was_swallowed_is_noticed(sql_url_of: UrlOf, resource: str) -> None:
    """The server has then undone the whole transaction, the check included, and says nothing of it in its status."""
    with closing(connected(sql_url_of("mysql"))) as connection, closing(connected(sql_url_of("mysql"))) as other:
        names = [f"{resource}/{number}" for number in range(20)]
        for name in names:  # the server gives up the one that has changed less
            execute(other, INSERT, name)
        floor = "UPDATE leasehold_fence SET asked = 0 WHERE resource = %s"
        waiter = threading.Thread(target=execute, args=(other, floor, resource.encode()))
        with pytest.raises(Misuse, match="inside of the fenced block"), SqlFence(connection).writing(resource, 5):
            waiter.start()
            with pytest.raises(pymysql.err.OperationalError, match="Deadlock found") as refused:
                execute(connection, "UPDATE thing SET value = 'mine' WHERE resource = %s", names[0])
            assert refused.value.args[0] == 1213
            execute(connection, INSERT, resource)
        waiter.join(60)
        assert not waiter.is_alive()
        other.rollback()
        assert SqlFence(connection).floor(resource) is None
    with closing(SqlGuard(f"core {sql_url_of('mysql')}", resource)) as looking:
        assert looking.peek() is None


def test_a_block_that_asks_nothing_of_psycopg2_ends_well(sql_url_of: UrlOf, resource: str) -> None:
    guard = SqlGuard(f"psycopg2 {sql_url_of('postgresql')}", resource)
    guard.given.autocommit = False
    with guard.handle.transaction():
        execute(guard.given, INSERT, resource)
    guard.given.rollback()
    assert guard.peek() == "not fenced"
    guard.close()
