"""The fence column: the check rides in the UPDATE of the row itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from tests.fences.guards import Guard
from tests.fences.registry import COLUMN_WAYS
from tests.fences.sql_guards import OPENERS, AsyncSqlGuard
from tests.fences.table_guards import ColumnGuard

from leasehold.errors import Misuse, StaleToken, TokenJump, TokenUsed
from leasehold.fences import AsyncColumnFence, ColumnFence, SqlFence
from leasehold.fences.rule import DAY


@pytest.fixture(params=COLUMN_WAYS)
def guard(request: pytest.FixtureRequest, fresh_of: Callable[[str], Callable[[], Guard]]) -> Iterator[ColumnGuard]:
    one = fresh_of(f"column {request.param}")()
    assert isinstance(one, ColumnGuard)
    yield one
    one.close()


def test_a_row_that_is_not_there_is_told(guard: ColumnGuard) -> None:
    fence = guard.column
    assert not fence.update(guard.key, 5, {"value": "x"})
    assert not fence.delete(guard.key, 5)
    assert fence.read(guard.key, 5, ["value"]) is None
    assert not fence.announce(guard.key, 5)
    fence.insert(guard.key, 5, {"value": "x"})
    assert fence.delete(guard.key, 6)
    with pytest.raises(StaleToken) as refused:
        fence.update(guard.key, 5, {"value": "stale"})
    assert (refused.value.resource, refused.value.token, refused.value.seen) == (guard.resource, 5, 6)
    with pytest.raises(StaleToken):
        fence.insert(guard.key, 5, {"value": "stale"})


def test_the_same_write_again_is_accepted(guard: ColumnGuard) -> None:
    """MySQL counts no row where nothing became different."""
    guard.write(5, "same")
    assert guard.column.update(guard.key, 5, {"value": "same"})
    with pytest.raises(StaleToken):
        guard.column.update(guard.key, 4, {"value": "same"})


def test_an_error_in_an_open_transaction_takes_all_back(guard: ColumnGuard) -> None:
    guard.write(5, "before")
    with pytest.raises(ZeroDivisionError), guard.handle.transaction():
        guard.column.update(guard.key, 6, {"value": "half"})
        raise ZeroDivisionError
    assert (guard.peek(), guard.floor()) == ("before", 5)


@pytest.mark.parametrize("guard", ["psycopg postgresql"], indirect=True)
def test_jumps_names_and_once(guard: ColumnGuard) -> None:
    guard.write(5, "x")
    fence = ColumnFence(guard.given, "row_thing")
    with pytest.raises(TokenJump):
        fence.update(guard.key, time.time_ns() // 1000 + 2 * DAY, {"value": "y"})
    with pytest.raises(Misuse, match="needs a second column"):
        fence.update(guard.key, 6, {"value": "y"}, once=True)
    with pytest.raises(Misuse, match="column must be"):
        fence.update(guard.key, 6, {'value" = 1 --': "y"})
    for wrong in ({"key": "a b"}, {"column": 'a"'}, {"written": ";"}):
        with pytest.raises(Misuse, match=f"{next(iter(wrong))} must be"):
            ColumnFence(guard.given, "row_thing", **wrong)  # type: ignore[arg-type]


def test_the_column_can_be_added_to_a_table_that_is_there(sql_url_of: Callable[[str], str]) -> None:
    connection, close = OPENERS["psycopg"](sql_url_of("postgresql"))
    connection.execute("CREATE TABLE plain (id INTEGER PRIMARY KEY, value TEXT)")
    connection.execute("INSERT INTO plain VALUES (1, 'old')")
    fence = ColumnFence(connection, "plain", written="fence_written")
    fence.add_column()
    assert fence.update(1, 0, {"value": "new"}, once=True)
    assert SqlFence(connection).floor("plain/1") is None, "the floor is in the row"
    connection.execute("DROP TABLE plain")
    close()


def test_the_column_can_be_added_in_async_code(sql_url_of: Callable[[str], str]) -> None:
    guard = AsyncSqlGuard(f"psycopg {sql_url_of('postgresql')}", "none")

    async def work() -> None:
        await guard.ask("CREATE TABLE plain_too (id INTEGER PRIMARY KEY, value TEXT)")
        await guard.ask("INSERT INTO plain_too VALUES (1, 'old')")
        fence = AsyncColumnFence(guard.given, "plain_too", written="fence_written")
        await fence.add_column()
        assert await fence.update(1, 5, {"value": "new"}, once=True)
        with pytest.raises(TokenUsed):
            await fence.update(1, 5, {"value": "newer"}, once=True)
        with pytest.raises(StaleToken):
            await fence.update(1, 4, {"value": "stale"})
        assert await guard.ask("SELECT value, fence, fence_written FROM plain_too") == [("new", 5, 5)]
        await guard.ask("DROP TABLE plain_too")

    guard.run(work())
    guard.close()
