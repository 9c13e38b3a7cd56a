"""What a fence adds to a write: the same write with the check and without it."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterator

from leasehold.bench.effort import Run
from leasehold.bench.figures import in_turn, quantile, spread
from leasehold.bench.peers import REDIS_PY, redis_py_client
from leasehold.bench.places import Place
from leasehold.bench.results import Figure, Finding, Row, Table
from leasehold.fences import RedisFence, SqliteFence
from leasehold.fences.redis import floor_key

RATIO, MIDDLE, SLOWEST = "to unfenced (p10-p90)", "p50 µs", "p99 µs"
UNFENCED, FENCED = "the write alone", "the same write, fenced"

Write = Callable[[int], object]
"""Writes once, given a token."""


def measure(run: Run) -> Finding:
    """Each kind of resource that is at hand."""
    tables = []
    for place in run.places:
        with _writers(place) as writers, run.steps.of(f"fenced writes to {place.engine}", run.effort.rounds) as advance:
            if not writers:
                continue
            taken: dict[str, list[list[float]]] = {what: [] for what, _write in writers}
            token = time.time_ns() // 1000
            for number, (what, write) in in_turn(writers, run.effort.rounds + 1):
                taken[what].append(_timed(write, token + number, run.effort.pairs))
                if what == FENCED:
                    advance()
        tables.append(_table(place, {what: rounds[1:] for what, rounds in taken.items()}))
    return Finding(tables, [])


def _timed(write: Write, token: int, pairs: int) -> list[float]:
    clock, taken = time.perf_counter_ns, []
    for _ in range(pairs):
        began = clock()
        write(token)
        taken.append((clock() - began) / 1000)
    return taken


@contextlib.contextmanager
def _writers(place: Place) -> Iterator[list[tuple[str, Write]]]:
    if place.engine == "sqlite":
        with contextlib.closing(_account(place)) as connection:
            yield _sqlite_writers(connection)
    elif REDIS_PY.runs_on(place):
        with contextlib.closing(redis_py_client(place)) as client:
            key, fence = f"{place.namespace}:account", RedisFence(client)
            try:
                yield [
                    (UNFENCED, lambda _token: client.set(key, 100)),
                    (FENCED, lambda token: fence.set(key, token, 100)),
                ]
            finally:
                client.delete(key, floor_key(key))
    else:
        yield []


def _account(place: Place) -> sqlite3.Connection:
    connection = sqlite3.connect(place.folder / "account.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL").fetchall()
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("CREATE TABLE IF NOT EXISTS account (id INTEGER PRIMARY KEY, balance INTEGER)")
    connection.execute("INSERT OR IGNORE INTO account VALUES (42, 100)")
    return connection


def _sqlite_writers(connection: sqlite3.Connection) -> list[tuple[str, Write]]:
    fence = SqliteFence(connection)
    fence.create()
    # Another value each time: SQLite does not write a page that would stay as it is.
    update = "UPDATE account SET balance = balance + 1 WHERE id = 42"

    def unfenced(_token: int) -> None:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(update)
        connection.execute("COMMIT")

    def fenced(token: int) -> None:
        with fence.writing("account/42", token):
            connection.execute(update)

    return [(UNFENCED, unfenced), (FENCED, fenced)]


def _table(place: Place, taken: dict[str, list[list[float]]]) -> Table:
    rows = []
    for what, rounds in taken.items():
        every = [one for each in rounds for one in each]
        ratios = [sum(mine) / sum(its) for mine, its in zip(rounds, taken[UNFENCED], strict=True)]
        rows.append(
            Row(
                what,
                {
                    RATIO: Figure.of(spread(ratios), "times"),
                    MIDDLE: Figure(quantile(every, 0.5), "us"),
                    SLOWEST: Figure(quantile(every, 0.99), "us"),
                },
            )
        )
    return Table("fencing", f"A fenced write, in {place.engine}", [RATIO, MIDDLE, SLOWEST], rows)
