"""What the workers of a run are to protect: a database file with everything in it twice, once plain and once fenced.

The plain side takes every write, as most resources do, and so shows what a lock alone loses. The fenced side asks the
fence first. Whatever comes of a request is written to a log in the same transaction, so that the order of the log is
the order in which things happened, whatever the workers say or are kept from saying.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from leasehold.chaos.history import RESOURCE, Event
from leasehold.errors import StaleToken, TokenJump
from leasehold.fences import SqliteFence

T = TypeVar("T")
Side = Literal["plain", "fenced"]
SIDES: Final[tuple[Side, Side]] = ("plain", "fenced")
PATIENCE: Final = 600.0
"""Somebody who is frozen inside a transaction keeps all others waiting; that is no error."""

_TABLES: Final = (
    "CREATE TABLE cell (side TEXT, name TEXT, value TEXT, PRIMARY KEY (side, name)) WITHOUT ROWID",
    "CREATE TABLE log (place INTEGER PRIMARY KEY, at REAL, accepted INTEGER, request TEXT)",
)


@dataclass(frozen=True, slots=True)
class Request:
    """One read or write of a worker."""

    side: Side
    kind: str
    """Of what: "register", "set", …"""
    key: str
    """Which one."""
    by: str
    by_op: int
    name: str = ""
    """The lock under which it is done, and at the same time what the fence calls the resource."""
    token: int | None = None
    value: Any = None
    after: Any = None
    reads: bool = False


class Cells:
    """The values of one side, inside a transaction."""

    def __init__(self, connection: sqlite3.Connection, side: Side) -> None:
        self.connection = connection
        self._side = side

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a cell."""
        row = self.connection.execute("SELECT value FROM cell WHERE side = ? AND name = ?", (self._side, name))
        found = row.fetchone()
        return default if found is None else json.loads(found[0])

    def put(self, name: str, value: Any) -> None:
        """Set the value of a cell."""
        self.connection.execute("REPLACE INTO cell VALUES (?, ?, ?)", (self._side, name, json.dumps(value)))

    def below(self, prefix: str) -> dict[str, Any]:
        """The cells whose name begins so."""
        rows = self.connection.execute(
            "SELECT name, value FROM cell WHERE side = ? AND substr(name, 1, ?) = ? ORDER BY name",
            (self._side, len(prefix), prefix),
        )
        return {name: json.loads(value) for name, value in rows}


Work = Callable[[Cells], T]


class Resource:
    """One process's connection to the resource."""

    def __init__(self, path: Path, began: float) -> None:
        """`began` is what `time.monotonic()` was when the run began."""
        self.path = path
        self._began = began
        self._connection = sqlite3.connect(path, timeout=PATIENCE, isolation_level=None, check_same_thread=False)
        # Processes are killed here, but the machine stays up: nothing has to reach the disk.
        self._connection.execute("PRAGMA synchronous = OFF")
        self._fence = SqliteFence(self._connection)

    def create(self) -> None:
        """Make the tables."""
        self._connection.execute("PRAGMA journal_mode = WAL")
        for statement in _TABLES:
            self._connection.execute(statement)
        self._fence.create()

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def look(self, side: Side, work: Work[T]) -> T:
        """Read, asking nobody and leaving no trace."""
        return work(Cells(self._connection, side))

    def read(self, request: Request, work: Work[T]) -> T:
        """Read for a worker. On the fenced side that raises the floor, and raises `StaleToken` below it."""
        if request.side == "plain":
            return self.look("plain", work)
        return self._decided(request, self._fence.reading(request.name, request.token or 0), work)

    def write(self, request: Request, work: Work[T]) -> T:
        """Write for a worker, as one transaction. On the fenced side a stale token raises `StaleToken`."""
        checked: AbstractContextManager[object] = nullcontext()
        if request.side == "fenced":
            checked = self._fence.writing(request.name, request.token or 0)
        return self._decided(request, checked, work)

    def write_checked_by(self, request: Request, work: Work[T]) -> T:
        """Write where the work itself makes sure, in the same transaction, that it may; it raises `StaleToken`.

        Such a request has no token: what the work compares is between it and its own store.
        """
        return self._decided(request, nullcontext(), work)

    def announce(self, request: Request) -> bool:
        """Raise the floor for somebody who shares the lock; False when somebody with a higher token did."""
        with self._transaction():
            if (self._fence.floor(request.name) or 0) > (request.token or 0):
                return False
            self._fence.announce(request.name, request.token or 0)
            self._log(request, accepted=True)
            return True

    def log(self) -> list[Event]:
        """Everything that was decided here, in order, as events of a history."""
        rows = self._connection.execute("SELECT place, at, accepted, request FROM log ORDER BY place")
        return [_event(*row) for row in rows]

    def _decided(self, request: Request, checked: AbstractContextManager[object], work: Work[T]) -> T:
        with self._transaction():
            try:
                with checked:
                    result = work(Cells(self._connection, request.side))
            except (StaleToken, TokenJump) as refused:
                self._log(request, accepted=False, floor=refused.seen)
                refusal = refused
            else:
                self._log(replace(request, value=result) if request.reads else request, accepted=True)
                return result
        raise refusal

    def _log(self, request: Request, *, accepted: bool, floor: int | None = None) -> None:
        given = {name: getattr(request, name) for name in Request.__slots__}
        text = json.dumps({**given, "seen": floor})
        now = time.monotonic() - self._began
        self._connection.execute("INSERT INTO log (at, accepted, request) VALUES (?, ?, ?)", (now, accepted, text))

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise


def _event(place: int, at: float, accepted: int, request: str) -> Event:
    given = json.loads(request)
    detail = {name: given[name] for name in ("kind", "key", "by", "by_op", "value", "after", "reads", "seen")}
    detail = {name: value for name, value in detail.items() if value not in (None, False)}
    return Event(
        at,
        RESOURCE,
        "accepted" if accepted else "rejected",
        given["name"],
        place,
        given["token"],
        {"resource": given["side"], **detail},
    )
