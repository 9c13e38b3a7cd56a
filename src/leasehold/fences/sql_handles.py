"""The connections and sessions that a SQL fence can use, told apart by what they offer: no client library is imported.

Each kind can ask one statement, open a transaction (or a savepoint in the one that is open), and tell whether the next
statement would be part of a transaction.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import itertools
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Protocol, TypeVar

from leasehold.errors import Misuse, quoted
from leasehold.fences.sql_rule import DIALECTS, Answer, Ask

_VALUE = re.compile(r":([a-z_][a-z0-9_]*)")
_SERVER_IN_TRANSACTION = 1  # a bit of the status that MySQL sends with every answer
_BY_LIBRARY = {
    "psycopg": "postgresql",
    "psycopg2": "postgresql",
    "pymysql": "mysql",
    "sqlite3": "sqlite",
}
_MARKS = {"format": "%s", "qmark": "?"}
_savepoints = itertools.count()
"""In MySQL a savepoint ends an earlier one of the same name, so each has its own."""


H = TypeVar("H", bound="Handle | AsyncHandle")


class Handle(Protocol):
    """A connection or session of blocking code."""

    dialect: str

    def ask(self, ask: Ask) -> Answer:
        """Carry out one statement."""
        ...

    def transaction(self) -> AbstractContextManager[object]:
        """A transaction of its own, or a part of the one that is open that can be undone alone."""
        ...

    def setting_up(self) -> AbstractContextManager[object]:
        """Like `transaction`, for statements that make tables."""
        ...

    def will_be_in_transaction(self) -> bool:
        """Whether the next statement will be part of a transaction that stays open."""
        ...


class AsyncHandle(Protocol):
    """A connection or session of asyncio code."""

    dialect: str

    async def ask(self, ask: Ask) -> Answer:
        """Carry out one statement."""
        ...

    def transaction(self) -> AbstractAsyncContextManager[object]:
        """A transaction of its own, or a part of the one that is open that can be undone alone."""
        ...

    async def will_be_in_transaction(self) -> bool:
        """Whether the next statement will be part of a transaction that stays open."""
        ...


def in_style(ask: Ask, style: str) -> tuple[str, Any]:
    """The statement and its values as a driver wants them; `style` is that of its ``paramstyle``.

    >>> in_style(Ask("SELECT :a, :b, :a", {"a": 1, "b": 2}), "numeric_dollar")
    ('SELECT $1, $2, $3', (1, 2, 1))
    >>> in_style(Ask("SELECT :a", {"a": 1}), "pyformat")
    ('SELECT %(a)s', {'a': 1})
    """
    sql, order = _rendered(ask.sql, style)
    return sql, dict(ask.values) if order is None else tuple(ask.values[name] for name in order)


@functools.lru_cache(maxsize=256)
def _rendered(sql: str, style: str) -> tuple[str, tuple[str, ...] | None]:
    """The statement in a style, and the order of its values where they go by their place."""
    if style == "named":
        return sql, None
    if style == "pyformat":
        return _VALUE.sub(r"%(\1)s", sql), None
    order = tuple(_VALUE.findall(sql))
    places = iter(range(1, len(order) + 1))
    return _VALUE.sub(lambda _: _MARKS.get(style) or f"${next(places)}", sql), order


def _answer(cursor: Any) -> Answer:
    return Answer(cursor.rowcount, [_plain(row) for row in cursor.fetchall()] if cursor.description else [])


def _plain(row: Any) -> tuple[Any, ...]:
    """A row in the order of its columns; the caller's own cursors may return mappings."""
    return tuple(row.values() if isinstance(row, Mapping) else row)


# Plain connections


class Psycopg:
    """A connection of psycopg, whose own transactions nest."""

    dialect = "postgresql"

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def ask(self, ask: Ask) -> Answer:
        """Carry out one statement; the rows are plain, whatever the connection's own factory makes."""
        with self._connection.cursor(row_factory=_plain_rows) as cursor:
            cursor.execute(*in_style(ask, "pyformat"))
            return _answer(cursor)

    def transaction(self) -> AbstractContextManager[object]:
        """A transaction, or a savepoint in the one that is open; it forbids commit() inside."""
        transaction: AbstractContextManager[object] = self._connection.transaction()
        return transaction

    setting_up = transaction

    def will_be_in_transaction(self) -> bool:
        """Without autocommit the driver opens one."""
        return not self._connection.autocommit or bool(self._connection.info.transaction_status)


class AsyncPsycopg:
    """An async connection of psycopg."""

    dialect = "postgresql"

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def ask(self, ask: Ask) -> Answer:
        """Carry out one statement."""
        async with self._connection.cursor(row_factory=_plain_rows) as cursor:
            await cursor.execute(*in_style(ask, "pyformat"))
            return Answer(cursor.rowcount, [tuple(row) async for row in cursor] if cursor.description else [])

    def transaction(self) -> AbstractAsyncContextManager[object]:
        """A transaction, or a savepoint in the one that is open; it forbids commit() inside."""
        transaction: AbstractAsyncContextManager[object] = self._connection.transaction()
        return transaction

    async def will_be_in_transaction(self) -> bool:
        """Without autocommit the driver opens one."""
        return not self._connection.autocommit or bool(self._connection.info.transaction_status)


def _plain_rows(_cursor: object) -> type[tuple[Any, ...]]:
    return tuple


class DbApi:
    """A plain DB-API connection that tells its state: psycopg2 and PyMySQL do."""

    def __init__(self, connection: Any, dialect: str) -> None:
        self._connection, self.dialect = connection, dialect

    def ask(self, ask: Ask) -> Answer:
        """Carry out one statement."""
        with self._connection.cursor() as cursor:
            cursor.execute(*in_style(ask, "pyformat"))
            return _answer(cursor)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """A transaction, or a part of the one that is open. The savepoint shows whether somebody ended it inside."""
        joins, savepoint = self._is_open(), f"leasehold_fence_{next(_savepoints)}"
        if not joins and self._begins_by_hand():
            self._say("BEGIN")
        try:
            self._say(f"SAVEPOINT {savepoint}")
            yield
            self._release(savepoint)
            if not joins:
                self._say("COMMIT")
        except BaseException:
            if self._is_open():
                with contextlib.suppress(Exception):  # the first error is the one that tells
                    self._say(f"ROLLBACK TO SAVEPOINT {savepoint}" if joins else "ROLLBACK")
            raise

    def setting_up(self) -> AbstractContextManager[object]:
        """MySQL ends a transaction, and every savepoint in it, where a table is made."""
        return contextlib.nullcontext() if self.dialect == "mysql" else self.transaction()

    def will_be_in_transaction(self) -> bool:
        """Without autocommit the driver or the server opens one."""
        return self._is_open() or not self._commits_by_itself()

    def _release(self, savepoint: str) -> None:
        try:
            self._say(f"RELEASE SAVEPOINT {savepoint}")
        except Exception as error:
            if not _codes_of(error) & {"3B001", "25P01", 1305}:
                raise
            raise Misuse(
                "the transaction was ended inside of the fenced block, and what came after that was not fenced; "
                "leave commit to the end of the block, and raise to roll back"
            ) from error

    def _say(self, sql: str) -> None:
        self.ask(Ask(sql, {}))

    def _is_open(self) -> bool:
        if self.dialect == "postgresql":
            return bool(self._connection.info.transaction_status)
        return bool(self._connection.server_status & _SERVER_IN_TRANSACTION)

    def _commits_by_itself(self) -> bool:
        return bool(self._connection.autocommit if self.dialect == "postgresql" else self._connection.get_autocommit())

    def _begins_by_hand(self) -> bool:
        return self.dialect != "postgresql" or self._commits_by_itself()


def _codes_of(error: BaseException) -> set[object]:
    """What the database calls this error: a SQLSTATE, a number of MySQL, or (SQLite) the beginning of a sentence."""
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    first = error.args[0] if error.args else None
    return {state, first.partition(":")[0] if isinstance(first, str) else first}


def is_missing_table(error: BaseException) -> bool:
    """Whether a database, or a layer above it, says that there is no such table."""
    seen: BaseException | None = error
    while seen is not None:
        if _codes_of(seen) & {"42P01", 1146, "no such table"}:
            return True
        seen = getattr(seen, "orig", None) or seen.__cause__
    return False


# SQLAlchemy

_BEGIN = Ask("BEGIN", {})
"""Python's sqlite3 opens a transaction for a statement that writes, not for a SAVEPOINT, which would then commit."""


def _commits_by_itself(pooled: Any) -> bool:
    """Whether the driver's connection below SQLAlchemy is in autocommit mode."""
    raw = pooled.dbapi_connection
    if _is_sqlite_without_transaction(pooled) and pooled.driver_connection.isolation_level is None:
        return True
    mode = getattr(raw, "get_autocommit", None) or getattr(raw, "autocommit", False)
    return (mode() if callable(mode) else mode) is True


def _is_sqlite_without_transaction(pooled: Any) -> bool:
    return getattr(pooled.driver_connection, "in_transaction", None) is False


class SqlAlchemy:
    """A Connection or an ORM Session of SQLAlchemy."""

    def __init__(self, given: Any) -> None:
        self._given = given
        self.dialect = str((given.get_bind() if is_session(given) else given).dialect.name)

    def ask(self, ask: Ask) -> Answer:
        """Carry out one statement as the driver takes it, on the session's own connection."""
        connection = self._connected()
        result = connection.exec_driver_sql(*in_style(ask, connection.dialect.paramstyle))
        return Answer(result.rowcount, [tuple(row) for row in result] if result.returns_rows else [])

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """A transaction, or a savepoint in the one that is open."""
        joins = self._given.in_transaction()
        if joins and _is_sqlite_without_transaction(self._connected().connection):
            self.ask(_BEGIN)
        with self._given.begin_nested() if joins else self._given.begin():
            if not self.will_be_in_transaction():
                raise _in_autocommit()
            yield

    setting_up = transaction

    def will_be_in_transaction(self) -> bool:
        """SQLAlchemy begins by itself, unless its driver is in autocommit mode."""
        return not _commits_by_itself(self._connected().connection)

    def _connected(self) -> Any:
        return self._given.connection() if is_session(self._given) else self._given


class AsyncSqlAlchemy:
    """An AsyncConnection or an AsyncSession of SQLAlchemy."""

    def __init__(self, given: Any) -> None:
        self._given = given
        self.dialect = str((given.get_bind() if is_session(given) else given).dialect.name)

    async def ask(self, ask: Ask) -> Answer:
        """Carry out one statement as the driver takes it, on the session's own connection."""
        connection = await self._connected()
        result = await connection.exec_driver_sql(*in_style(ask, connection.dialect.paramstyle))
        return Answer(result.rowcount, [tuple(row) for row in result] if result.returns_rows else [])

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """A transaction, or a savepoint in the one that is open."""
        joins = self._given.in_transaction()
        if joins and _is_sqlite_without_transaction(await (await self._connected()).get_raw_connection()):
            await self.ask(_BEGIN)
        async with self._given.begin_nested() if joins else self._given.begin():
            if not await self.will_be_in_transaction():
                raise _in_autocommit()
            yield

    async def will_be_in_transaction(self) -> bool:
        """SQLAlchemy begins by itself, unless its driver is in autocommit mode."""
        return not _commits_by_itself(await (await self._connected()).get_raw_connection())

    async def _connected(self) -> Any:
        return await self._given.connection() if is_session(self._given) else self._given


def is_session(given: Any) -> bool:
    """Whether this is a session of SQLAlchemy, blocking or async, and no connection."""
    return hasattr(given, "get_bind") and hasattr(given, "connection") and not hasattr(given, "exec_driver_sql")


def _in_autocommit() -> Misuse:
    return Misuse(
        "this connection is in autocommit mode, so the check would not be one step with the write; "
        "use a connection without isolation_level='AUTOCOMMIT'"
    )


# Django


class Django:
    """One of Django's database connections, such as ``django.db.connection``."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.dialect = str(connection.vendor)

    def ask(self, ask: Ask) -> Answer:
        """Carry out one statement."""
        with self._connection.cursor() as cursor:
            sql, values = in_style(ask, "format")
            cursor.execute(sql, values or None)
            return _answer(cursor)

    def transaction(self) -> AbstractContextManager[object]:
        """Django's own ``atomic``, which nests."""
        atomic: AbstractContextManager[object] = importlib.import_module("django.db.transaction").atomic(
            using=self._connection.alias
        )
        return atomic

    setting_up = transaction

    def will_be_in_transaction(self) -> bool:
        """Django is in autocommit mode outside of ``atomic``."""
        return bool(self._connection.in_atomic_block) or not self._connection.get_autocommit()


# Which is which


def _library(given: object) -> str:
    return type(given).__module__.partition(".")[0]


def blocking_handle(given: Any) -> Handle:
    """Find out what was given to a blocking fence."""
    if hasattr(given, "vendor") and hasattr(given, "in_atomic_block"):
        return _of_known_dialect(Django(given))
    if hasattr(given, "exec_driver_sql") or is_session(given):
        if _is_async(given):
            raise Misuse("this connection or session is an asyncio one; give it to AsyncSqlFence")
        return _of_known_dialect(SqlAlchemy(given))
    if hasattr(given, "transaction") and _library(given) == "psycopg":
        if _is_async(given):
            raise Misuse("this connection is an asyncio one; give it to AsyncSqlFence")
        return Psycopg(given)
    dialect = _by_library(given)
    if dialect in ("postgresql", "mysql"):
        return DbApi(given, dialect)
    if dialect == "sqlite":
        raise Misuse("this is a connection of sqlite3; give it to SqliteFence")
    raise _unknown(given)


def async_handle(given: Any) -> AsyncHandle:
    """Find out what was given to an asyncio fence."""
    if hasattr(given, "exec_driver_sql") or is_session(given):
        if not _is_async(given):
            raise Misuse("this connection or session is a blocking one; give it to SqlFence")
        return _of_known_dialect(AsyncSqlAlchemy(given))
    if hasattr(given, "transaction") and _library(given) == "psycopg":
        if not _is_async(given):
            raise Misuse("this connection is a blocking one; give it to SqlFence")
        return AsyncPsycopg(given)
    raise _unknown(given)


def _is_async(given: object) -> bool:
    return any(base.__name__ in ("AsyncConnection", "AsyncSession") for base in type(given).__mro__)


def _by_library(given: object) -> str | None:
    libraries = (base.__module__.partition(".")[0] for base in type(given).__mro__)
    return next((_BY_LIBRARY[library] for library in libraries if library in _BY_LIBRARY), None)


def _of_known_dialect(handle: H) -> H:
    if handle.dialect not in DIALECTS:
        raise Misuse(f"{quoted(handle.dialect)} is no database that a fence knows; it knows {', '.join(DIALECTS)}")
    return handle


def _unknown(given: object) -> Misuse:
    return Misuse(
        "give an open connection of psycopg, psycopg2 or PyMySQL, a connection or session of SQLAlchemy, or a "
        f"connection of Django, not {quoted(given)}; for others, go through SQLAlchemy"
    )
