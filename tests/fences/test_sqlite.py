"""What only the SQLite fence has: the caller's transactions, in every mode that Python knows."""

from __future__ import annotations

import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold import Leasehold
from leasehold.errors import Misuse, StaleToken, TokenJump, TokenUsed
from leasehold.fences import SqliteFence
from leasehold.fences.rule import DAY

Connect = Callable[[], sqlite3.Connection]

MODES: dict[str, dict[str, Any]] = {
    "Python opens": {},
    "Python opens at once": {"isolation_level": "IMMEDIATE"},
    "the caller opens": {"isolation_level": None},
}
if sys.version_info >= (3, 12):
    MODES |= {"autocommit": {"autocommit": True}, "always open": {"autocommit": False}}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "things.db"
    database = sqlite3.connect(path)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("CREATE TABLE thing (value TEXT)")
    SqliteFence(database).create()
    database.close()
    return path


@pytest.fixture(params=MODES.values(), ids=list(MODES))
def database(request: pytest.FixtureRequest, path: Path) -> Iterator[sqlite3.Connection]:
    """A connection in each mode."""
    connection = sqlite3.connect(path, timeout=0.1, **request.param)
    yield connection
    connection.close()


@pytest.fixture
def other(path: Path) -> Iterator[sqlite3.Connection]:
    """Somebody else's connection, which sees only what was committed."""
    connection = sqlite3.connect(path, timeout=0.1, isolation_level=None)
    yield connection
    connection.close()


def values(connection: sqlite3.Connection) -> list[str]:
    return [row[0] for row in connection.execute("SELECT value FROM thing ORDER BY rowid")]


def put(connection: sqlite3.Connection, value: str) -> None:
    connection.execute("INSERT INTO thing VALUES (?)", (value,))


def always_open(connection: sqlite3.Connection) -> bool:
    return getattr(connection, "autocommit", None) is False


# Transactions


def test_a_block_is_one_transaction(database: sqlite3.Connection, other: sqlite3.Connection) -> None:
    with SqliteFence(database).writing("thing", 5) as connection:
        assert connection is database
        put(connection, "one")
        put(connection, "two")
        assert values(other) == []
    assert database.in_transaction == always_open(database)
    if always_open(database):
        assert values(other) == [], "a transaction that Python keeps open is the caller's to commit"
        database.commit()
    assert values(other) == ["one", "two"]
    assert SqliteFence(other).floor("thing") == 5


def test_a_failing_block_leaves_neither_writes_nor_floor(
    database: sqlite3.Connection, other: sqlite3.Connection
) -> None:
    with pytest.raises(ZeroDivisionError), SqliteFence(database).writing("thing", 5):
        put(database, "half")
        raise ZeroDivisionError
    assert database.in_transaction == always_open(database)
    database.commit()
    assert values(other) == []
    assert SqliteFence(other).floor("thing") is None


def test_a_refused_block_does_not_run(database: sqlite3.Connection, other: sqlite3.Connection) -> None:
    SqliteFence(other).announce("thing", 6)
    with pytest.raises(StaleToken), SqliteFence(database).writing("thing", 5):
        pytest.fail("the block ran")
    assert database.in_transaction == always_open(database)


def test_a_block_joins_an_open_transaction_and_never_commits_it(
    database: sqlite3.Connection, other: sqlite3.Connection
) -> None:
    if not database.in_transaction:
        database.execute("BEGIN")
    put(database, "before")
    with SqliteFence(database).writing("thing", 5):
        put(database, "inside")
    with pytest.raises(StaleToken), SqliteFence(database).writing("thing", 4):
        pytest.fail("the block ran")
    with pytest.raises(ZeroDivisionError), SqliteFence(database).writing("thing", 6):
        put(database, "undone")
        raise ZeroDivisionError
    assert database.in_transaction
    assert values(other) == []
    assert values(database) == ["before", "inside"]
    assert SqliteFence(database).floor("thing") == 5
    database.execute("COMMIT")
    assert values(other) == ["before", "inside"]


def test_rolling_back_the_joined_transaction_takes_the_floor_back(
    database: sqlite3.Connection, other: sqlite3.Connection
) -> None:
    if not database.in_transaction:
        database.execute("BEGIN")
    with SqliteFence(database).writing("thing", 5):
        put(database, "inside")
    database.execute("ROLLBACK")
    assert SqliteFence(other).floor("thing") is None
    assert values(other) == []


def test_blocks_nest_for_several_resources(database: sqlite3.Connection, other: sqlite3.Connection) -> None:
    fence = SqliteFence(database)
    with fence.writing("a", 5), fence.writing("b", 7):
        put(database, "both")
    database.commit()
    assert (SqliteFence(other).floor("a"), SqliteFence(other).floor("b")) == (5, 7)
    with pytest.raises(StaleToken), fence.writing("a", 6), fence.writing("b", 6):
        pytest.fail("the block ran")
    database.commit()
    assert (SqliteFence(other).floor("a"), SqliteFence(other).floor("b")) == (5, 7)


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_ending_the_transaction_inside_of_the_block_is_found(
    end: str, database: sqlite3.Connection, other: sqlite3.Connection
) -> None:
    """What came after would not be fenced: a later holder can write as soon as the transaction is over."""

    def block() -> None:
        with SqliteFence(database).writing("thing", 5):
            database.execute(end)
            database.execute("BEGIN")
            put(database, "not fenced")

    with pytest.raises(Misuse, match="inside of the fenced block"):
        block()
    assert database.in_transaction == always_open(database)
    assert values(other) == []


def test_a_script_that_commits_inside_of_the_block_is_found(path: Path) -> None:
    database = sqlite3.connect(path)
    with pytest.raises(Misuse, match="executescript"), SqliteFence(database).writing("thing", 5):
        database.executescript("SELECT 1")
    database.close()


def test_a_write_waits_for_the_holder_that_is_at_work(database: sqlite3.Connection, other: sqlite3.Connection) -> None:
    locked = pytest.raises(sqlite3.OperationalError, match="locked")
    with SqliteFence(other).writing("thing", 5), locked, SqliteFence(database).writing("thing", 6):
        pytest.fail("the block ran")
    assert database.in_transaction == always_open(database)


def test_a_decision_on_old_reads_cannot_be_committed(path: Path, other: sqlite3.Connection) -> None:
    """A transaction that read before somebody else wrote can no longer write: SQLite itself refuses."""
    database = sqlite3.connect(path, timeout=0.1, isolation_level=None)
    database.execute("BEGIN")
    assert values(database) == []
    with SqliteFence(other).writing("thing", 5):
        put(other, "meanwhile")
    with pytest.raises(sqlite3.OperationalError, match="locked"), SqliteFence(database).writing("thing", 6):
        pytest.fail("the block ran")
    database.close()


def test_a_commit_that_fails_leaves_nothing(path: Path, other: sqlite3.Connection) -> None:
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("PRAGMA foreign_keys = ON")
    database.execute("CREATE TABLE child (parent REFERENCES parent (id) DEFERRABLE INITIALLY DEFERRED)")
    database.execute("CREATE TABLE parent (id INTEGER PRIMARY KEY)")
    with pytest.raises(sqlite3.IntegrityError), SqliteFence(database).writing("thing", 5):
        put(database, "one")
        database.execute("INSERT INTO child VALUES (1)")
    assert not database.in_transaction
    assert (values(other), SqliteFence(other).floor("thing")) == ([], None)
    database.close()


# The bare check


def test_a_bare_check_is_part_of_the_open_transaction(database: sqlite3.Connection, other: sqlite3.Connection) -> None:
    if not database.in_transaction:
        database.execute("BEGIN IMMEDIATE")
    SqliteFence(database).check("thing", 5)
    put(database, "one")
    assert SqliteFence(other).floor("thing") is None
    database.execute("COMMIT")
    assert (values(other), SqliteFence(other).floor("thing")) == (["one"], 5)


def test_a_bare_check_needs_a_transaction(path: Path) -> None:
    modes: list[dict[str, Any]] = [{"isolation_level": None}] + (
        [{"autocommit": True}] if sys.version_info >= (3, 12) else []
    )
    for mode in modes:
        database = sqlite3.connect(path, **mode)
        with pytest.raises(Misuse, match="BEGIN IMMEDIATE"):
            SqliteFence(database).check("thing", 5)
        assert SqliteFence(database).floor("thing") is None
        database.close()


def test_a_bare_check_opens_the_transaction_that_python_would_open(path: Path, other: sqlite3.Connection) -> None:
    database = sqlite3.connect(path)
    SqliteFence(database).check("thing", 5)
    put(database, "one")
    database.commit()
    assert (values(other), SqliteFence(other).floor("thing")) == (["one"], 5)
    with pytest.raises(StaleToken):
        SqliteFence(database).check("thing", 4)
    assert not database.in_transaction, "a refused check must not keep the database locked"
    database.close()


def test_a_refused_bare_check_leaves_the_open_transaction_alone(path: Path, other: sqlite3.Connection) -> None:
    SqliteFence(other).announce("thing", 6)
    database = sqlite3.connect(path)
    put(database, "before")
    with pytest.raises(StaleToken):
        SqliteFence(database).check("thing", 5)
    assert database.in_transaction
    database.close()


def test_a_bare_check_knows_once(path: Path) -> None:
    with sqlite3.connect(path) as database:
        fence = SqliteFence(database)
        fence.check("thing", 5, once=True)
        with pytest.raises(TokenUsed):
            fence.check("thing", 5, once=True)
    database.close()


# The table


def test_a_missing_table_says_what_to_do(database: sqlite3.Connection) -> None:
    fence = SqliteFence(database, table="other_fence")
    with pytest.raises(Misuse, match=r"other_fence; call create\(\)"):
        fence.announce("thing", 5)
    assert database.in_transaction == always_open(database)
    fence.create()
    fence.create()
    fence.announce("thing", 5)
    assert fence.floor("thing") == 5
    assert SqliteFence(database).floor("thing") is None, "tables do not share floors"


@pytest.mark.parametrize("table", ["", "a b", "Fence", "a" * 32, "1a", "a;b", 'a"b', "main.a", "é", "a\n", None, 5])
def test_a_table_is_a_plain_identifier(table: Any) -> None:
    database = sqlite3.connect(":memory:")
    with pytest.raises(Misuse, match="table must be"):
        SqliteFence(database, table=table)
    database.close()


@pytest.mark.parametrize("table", ["select", "_", "a" * 31])
def test_any_plain_identifier_will_do(table: str) -> None:
    database = sqlite3.connect(":memory:")
    fence = SqliteFence(database, table=table)
    fence.create()
    fence.announce("thing", 5)
    assert fence.floor("thing") == 5
    database.close()


def test_a_path_is_no_connection() -> None:
    with pytest.raises(Misuse, match=r"sqlite3\.connect"):
        SqliteFence("things.db")  # type: ignore[arg-type]


def test_a_temporary_table_of_the_same_name_is_not_taken_for_it(path: Path) -> None:
    database = sqlite3.connect(path)
    database.execute("CREATE TEMP TABLE leasehold_fence (resource TEXT PRIMARY KEY, token INTEGER, written INTEGER)")
    SqliteFence(database).announce("thing", 5)
    database.close()
    reopened = sqlite3.connect(path)
    assert SqliteFence(reopened).floor("thing") == 5
    reopened.close()


def test_the_callers_own_rows_and_texts_do_not_matter(path: Path) -> None:
    database = sqlite3.connect(path)
    database.row_factory = lambda _, row: {"row": row}
    database.text_factory = bytes
    fence = SqliteFence(database)
    fence.announce("thing", 5)
    with pytest.raises(StaleToken) as refused:
        fence.announce("thing", 4)
    assert (refused.value.seen, fence.floor("thing")) == (5, 5)
    database.close()


# Jumps and restored backups


def test_a_jump_is_refused_until_it_is_confirmed(path: Path) -> None:
    database = sqlite3.connect(path)
    fence, tomorrow = SqliteFence(database), time.time_ns() // 1000 + 2 * DAY
    for seen in (None, 5):
        with pytest.raises(TokenJump) as refused:
            fence.announce("thing", tomorrow)
        assert (refused.value.token, refused.value.seen) == (tomorrow, seen)
        fence.raise_floor("thing", 5)
    fence.announce("thing", tomorrow, allow_jump=True)
    assert fence.floor("thing") == tomorrow
    fence.announce("thing", tomorrow + DAY)
    database.close()


def test_after_a_restore_all_floors_can_be_raised(path: Path) -> None:
    database = sqlite3.connect(path)
    fence = SqliteFence(database)
    fence.announce("known", 5)
    fence.announce("high", 50)
    fence.raise_all_floors(10)
    assert [fence.floor(name) for name in ("known", "high", "new")] == [10, 50, 10]
    for resource in ("known", "new"):
        with pytest.raises(StaleToken) as refused:
            fence.announce(resource, 9)
        assert (refused.value.resource, refused.value.seen) == (resource, 10)
        fence.announce(resource, 10)
    fence.raise_all_floors(7)
    assert [fence.floor(name) for name in ("known", "high", "new", "newer")] == [10, 50, 10, 10]
    with fence.writing("newer", 11, once=True):
        put(database, "one")
    with pytest.raises(TokenJump, match="every resource"):
        fence.raise_all_floors(2**62)
    assert not database.in_transaction
    assert [fence.floor(name) for name in ("known", "newest")] == [10, 10]
    database.close()


# Tokens from real leases


def test_a_lease_brings_its_own_token(path: Path, tmp_path: Path) -> None:
    database = sqlite3.connect(path)
    fence = SqliteFence(database)
    with Leasehold(tmp_path / "leases.db") as locks:
        with locks.lock("thing") as first, fence.writing("thing", first):
            put(database, "first")
        with locks.lock("thing") as second, fence.writing("thing", second):
            put(database, "second")
    with pytest.raises(StaleToken) as refused, fence.writing("thing", first):
        pytest.fail("the block ran")
    assert (refused.value.token, refused.value.seen) == (first.token, second.token)
    assert values(database) == ["first", "second"]
    database.close()


# Many asks, and any


def test_a_million_asks_neither_grow_nor_slow_down() -> None:
    """The floor is one row however often it is raised, and the last ask costs what the first one did."""
    database = sqlite3.connect(":memory:", isolation_level=None)
    fence, rounds, asks = SqliteFence(database), 20, 1_000_000
    fence.create()
    took, token = [], 0
    database.execute("BEGIN")
    for _ in range(rounds):
        started = time.process_time()
        for _ in range(asks // rounds // 2):
            token += 1
            fence.check("thing", token)
            fence.check("thing", token)
        took.append(time.process_time() - started)
    database.execute("COMMIT")
    assert fence.floor("thing") == asks // 2
    assert database.execute("SELECT count(*) FROM leasehold_fence").fetchone() == (1,)
    assert database.execute("PRAGMA page_count").fetchone() <= (3,)
    # The quickest of several rounds, since a busy machine can slow down any one of them.
    assert min(took[-5:]) < 2 * min(took[:5])
    database.close()


resources = st.one_of(st.text(), st.sampled_from(["thing", "'; DROP TABLE leasehold_fence; --", "", None, 5, b"x"]))
tokens = st.one_of(st.integers(-(2**65), 2**65), st.floats(), st.booleans(), st.none(), st.text())


@given(st.lists(st.tuples(resources, tokens), max_size=8))
def test_whatever_comes_is_accepted_or_refused_with_a_typed_error(asked: list[tuple[Any, Any]]) -> None:
    database = sqlite3.connect(":memory:", isolation_level=None)
    fence, statements = SqliteFence(database), list[str]()
    fence.create()
    database.set_trace_callback(statements.append)
    for resource, token in asked:
        statements.clear()
        try:
            fence.announce(resource, token)
        except Misuse:
            assert statements == [], "nothing invalid reaches the resource"
        except (StaleToken, TokenJump):
            assert statements != []
        else:
            assert fence.floor(resource) == token
        assert not database.in_transaction
    database.close()
