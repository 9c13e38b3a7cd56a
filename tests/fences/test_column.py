"""The fence column: the check rides in the UPDATE of the row itself."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any, Self

import pytest
from tests.fences import scenarios
from tests.fences.guards import Blocked, Guard
from tests.fences.scenarios import SCENARIOS, Scenario, failing
from tests.fences.sql_guards import OPENERS, AsyncSqlGuard, SqlGuard, is_blocked
from tests.fences.test_scenarios import lost_updates

from leasehold.errors import Misuse, StaleToken, TokenJump
from leasehold.fences import AsyncColumnFence, ColumnFence, SqlFence
from leasehold.fences.rule import DAY
from leasehold.names import HIGHEST_TOKEN

WAYS = ["psycopg postgresql", "orm postgresql", "core sqlite", "django sqlite", "pymysql mysql"]
_numbers = itertools.count()
_CREATE = (
    "CREATE TABLE IF NOT EXISTS row_thing (id VARCHAR(200) PRIMARY KEY, value TEXT, "
    "fence BIGINT NOT NULL DEFAULT -1, fence_written BIGINT NOT NULL DEFAULT -1)"
)


class ColumnGuard(SqlGuard):
    """A row that exists when its value is not null, or that does not exist."""

    def __init__(self, address: str, resource: str, *, patience: float = 0.2) -> None:
        super().__init__(address, resource, patience=patience)
        self.key = resource
        self.column = ColumnFence(self.given, "row_thing", written="fence_written", jump_limit=HIGHEST_TOKEN)
        self.resource = self.column.resource(resource)

    def _another(self) -> Self:
        return type(self)(self.address, self.key, patience=self.patience)

    def write(self, token: int, value: str, *, once: bool = False, between: Callable[[], object] | None = None) -> None:
        try:
            if not self.column.update(self.key, token, {"value": value}, once=once):
                self.column.insert(self.key, token, {"value": value})
        except Exception as error:
            if is_blocked(error):
                raise Blocked(str(error)) from error
            raise

    def read(self, token: int) -> str | None:
        row = self.column.read(self.key, token, ["value"])
        if row is None:
            self.fence.announce(self.resource, token)
        return None if row is None else row[0]

    def peek(self) -> str | None:
        rows = self.ask("SELECT value FROM row_thing WHERE id = :id", id=self.key)
        self.end()
        return rows[0][0] if rows else None

    def delete(self, token: int) -> None:
        self.column.delete(self.key, token)

    def announce(self, token: int) -> None:
        if not self.column.announce(self.key, token):
            self.fence.announce(self.resource, token)

    def raise_floor(self, token: int) -> None:
        try:
            self.announce(token)
        except StaleToken:
            return

    def floor(self) -> int | None:
        rows = self.ask("SELECT fence FROM row_thing WHERE id = :id", id=self.key)
        self.end()
        return rows[0][0] if rows else super().floor()


@pytest.fixture(params=WAYS)
def fresh(request: pytest.FixtureRequest, sql_url_of: Callable[[str], str]) -> Callable[[], ColumnGuard]:
    client, engine = request.param.split()
    url = sql_url_of(engine)
    guard = SqlGuard(f"{client} {url}", "none")
    with guard.handle.setting_up():
        guard.ask(_CREATE)
    guard.close()
    return lambda: ColumnGuard(f"{client} {url}", f"row {next(_numbers)}")


@pytest.fixture
def guard(fresh: Callable[[], ColumnGuard]) -> Iterator[ColumnGuard]:
    one = fresh()
    yield one
    one.close()


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_scenario(scenario: Scenario, guard: ColumnGuard) -> None:
    scenario(guard)


@pytest.mark.parametrize("fresh", ["psycopg postgresql", "pymysql mysql"], indirect=True)
def test_racing_holders_lose_nothing_when_reads_are_fenced(fresh: Callable[[], Guard]) -> None:
    def made() -> Guard:
        guard = fresh()
        guard.write(0, "0")
        return guard

    accepted, lost = lost_updates(made, lambda guard, token: guard.read(token))
    assert accepted >= 8
    assert lost == 0


@pytest.mark.parametrize("fresh", ["psycopg postgresql"], indirect=True)
def test_an_update_that_does_not_ask_is_found(fresh: Callable[[], Guard], monkeypatch: pytest.MonkeyPatch) -> None:
    begin = ColumnFence.__init__

    def without(self: ColumnFence, *arguments: Any, **more: Any) -> None:
        begin(self, *arguments, **more)
        self._seen = "1 = 1"

    monkeypatch.setattr(ColumnFence, "__init__", without)
    assert scenarios.a_lower_token_is_refused_with_both_numbers in failing(fresh)


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


@pytest.mark.parametrize("fresh", ["psycopg postgresql"], indirect=True)
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


@pytest.mark.parametrize("fresh", ["psycopg postgresql"], indirect=True)
def test_async_code_does_the_same(fresh: Callable[[], ColumnGuard], sql_url_of: Callable[[str], str]) -> None:
    guard = fresh()

    async def work(connection: Any) -> None:
        fence = AsyncColumnFence(connection, "row_thing", written="fence_written")
        assert not await fence.update(guard.key, 5, {"value": "x"})
        await fence.insert(guard.key, 5, {"value": "x"})
        assert await fence.read(guard.key, 6, ["value"]) == ("x",)
        with pytest.raises(StaleToken):
            await fence.update(guard.key, 5, {"value": "stale"})
        assert await fence.announce(guard.key, 7)
        assert await fence.update(guard.key, 7, {"value": "y"}, once=True)
        assert await fence.delete(guard.key, 8)

    other = AsyncSqlGuard(f"psycopg {sql_url_of('postgresql')}", "none")
    other._run(work(other.given))
    other.close()
    assert (guard.peek(), guard.floor()) == (None, 8)
    guard.close()
