"""The database in which a pattern keeps its records: connections of its own, or the caller's."""

from __future__ import annotations

import contextlib
import functools
import os
import sqlite3
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final, TypeVar

from leasehold.errors import EngineError, EngineUnavailable, LeaseholdError, Misuse, quoted
from leasehold.fences.sql_handles import AsyncHandle, Handle, blocking_handle
from leasehold.fences.sql_plain import codes_of
from leasehold.fences.sql_rule import Answer, Ask
from leasehold.fences.steps import drive, drive_async
from leasehold.patterns.dialects import NewRow
from leasehold.wires.postgres_errors import cut_off

T = TypeVar("T")

PATIENCE: Final = 30.0
"""How long a SQLite file is waited for that others write to, in seconds."""
MOST_IDLE: Final = 8
"""Connections that are kept for the next step."""
_DUPLICATE: Final = 1062  # what MySQL says when a row is there already
_CUT_OFF: Final = frozenset({1053, 1152, 1158, 1159, 1160, 1161, 1184, 1927, 2006, 2013, 2055, 4031})
"""In the numbers of MySQL and its drivers: the server has ended the session, or the network has."""
_CUT_OFF_STATES: Final = ("57P01", "57P02", "57P03", "57P05", "25P03", "08")
"""The same in PostgreSQL; how a SQLSTATE begins."""
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


# Connections of one's own


class _Broke(Exception):
    """The connection broke under a step; the cause is what the driver says of it."""


class _InDoubt(Exception):
    """It broke while something was committed that is not to be done twice."""


def has_broken(connection: Any, error: BaseException) -> bool:
    """Whether it is the connection that is of no use any more, rather than what was asked."""
    state = str(getattr(error, "sqlstate", None) or getattr(error, "pgcode", None) or "")
    return (
        bool(getattr(connection, "closed", False))  # psycopg, psycopg2
        or not getattr(connection, "open", True)  # PyMySQL
        or bool(getattr(error, "connection_invalidated", False))  # SQLAlchemy
        or state.startswith(_CUT_OFF_STATES)
        or not _CUT_OFF.isdisjoint(codes_of(error))
    )


@contextlib.contextmanager
def never_twice(connection: Any, transaction: AbstractContextManager[object]) -> Iterator[None]:
    """A transaction that must not be repeated: once its end was asked for, nobody knows what came of it.

    When the connection breaks before that, the server undoes all of it.
    """
    ends = False
    try:
        with transaction:
            yield
            ends = True
    except Exception as error:
        if ends and has_broken(connection, error):
            raise _InDoubt from error
        raise


class Connections:
    """Connections that are used for nothing else, by one thread at a time, and each statement of which stands alone.

    A server ends connections that were idle for long, and all of them when it is restarted or another takes its place.
    So a step whose connection broke is carried out once more, on a fresh one.
    """

    def __init__(self, on: Path | Callable[[], Any]) -> None:
        """To a SQLite file, or whatever `on` connects to."""
        if not callable(on) and not isinstance(on, Path):
            raise Misuse(f"give the pathlib.Path of a SQLite file, or a function that connects, not {quoted(on)}")
        self.connect = on if callable(on) else functools.partial(sqlite3.connect, on, check_same_thread=False)
        # Those of sqlite3 that somebody else makes are by default for the thread only that made them.
        self._shares_sqlite = not callable(on)
        self._idle: list[Any] = []
        self._process = os.getpid()
        self._address = "the database"

    def perform(self, step: Callable[[Any], T], *, reads: bool = False, repeats: bool = True) -> T:
        """Carry out a step on a connection; when that broke, once more on a fresh one.

        So the second attempt has to recognise what the first may have done. A step that cannot (`repeats=False`) is
        tried once, on a connection that nobody can have ended yet. What only `reads` has no outcome that is unknown.
        """
        self._leave_those_of_the_parent()
        connection = self._taken() if repeats else self._connected()
        try:
            return self._on(connection, step)
        except _Broke as broke:
            self.close()  # the others were idle for even longer
            if not repeats:
                raise self._cut_off(reads=reads) from broke.__cause__
        try:
            return self._on(self._connected(), step)
        except (_Broke, EngineUnavailable) as error:
            raise self._cut_off(reads=reads) from error.__cause__

    def close(self) -> None:
        """Close connections; they are made again when needed."""
        with contextlib.suppress(IndexError):  # others may be at it, too
            while True:
                _let_go(self._idle.pop())

    def _on(self, connection: Any, step: Callable[[Any], T]) -> T:
        try:
            result = step(connection)
        except LeaseholdError:  # something was refused, and the connection is none the worse
            self._put_back(connection)
            raise
        except BaseException as error:
            broke = has_broken(connection, error)
            _let_go(connection)
            if isinstance(error, _InDoubt):
                raise self._cut_off(reads=False) from error.__cause__
            if broke and isinstance(error, Exception):
                raise _Broke from error
            raise
        self._put_back(connection)
        return result

    def _cut_off(self, *, reads: bool) -> EngineError:
        return cut_off(self._address, commits=not reads)

    def _leave_those_of_the_parent(self) -> None:
        """After a fork: closing one here would end the parent's session."""
        if self._process != os.getpid():
            _inherited.append(self._idle)
            self._idle, self._process = [], os.getpid()

    def _taken(self) -> Any:
        with contextlib.suppress(IndexError):
            return self._idle.pop()
        return self._connected()

    def _connected(self) -> Any:
        connection = None
        try:
            connection = self.connect()
            self._address = _address_of(connection) or self._address
            self._let_statements_stand_alone(connection)
        except Exception as error:
            if connection is not None:
                _let_go(connection)
            if not _is_out_of_reach(error):
                raise
            # The driver's own words are left out: they may quote what it was given.
            raise EngineUnavailable(
                f"{self._address} cannot be reached ({_named(error)}), and nothing was carried out; is the server "
                "running, does it have room for one more connection, and does it let this user in?"
            ) from error
        return connection

    def _put_back(self, connection: Any) -> None:
        may_be_shared = self._shares_sqlite or not isinstance(connection, sqlite3.Connection)
        if len(self._idle) < MOST_IDLE and may_be_shared:
            self._idle.append(connection)
        else:
            _let_go(connection)

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


def _let_go(connection: Any) -> None:
    """Close it; some drivers complain when it is closed already."""
    with contextlib.suppress(Exception):
        connection.close()


def _is_out_of_reach(error: Exception) -> bool:
    """Whether a driver found no server, or was not let in; a mistake in how it was asked is none of this."""
    kinds = {base.__name__ for base in type(error).__mro__}
    from_a_driver = bool(kinds & {"OperationalError", "InterfaceError"}) and not isinstance(error, sqlite3.Error)
    return from_a_driver or isinstance(error, ConnectionError | TimeoutError)


def _named(error: Exception) -> str:
    """An error without its words."""
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    number = error.args[0] if error.args and isinstance(error.args[0], int) else None
    return " ".join(str(one) for one in (type(error).__name__, state or number) if one)


def _address_of(connection: Any) -> str:
    """Where it leads to, for people; empty for a library that does not tell."""
    with contextlib.suppress(Exception):
        place = connection if hasattr(connection, "host") else connection.info
        return f"{dialect_of(handle_of(connection))} at {place.host}:{place.port}"
    return ""
