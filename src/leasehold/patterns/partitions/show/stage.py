"""The database of the show, what workers write to it, and the judge who reads it."""

from __future__ import annotations

import contextlib
import sqlite3
from collections import defaultdict
from pathlib import Path
from typing import Final, NamedTuple

from leasehold.errors import StaleToken
from leasehold.fences.sqlite import SqliteFence
from leasehold.patterns.partitions.entities import Entities
from leasehold.patterns.partitions.inbox import Message
from leasehold.patterns.partitions.inbox_sql import SqlInbox
from leasehold.patterns.partitions.owned import Writer

GROUP: Final = "show"
PATIENT: Final = 60.0
_TABLES: Final = """
    CREATE TABLE step (id INTEGER PRIMARY KEY, entity TEXT, number INTEGER, token INTEGER, worker INTEGER, what TEXT);
    CREATE TABLE refusal (id INTEGER PRIMARY KEY, entity TEXT, number INTEGER, token INTEGER, worker INTEGER);
"""
_STEP: Final = "INSERT INTO step (entity, number, token, worker, what) VALUES (?, ?, ?, ?, ?)"
_REFUSAL: Final = "INSERT INTO refusal (entity, number, token, worker) VALUES (?, ?, ?, ?)"
_UNDER_WAY: Final = """
    SELECT worker, entity, token FROM step AS begun WHERE what = 'begin' AND worker IN (SELECT value FROM json_each(?))
    AND NOT EXISTS (SELECT 1 FROM step WHERE entity = begun.entity AND id > begun.id)
    AND NOT EXISTS (SELECT 1 FROM refusal WHERE entity = begun.entity AND number = begun.number
                    AND token = begun.token AND worker = begun.worker)
    ORDER BY id DESC LIMIT 1
"""


class UnderWay(NamedTuple):
    """Work that has begun and not ended."""

    worker: int
    entity: str
    token: int


class Stage:
    """One connection to the database of the show. It belongs to one thread."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "stage.db"
        self.connection = sqlite3.connect(self._path, timeout=PATIENT, isolation_level=None)
        self.connection.execute("PRAGMA synchronous = OFF")  # processes are killed here, the machine is not
        self._fence = SqliteFence(self.connection)

    def create(self) -> None:
        """Make the tables."""
        self.connection.execute("PRAGMA journal_mode = WAL")
        self.connection.executescript(_TABLES)
        self._fence.create()

    def inbox(self, partitions: int) -> SqlInbox:
        """The inbox of the show, in the same database: handled and acknowledged is one transaction."""
        return SqlInbox(Entities(GROUP, partitions), self._path, most_tries=1000)

    def begin(self, writer: Writer, number: int, worker: int) -> None:
        """Work begins, behind the fence."""
        with self._fence.writing(f"entity/{writer.entity}", writer) as connection:
            connection.execute(_STEP, (writer.entity, number, writer.token, worker, "begin"))

    def end(self, writer: Writer, message: Message, worker: int, inbox: SqlInbox) -> None:
        """Work ends, behind the fence, in one transaction with the acknowledgement."""
        with self._fence.writing(f"entity/{writer.entity}", writer) as connection:
            connection.execute(_STEP, (writer.entity, message.payload, writer.token, worker, "end"))
            inbox.acknowledge_on(connection, message, writer)

    def refused(self, refusal: StaleToken, writer: Writer, number: int, worker: int) -> None:
        """Note that a fence has refused a write."""
        self.connection.execute(_REFUSAL, (writer.entity, number, refusal.token, worker))

    def under_way(self, workers: list[int]) -> UnderWay | None:
        """The latest work of these workers that has not ended."""
        row = self.connection.execute(_UNDER_WAY, (str(workers),)).fetchone()
        return None if row is None else UnderWay(*row)

    def refusals(self, worker: int) -> int:
        """How many writes of a worker were refused."""
        [count] = self.connection.execute("SELECT count(*) FROM refusal WHERE worker = ?", (worker,)).fetchone()
        return int(count)

    def ended(self) -> int:
        """How many messages were handled."""
        [count] = self.connection.execute("SELECT count(*) FROM step WHERE what = 'end'").fetchone()
        return int(count)

    def begun_again(self, work: UnderWay) -> bool:
        """Whether somebody else has begun with what a worker was at."""
        later = "SELECT count(*) FROM step WHERE entity = ? AND token > ?"
        [count] = self.connection.execute(later, (work.entity, work.token)).fetchone()
        return bool(count)

    def judge(self, put: dict[str, int]) -> list[str]:
        """What is wrong with what was written, given how many messages each entity was sent."""
        found: list[str] = []
        steps: dict[str, list[tuple[int, int, int, str]]] = defaultdict(list)
        for entity, *step in self.connection.execute(
            "SELECT entity, number, token, worker, what FROM step ORDER BY id"
        ):
            steps[entity].append((step[0], step[1], step[2], step[3]))
        for entity, count in put.items():
            found += [f"{entity}: {text}" for text in judge_entity(steps[entity], count)]
        return found

    def is_locked(self) -> bool:
        """Whether somebody holds the database's write lock for longer than a moment: one that was frozen with it."""
        with contextlib.closing(sqlite3.connect(self._path, timeout=1.0, isolation_level=None)) as connection:
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                return True
        return False

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()


def judge_entity(steps: list[tuple[int, int, int, str]], count: int) -> list[str]:
    """What is wrong with the steps (number, token, worker, begin or end) of one entity that was sent `count` messages.

    >>> judge_entity([(0, 7, 1, "begin"), (0, 8, 2, "begin"), (0, 8, 2, "end")], 1)
    []
    >>> judge_entity([(0, 7, 1, "begin"), (0, 8, 2, "begin"), (0, 7, 1, "end")], 1)
    ['token 7 after token 8', '0 of worker 1 ended after another had begun', '1 messages were handled in the order [0]']
    """
    found: list[str] = []
    highest, begun, done = 0, (-1, -1, -1), list[int]()
    for number, token, worker, what in steps:
        if token < highest:
            found.append(f"token {token} after token {highest}")
        highest = max(highest, token)
        if what == "begin":
            begun = (number, token, worker)
        elif begun != (number, token, worker):
            found.append(f"{number} of worker {worker} ended after another had begun")
            done.append(number)
        else:
            done.append(number)
    if done != list(range(count)) or found:
        found.append(f"{count} messages were handled in the order {done}")
    return found
