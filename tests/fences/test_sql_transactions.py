"""Whose transaction it is, what an error undoes, and what is refused because it could not be one step."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import psycopg.rows
import psycopg2.extras
import pytest
import sqlalchemy
import sqlalchemy.ext.asyncio
import sqlalchemy.orm
from tests.fences.sql_guards import AsyncSqlGuard, SqlGuard

from leasehold import Leasehold
from leasehold.errors import Misuse, StaleToken, TokenJump
from leasehold.fences import AsyncSqlFence, SqlFence
from leasehold.fences.rule import DAY
from leasehold.fences.sql_handles import blocking_handle
from leasehold.fences.sql_rule import Portable

WAYS = [
    "psycopg postgresql",
    "psycopg2 postgresql",
    "core postgresql",
    "orm postgresql",
    "django postgresql",
    "core sqlite",
    "orm sqlite",
    "django sqlite",
    "pymysql mysql",
    "core mysql",
    "orm mysql",
    "django mysql",
]
PLAIN = ["psycopg postgresql", "core sqlite", "pymysql mysql", "core mysql"]

UrlOf = Callable[[str], str]


def opened(way: str, sql_url_of: UrlOf, resource: str) -> SqlGuard:
    client, engine = way.split()
    return SqlGuard(f"{client} {sql_url_of(engine)}", resource)


@pytest.fixture
def guard(way: str, sql_url_of: UrlOf, resource: str) -> Iterator[SqlGuard]:
    one = opened(way, sql_url_of, resource)
    yield one
    one.close()


@pytest.mark.parametrize("way", WAYS)
def test_a_failing_block_leaves_neither_writes_nor_floor(guard: SqlGuard) -> None:
    other = guard.another()
    with pytest.raises(ZeroDivisionError), guard.fence.writing(guard.resource, 5) as given:
        assert given is guard.given
        guard.put("half")
        raise ZeroDivisionError
    assert (other.peek(), other.floor()) == (None, None)
    guard.write(4, "whole")
    assert (other.peek(), other.floor()) == ("whole", 4)


@pytest.mark.parametrize("way", WAYS)
def test_a_refused_block_does_not_run(guard: SqlGuard) -> None:
    guard.another().announce(6)
    with pytest.raises(StaleToken), guard.fence.writing(guard.resource, 5):
        pytest.fail("the block ran")
    guard.write(6, "the connection is usable")


@pytest.mark.parametrize("way", WAYS)
def test_a_block_joins_an_open_transaction_and_never_commits_it(guard: SqlGuard) -> None:
    other, nested = guard.another(), guard.resource + "/nested"
    with contextlib.suppress(KeyboardInterrupt), guard.handle.transaction():
        with guard.fence.writing(guard.resource, 5):
            guard.put("inside")
        with pytest.raises(ZeroDivisionError), guard.fence.writing(nested, 7):
            guard.put("undone")
            raise ZeroDivisionError
        with pytest.raises(StaleToken), guard.fence.writing(guard.resource, 4):
            pytest.fail("the block ran")
        assert guard.ask("SELECT value FROM thing WHERE resource = :r", r=guard.resource) == [("inside",)]
        assert guard.fence.floor(nested) is None
        assert other.peek() is None, "it is not committed yet"
        raise KeyboardInterrupt
    assert (other.peek(), other.floor()) == (None, None), "the outer one takes all back"
    with guard.handle.transaction(), guard.fence.writing(guard.resource, 5):
        guard.put("kept")
    assert (other.peek(), other.floor()) == ("kept", 5)


@pytest.mark.parametrize("way", WAYS)
def test_a_bare_check_is_part_of_the_open_transaction(guard: SqlGuard) -> None:
    other = guard.another()
    with guard.handle.transaction():
        guard.fence.check(guard.resource, 5)
        guard.put("one")
        assert other.floor() is None
    assert (other.peek(), other.floor()) == ("one", 5)
    with pytest.raises(StaleToken), guard.handle.transaction():
        guard.fence.check(guard.resource, 4)


@pytest.mark.parametrize("way", ["psycopg postgresql", "psycopg2 postgresql", "django postgresql", "pymysql mysql"])
def test_a_bare_check_needs_a_transaction(guard: SqlGuard) -> None:
    with pytest.raises(Misuse, match="no transaction is open"):
        guard.fence.check(guard.resource, 5)
    assert guard.floor() is None


def test_a_bare_check_opens_the_transaction_that_the_driver_would_open(sql_url_of: UrlOf, resource: str) -> None:
    other = opened("psycopg postgresql", sql_url_of, resource)
    for connect in (psycopg.connect, psycopg2.connect):
        connection: Any = connect(sql_url_of("postgresql"))
        SqlFence(connection).check(resource, 5)
        assert other.floor() is None
        connection.rollback()
        assert other.floor() is None
        connection.close()
    other.close()


@pytest.mark.parametrize("engine", ["postgresql", "sqlite"])
def test_a_connection_in_autocommit_mode_is_refused(engine: str, sql_url_of: UrlOf, resource: str) -> None:
    url = sql_url_of(engine).replace("postgresql:", "postgresql+psycopg:")
    with sqlalchemy.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=sqlalchemy.NullPool).connect() as one:
        fence = SqlFence(one)
        with pytest.raises(Misuse, match="autocommit"), fence.writing(resource, 5):
            pytest.fail("the block ran")
        with pytest.raises(Misuse, match="no transaction is open"):
            fence.check(resource, 5)
        assert fence.floor(resource) is None


def test_sqlalchemys_recipe_for_sqlite_transactions_is_no_autocommit(sql_url_of: UrlOf, resource: str) -> None:
    """SQLAlchemy advises to switch off the driver's own BEGIN and to send one by an event."""
    engine = sqlalchemy.create_engine(sql_url_of("sqlite"), poolclass=sqlalchemy.NullPool)

    @sqlalchemy.event.listens_for(engine, "connect")
    def no_begin(connection: sqlite3.Connection, _: object) -> None:
        connection.isolation_level = None

    @sqlalchemy.event.listens_for(engine, "begin")
    def begin(connection: sqlalchemy.Connection) -> None:
        connection.exec_driver_sql("BEGIN")

    with engine.connect() as one:
        with pytest.raises(ZeroDivisionError), SqlFence(one).writing(resource, 5):
            raise ZeroDivisionError
        assert SqlFence(one).floor(resource) is None


@pytest.mark.parametrize("way", ["psycopg2 postgresql", "pymysql mysql"])
@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_ending_the_transaction_inside_of_the_block_is_found(guard: SqlGuard, end: str) -> None:
    with pytest.raises(Misuse, match="inside of the fenced block"), guard.fence.writing(guard.resource, 5):
        guard.ask(end)
        guard.ask("BEGIN")
        guard.put("not fenced")
    assert guard.peek() is None


def test_a_block_in_a_block_that_has_asked_nothing_yet_joins_it(sql_url_of: UrlOf, resource: str) -> None:
    guard = opened("pymysql mysql", sql_url_of, resource)
    handle = blocking_handle(guard.given)
    guard.given.autocommit(False)
    with pytest.raises(ZeroDivisionError), handle.transaction():
        with handle.transaction():
            guard.put("inner")
        raise ZeroDivisionError
    guard.given.autocommit(True)
    assert guard.another().peek() is None, "the outer one undoes it"
    with handle.transaction():
        guard.put("whole")
    assert guard.another().peek() == "whole"


def test_psycopg_forbids_a_commit_inside_of_the_block(sql_url_of: UrlOf, resource: str) -> None:
    with psycopg.connect(sql_url_of("postgresql")) as connection:
        with pytest.raises(psycopg.ProgrammingError), SqlFence(connection).writing(resource, 5):
            connection.commit()
        assert SqlFence(connection).floor(resource) is None


def test_mysql_names_differ_by_trailing_spaces_and_case(sql_url_of: UrlOf, resource: str) -> None:
    guard = opened("pymysql mysql", sql_url_of, resource)
    guard.announce(5)
    for other in (f"{resource} ", resource.upper(), f"{resource}é"):
        assert guard.fence.floor(other) is None
    guard.close()


def test_first_writers_of_many_resources_do_not_disturb_each_other_in_mysql(sql_url_of: UrlOf, resource: str) -> None:
    """A fence that looked for the row before it makes it would lock the gap, and deadlock."""
    first, second = (opened("pymysql mysql", sql_url_of, f"{resource}/{number}") for number in (1, 2))
    with first.handle.transaction(), second.handle.transaction():
        first.fence.check(first.resource, 5)
        second.fence.check(second.resource, 5)
        first.fence.check(first.resource + "x", 5)
        second.fence.check(second.resource + "x", 5)
    assert (first.floor(), second.floor()) == (5, 5)
    first.close()
    second.close()


def test_the_callers_own_rows_do_not_matter(sql_url_of: UrlOf, resource: str) -> None:
    url = sql_url_of("postgresql")
    with psycopg.connect(url, row_factory=psycopg.rows.dict_row) as first:
        SqlFence(first).announce(resource, 5)
        assert SqlFence(first).floor(resource) == 5
    second = psycopg2.connect(url, cursor_factory=psycopg2.extras.RealDictCursor)
    assert SqlFence(second).floor(resource) == 5
    second.close()


# Objects of the ORM


class Base(sqlalchemy.orm.DeclarativeBase):
    pass


class Thing(Base):
    __tablename__ = "thing"
    resource: sqlalchemy.orm.Mapped[str] = sqlalchemy.orm.mapped_column(primary_key=True)
    value: sqlalchemy.orm.Mapped[str]


@pytest.mark.parametrize("way", ["orm postgresql", "orm sqlite"])
def test_what_the_session_flushes_is_fenced(guard: SqlGuard) -> None:
    other, session = guard.another(), guard.given
    with guard.fence.writing(guard.resource, 5):
        session.add(Thing(resource=guard.resource, value="mine"))
    assert other.peek() == "mine"
    guard.another().announce(6)
    with pytest.raises(StaleToken), session.begin():
        session.get(Thing, guard.resource).value = "stale"
        guard.fence.check(guard.resource, 5)
    assert other.peek() == "mine"


def test_an_async_session_is_fenced(sql_url_of: UrlOf, resource: str) -> None:
    url = sql_url_of("postgresql").replace("postgresql:", "postgresql+psycopg:")

    async def work() -> None:
        engine = sqlalchemy.ext.asyncio.create_async_engine(url, poolclass=sqlalchemy.NullPool)
        async with sqlalchemy.ext.asyncio.AsyncSession(engine) as session:
            fence = AsyncSqlFence(session)
            async with fence.writing(resource, 5):
                session.add(Thing(resource=resource, value="mine"))
            with pytest.raises(StaleToken):
                async with fence.writing(resource, 4):
                    pytest.fail("the block ran")
        await engine.dispose()

    asyncio.run(work())
    other = opened("psycopg postgresql", sql_url_of, resource)
    assert (other.peek(), other.floor()) == ("mine", 5)
    other.close()


@pytest.mark.parametrize("client", ["psycopg", "core"])
def test_a_cancelled_block_leaves_nothing(client: str, sql_url_of: UrlOf, resource: str) -> None:
    guard = AsyncSqlGuard(f"{client} {sql_url_of('postgresql')}", resource)

    async def work() -> None:
        async with guard.fence.writing(resource, 5):
            await guard.ask("INSERT INTO thing (resource, value) VALUES (:r, 'half')", r=resource)
            await asyncio.sleep(60)

    async def cancelled() -> None:
        task = asyncio.create_task(work())
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    guard.run(cancelled())
    assert (guard.peek(), guard.floor()) == (None, None)
    guard.close()


# The table


@pytest.mark.parametrize("way", ["psycopg postgresql", "core postgresql", "django sqlite", "pymysql mysql"])
def test_a_missing_table_says_what_to_do(guard: SqlGuard) -> None:
    fence = SqlFence(guard.given, table="other_fence")
    with pytest.raises(Misuse, match=r"other_fence; call create\(\)"):
        fence.announce(guard.resource, 5)
    fence.create()
    fence.create()
    fence.announce(guard.resource, 5)
    assert fence.floor(guard.resource) == 5
    assert guard.floor() is None, "tables do not share floors"
    with guard.handle.setting_up():
        guard.ask("DROP TABLE other_fence")


def test_the_table_may_be_in_a_schema(sql_url_of: UrlOf, resource: str) -> None:
    with psycopg.connect(sql_url_of("postgresql"), autocommit=True) as connection:
        connection.execute("CREATE SCHEMA billing")
        fence = SqlFence(connection, table="billing.select")
        fence.create()
        fence.announce(resource, 5)
        found = connection.execute('SELECT token FROM billing."select" WHERE resource = %s', [resource]).fetchone()
        assert found == (5,)
        connection.execute("DROP SCHEMA billing CASCADE")


@pytest.mark.parametrize("table", ["", "a b", "Fence", "a" * 32, "a;b", 'a"b', "a.b.c", "a.", ".a", "é", None, 5])
def test_a_table_is_a_plain_identifier(table: Any, sql_url_of: UrlOf) -> None:
    with psycopg.connect(sql_url_of("postgresql")) as connection, pytest.raises(Misuse, match="table must be"):
        SqlFence(connection, table=table)


def test_many_create_the_table_at_the_same_time(sql_url_of: UrlOf) -> None:
    async def one(number: int) -> None:
        async with await psycopg.AsyncConnection.connect(sql_url_of("postgresql")) as connection:
            await AsyncSqlFence(connection, table="crowded_fence").create()

    async def all_of_them() -> None:
        await asyncio.gather(*map(one, range(8)))

    asyncio.run(all_of_them())
    with psycopg.connect(sql_url_of("postgresql")) as connection:
        connection.execute("DROP TABLE crowded_fence")


# What is no connection, or the wrong kind


def test_wrong_kinds_are_told_where_they_belong(sql_url_of: UrlOf) -> None:
    database = sqlite3.connect(":memory:")
    with pytest.raises(Misuse, match="SqliteFence"):
        SqlFence(database)
    database.close()
    for nothing in (None, "postgresql://host/db", 5, object()):
        with pytest.raises(Misuse, match="psycopg2 or PyMySQL"):
            SqlFence(nothing)
        with pytest.raises(Misuse, match="psycopg2 or PyMySQL"):
            AsyncSqlFence(nothing)
    asyncio_guard = AsyncSqlGuard(f"core {sql_url_of('postgresql')}", "none")
    with pytest.raises(Misuse, match="AsyncSqlFence"):
        SqlFence(asyncio_guard.given)
    asyncio_guard.close()
    guard = SqlGuard(f"core {sql_url_of('postgresql')}", "none")
    with pytest.raises(Misuse, match="give it to SqlFence"):
        AsyncSqlFence(guard.given)
    guard.close()


# Jumps, and restored backups


@pytest.mark.parametrize("way", PLAIN)
def test_a_jump_is_refused_until_it_is_confirmed(guard: SqlGuard) -> None:
    fence, tomorrow = SqlFence(guard.given), time.time_ns() // 1000 + 2 * DAY
    for seen in (None, 5):
        with pytest.raises(TokenJump) as refused:
            fence.announce(guard.resource, tomorrow)
        assert (refused.value.token, refused.value.seen) == (tomorrow, seen)
        fence.raise_floor(guard.resource, 5)
    fence.announce(guard.resource, tomorrow, allow_jump=True)
    assert fence.floor(guard.resource) == tomorrow
    guard.end()


@pytest.mark.parametrize("way", PLAIN)
def test_after_a_restore_all_floors_can_be_raised(guard: SqlGuard) -> None:
    fence = SqlFence(guard.given, table="restored_fence")
    fence.create()
    fence.announce("known", 5)
    fence.announce("high", 50)
    fence.raise_all_floors(10)
    for resource, floor in (("known", 10), ("high", 50), ("new", 10)):
        assert fence.floor(resource) == floor
        guard.end()
    for resource in ("known", "new"):
        with pytest.raises(StaleToken) as refused:
            fence.announce(resource, 9)
        assert (refused.value.resource, refused.value.seen) == (resource, 10)
        fence.announce(resource, 10)
    fence.raise_all_floors(7)
    with fence.writing("newer", 11, once=True):
        pass
    with pytest.raises(TokenJump, match="every resource"):
        fence.raise_all_floors(2**62)
    assert fence.floor("newest") == 10
    guard.end()
    with guard.handle.setting_up():
        guard.ask("DROP TABLE restored_fence")


def test_raising_all_floors_waits_for_a_first_write_that_is_under_way(sql_url_of: UrlOf) -> None:
    """Otherwise a resource that gets its first row meanwhile would keep a floor that is too low."""
    url = sql_url_of("postgresql")
    with psycopg.connect(url) as writer, psycopg.connect(url) as admin:
        fence = SqlFence(writer, table="late_fence")
        fence.create()
        writer.commit()
        fence.check("first", 5)
        admin.execute("SET lock_timeout = '200ms'")
        admin.commit()
        with pytest.raises(psycopg.errors.LockNotAvailable):
            SqlFence(admin, table="late_fence").raise_all_floors(10)
        admin.rollback()
        writer.commit()
        SqlFence(admin, table="late_fence").raise_all_floors(10)
        assert fence.floor("first") == 10
        writer.execute("DROP TABLE late_fence")


def test_without_that_lock_a_floor_stays_too_low(sql_url_of: UrlOf, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above can fail."""
    monkeypatch.setattr("leasehold.fences.sql_rule.PostgreSql._keep_every", "")
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        test_raising_all_floors_waits_for_a_first_write_that_is_under_way(sql_url_of)
    with psycopg.connect(sql_url_of("postgresql")) as connection:
        connection.execute("DROP TABLE late_fence")


# Tokens from real leases; many asks


def test_a_lease_brings_its_own_token(sql_url_of: UrlOf, resource: str) -> None:
    url = sql_url_of("postgresql")
    with psycopg.connect(url, autocommit=True) as connection, Leasehold(url) as locks:
        fence = SqlFence(connection)
        with locks.lock(resource) as first, fence.writing(resource, first):
            pass
        with locks.lock(resource) as second, fence.writing(resource, second):
            pass
        with pytest.raises(StaleToken) as refused, fence.writing(resource, first):
            pytest.fail("the block ran")
    assert (refused.value.token, refused.value.seen) == (first.token, second.token)


def test_many_asks_do_not_grow(sql_url_of: UrlOf, resource: str) -> None:
    with psycopg.connect(sql_url_of("postgresql"), autocommit=True) as connection:
        fence = SqlFence(connection, table="busy_fence")
        fence.create()
        for token in range(1000):
            fence.announce(resource, token)
            fence.announce(resource, token)
        rows = connection.execute("SELECT count(*), pg_relation_size('busy_fence') FROM busy_fence").fetchone()
        assert rows is not None
        assert rows[0] == 2, "the resource's, and that of all"
        assert rows[1] <= 8 * 8192
        connection.execute("DROP TABLE busy_fence")


def test_one_statement_is_all_that_an_accepted_check_costs(sql_url_of: UrlOf, resource: str) -> None:
    steps = Portable().judge(SqlFence(psycopg_of(sql_url_of))._claim(resource, 5, writes=True, allow_jump=False))
    next(steps)
    with pytest.raises(StopIteration):
        steps.send(type("Answer", (), {"touched": 1})())


def psycopg_of(sql_url_of: UrlOf) -> Any:
    connection = psycopg.connect(sql_url_of("postgresql"))
    connection.close()
    return connection
