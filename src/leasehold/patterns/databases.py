"""The database in which a pattern keeps its records: connections of its own, or the caller's."""

from __future__ import annotations

import contextlib
import functools
import os
import sqlite3
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

from leasehold.errors import LeaseholdError, Misuse, quoted
from leasehold.fences.sql_handles import AsyncHandle, Handle, blocking_handle
from leasehold.fences.sql_plain import codes_of
from leasehold.fences.sql_rule import Answer, Ask
from leasehold.fences.steps import drive, drive_async
from leasehold.patterns.dialects import NewRow

T = TypeVar("T")

PATIENCE: Final = 30.0
"""How long a SQLite file is waited for that others write to, in seconds."""
MOST_IDLE: Final = 8
"""Connections that are kept for the next step."""
_DUPLICATE: Final = 1062  # what MySQL says when a row is there already
_inherited: Final[list[list[Any]]] = []
"""Connections of a parent process, kept so that nobody closes them."""


def check_table(table: object) -> str:
    """A plain name: it becomes part of statements."""
    if not isinstance(table, str) or not table.isascii() or not table.isidentifier() or len(table) > 60:
        raise Misuse(f"table is an identifier of at most 60 ASCII letters, digits and _, not {quoted(table)}")
    return table


class _Sqlite:
    """A connection of sqlite3, whatever its mode."""

    dialect = "sqlite"

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def ask(self, ask: Ask) -> Answer:
        cursor = self._connection.cursor()
        cursor.row_factory = None
        cursor.execute(ask.sql, dict(ask.values))
        return Answer(cursor.rowcount, cursor.fetchall())

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """A transaction of its own, or a part of the one that is open that can be undone alone."""
        joins = self._connection.in_transaction
        self._connection.execute("SAVEPOINT leasehold" if joins else "BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("RELEASE leasehold" if joins else "COMMIT")
        except BaseException:
            if self._connection.in_transaction:  # SQLite itself may have undone all of it
                for undo in ("ROLLBACK TO leasehold", "RELEASE leasehold") if joins else ("ROLLBACK",):
                    self._connection.execute(undo)
            raise

    setting_up = transaction

    def in_transaction(self) -> bool:
        return self._connection.in_transaction

    def stands_alone(self) -> bool:
        return self._connection.isolation_level is None and not self.in_transaction()

    def will_be_in_transaction(self) -> bool:
        return not self.stands_alone()


def handle_of(connection: Any) -> Handle:
    """How statements are carried out on a connection: of sqlite3, a driver, SQLAlchemy or Django."""
    return _Sqlite(connection) if isinstance(connection, sqlite3.Connection) else blocking_handle(connection)


def dialect_of(handle: Handle | AsyncHandle) -> str:
    """What to speak there: MariaDB is spoken to as MySQL is, and only SQLAlchemy tells them apart."""
    return "mysql" if handle.dialect == "mariadb" else handle.dialect


def perform(steps: Generator[Ask, Answer, T], handle: Handle) -> T:
    """Go through the steps of a pattern, on a connection of blocking code."""

    def ask(ask: Ask) -> Answer:
        try:
            return handle.ask(ask)
        except Exception as error:
            if not _was_there(ask, error):
                raise
            return Answer(0, [])

    return drive(steps, ask)


async def perform_async(steps: Generator[Ask, Answer, T], handle: AsyncHandle) -> T:
    """Go through the steps of a pattern, on a connection of asyncio code."""

    async def ask(ask: Ask) -> Answer:
        try:
            return await handle.ask(ask)
        except Exception as error:
            if not _was_there(ask, error):
                raise
            return Answer(0, [])

    return await drive_async(steps, ask)


def _was_there(ask: Ask, error: Exception) -> bool:
    """Whether a row is not new after all: MySQL has undone this statement alone, and its transaction goes on."""
    return isinstance(ask, NewRow) and _DUPLICATE in codes_of(getattr(error, "orig", None) or error.__cause__ or error)


class Connections:
    """Connections that are used for nothing else, by one thread at a time, and each statement of which stands alone."""

    def __init__(self, on: Path | Callable[[], Any]) -> None:
        """To a SQLite file, or whatever `on` connects to."""
        if not callable(on) and not isinstance(on, Path):
            raise Misuse(f"give the pathlib.Path of a SQLite file, or a function that connects, not {quoted(on)}")
        self.connect = on if callable(on) else functools.partial(sqlite3.connect, on, check_same_thread=False)
        # Those of sqlite3 that somebody else makes are by default for the thread only that made them.
        self._shares_sqlite = not callable(on)
        self._idle: list[Any] = []
        self._process = os.getpid()

    @contextlib.contextmanager
    def lent(self) -> Iterator[Any]:
        """A connection for as long as the block."""
        connection = self._taken()
        try:
            yield connection
        except LeaseholdError:  # something was refused, and the connection is none the worse
            self._put_back(connection)
            raise
        except BaseException:
            connection.close()
            raise
        self._put_back(connection)

    def close(self) -> None:
        """Close connections; they are made again when needed."""
        while self._idle:
            self._idle.pop().close()

    def _taken(self) -> Any:
        if self._process != os.getpid():
            # Forked: these are the parent's, and closing one here would end the parent's session.
            _inherited.append(self._idle)
            self._idle, self._process = [], os.getpid()
        with contextlib.suppress(IndexError):
            return self._idle.pop()
        connection = self.connect()
        self._let_statements_stand_alone(connection)
        return connection

    def _put_back(self, connection: Any) -> None:
        may_be_shared = self._shares_sqlite or not isinstance(connection, sqlite3.Connection)
        if len(self._idle) < MOST_IDLE and may_be_shared:
            self._idle.append(connection)
        else:
            connection.close()

    def _let_statements_stand_alone(self, connection: Any) -> None:
        """Let every statement be a transaction of its own unless one is begun, in the way of each library."""
        if isinstance(connection, sqlite3.Connection):
            connection.isolation_level = None
            connection.execute(f"PRAGMA busy_timeout = {int(PATIENCE * 1000)}")
        elif callable(getattr(connection, "autocommit", None)):
            connection.autocommit(True)
        elif hasattr(connection, "autocommit"):
            connection.autocommit = True
        handle = handle_of(connection)
        if dialect_of(handle) == "mysql":
            # The default of PostgreSQL. At MySQL's own, MariaDB refuses since 11.6 a statement that waited for a row
            # which was changed meanwhile: of many who come at once, somebody would begin again and again in vain.
            handle.ask(Ask("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED", {}))
