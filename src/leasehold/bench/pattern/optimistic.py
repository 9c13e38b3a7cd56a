"""Retry on conflict, on SQLite: a loop of tenacity around a version check by hand, and Leasehold."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import sqlite3
from collections.abc import Callable, Iterator

from leasehold.bench.patterns import Comparison
from leasehold.bench.places import Place
from leasehold.errors import VersionConflict
from leasehold.patterns.optimistic import Versions, retry_on_conflict

LIBRARY = "tenacity, and a version check by hand"
OURS, WHOLE = "Leasehold retry_on_conflict, the same check", "Leasehold retry_on_conflict, and Versions"
NOTE = (
    "A row is read, and written on the condition that its version is still the same; nobody else writes. The first two "
    "run the same statements, so they differ by their loops alone; `Versions` keeps JSON in a table of its own."
)


def _connected(place: Place) -> sqlite3.Connection:
    connection = sqlite3.connect(place.folder / "versions.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL").fetchall()
    connection.execute("PRAGMA synchronous = NORMAL")
    return connection


def _by_hand(connection: sqlite3.Connection) -> Callable[[], None]:
    connection.execute("CREATE TABLE IF NOT EXISTS account (id INTEGER PRIMARY KEY, balance INTEGER, version INTEGER)")
    connection.execute("INSERT OR IGNORE INTO account VALUES (42, 0, 1)")

    def deposit() -> None:
        [(balance, version)] = connection.execute("SELECT balance, version FROM account WHERE id = 42").fetchall()
        written = connection.execute(
            "UPDATE account SET balance = ?, version = version + 1 WHERE id = 42 AND version = ?",
            (balance + 1, version),
        )
        if written.rowcount != 1:
            raise VersionConflict("account/42 was changed")

    return deposit


@contextlib.contextmanager
def comparisons(place: Place, _runner: asyncio.Runner) -> Iterator[list[Comparison]]:
    """A write that meets no conflict, which is nearly every one where this pattern is right."""
    tenacity = importlib.import_module("tenacity")
    with contextlib.closing(_connected(place)) as connection:
        deposit, store = _by_hand(connection), Versions(connection)
        store.create()
        store.write("account/42", 0, version=0)
        with_tenacity = tenacity.retry(
            retry=tenacity.retry_if_exception_type(VersionConflict),
            stop=tenacity.stop_after_attempt(10),
            wait=tenacity.wait_random_exponential(multiplier=0.01, max=1),
        )(deposit)
        with_ours = retry_on_conflict(deposit)

        @retry_on_conflict
        def versioned() -> None:
            account = store.read("account/42")
            store.write("account/42", account.value + 1, version=account.version)

        uses = {
            LIBRARY: lambda _number: with_tenacity(),
            OURS: lambda _number: with_ours(),
            WHOLE: lambda _number: versioned(),
        }
        yield [Comparison("Optimistic concurrency: a write without a conflict", uses, [NOTE])]
