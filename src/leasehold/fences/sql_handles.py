"""The connections and sessions that a SQL fence can use, told apart by what they offer: no client library is imported.

Each kind can ask one statement, open a transaction (or a savepoint in the one that is open), and tell whether the next
statement would be part of a transaction.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Protocol, TypeVar

from leasehold.errors import Misuse, quoted
from leasehold.fences.sql_plain import (
    AsyncMySql,
    AsyncPsycopg,
    Psycopg,
    Psycopg2,
    PyMySql,
    answer_of,
    codes_of,
    in_style,
)
from leasehold.fences.sql_rule import DIALECTS, Answer, Ask

__all__ = ["AsyncHandle", "Handle", "async_handle", "blocking_handle", "in_style", "is_missing_table", "is_session"]

_PLAIN: dict[str, Callable[[Any], Handle]] = {"psycopg": Psycopg, "psycopg2": Psycopg2, "pymysql": PyMySql}
_ASYNC_PLAIN: dict[str, Callable[[Any], AsyncHandle]] = {"psycopg": AsyncPsycopg, "asyncmy": AsyncMySql}
"""By the library that a connection comes from."""

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

    def in_transaction(self) -> bool:
        """Whether a transaction is open now."""
        ...

    def stands_alone(self) -> bool:
        """Whether the next statement would be committed by itself."""
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

    def setting_up(self) -> AbstractAsyncContextManager[object]:
        """Like `transaction`, for statements that make tables."""
        ...

    def in_transaction(self) -> bool:
        """Whether a transaction is open now."""
        ...

    def stands_alone(self) -> bool:
        """Whether the next statement would be committed by itself."""
        ...

    async def will_be_in_transaction(self) -> bool:
        """Whether the next statement will be part of a transaction that stays open."""
        ...


def is_missing_table(error: BaseException) -> bool:
    """Whether a database, or a layer above it, says that there is no such table."""
    seen: BaseException | None = error
    while seen is not None:
        if codes_of(seen) & {"42P01", 1146, "no such table"}:
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
        joins = self.in_transaction()
        if joins and _is_sqlite_without_transaction(self._connected().connection):
            self.ask(_BEGIN)
        with self._given.begin_nested() if joins else self._given.begin():
            if not self.will_be_in_transaction():
                raise _in_autocommit()
            yield

    setting_up = transaction

    def in_transaction(self) -> bool:
        """Whether SQLAlchemy has begun one."""
        return bool(self._given.in_transaction())

    def stands_alone(self) -> bool:
        """SQLAlchemy begins by itself; `transaction` refuses a driver in autocommit mode."""
        return False

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
        joins = self.in_transaction()
        if joins and _is_sqlite_without_transaction(await (await self._connected()).get_raw_connection()):
            await self.ask(_BEGIN)
        async with self._given.begin_nested() if joins else self._given.begin():
            if not await self.will_be_in_transaction():
                raise _in_autocommit()
            yield

    setting_up = transaction

    def in_transaction(self) -> bool:
        """Whether SQLAlchemy has begun one."""
        return bool(self._given.in_transaction())

    def stands_alone(self) -> bool:
        """SQLAlchemy begins by itself; `transaction` refuses a driver in autocommit mode."""
        return False

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
            return answer_of(cursor)

    def transaction(self) -> AbstractContextManager[object]:
        """Django's own ``atomic``, which nests."""
        atomic: AbstractContextManager[object] = importlib.import_module("django.db.transaction").atomic(
            using=self._connection.alias
        )
        return atomic

    setting_up = transaction

    def in_transaction(self) -> bool:
        """Whether ``atomic`` has begun one, or Django was told to leave that to the caller."""
        return bool(self._connection.in_atomic_block) or not self._connection.get_autocommit()

    def stands_alone(self) -> bool:
        """Outside of ``atomic``."""
        return not self.in_transaction()

    def will_be_in_transaction(self) -> bool:
        """Django is in autocommit mode outside of ``atomic``."""
        return self.in_transaction()


# Which is which


def blocking_handle(given: Any) -> Handle:
    """Find out what was given to a blocking fence."""
    if hasattr(given, "vendor") and hasattr(given, "in_atomic_block"):
        return _of_known_dialect(Django(given))
    libraries = _libraries(given)
    if _is_async(given) or "asyncmy" in libraries:
        raise Misuse("this connection or session is an asyncio one; give it to AsyncSqlFence")
    if hasattr(given, "exec_driver_sql") or is_session(given):
        return _of_known_dialect(SqlAlchemy(given))
    for library, plain in _PLAIN.items():
        if library in libraries:
            return plain(given)
    if "sqlite3" in libraries:
        raise Misuse("this is a connection of sqlite3; give it to SqliteFence")
    raise _unknown(given)


def async_handle(given: Any) -> AsyncHandle:
    """Find out what was given to an asyncio fence."""
    libraries = _libraries(given)
    if hasattr(given, "exec_driver_sql") or is_session(given) or libraries & _PLAIN.keys():
        if not _is_async(given):
            raise Misuse("this connection or session is a blocking one; give it to SqlFence")
        if "psycopg" not in libraries:
            return _of_known_dialect(AsyncSqlAlchemy(given))
    for library, plain in _ASYNC_PLAIN.items():
        if library in libraries:
            return plain(given)
    raise _unknown(given)


def _is_async(given: object) -> bool:
    return any(base.__name__ in ("AsyncConnection", "AsyncSession") for base in type(given).__mro__)


def _libraries(given: object) -> set[str]:
    """Where its class and those above it come from: people have connections of their own."""
    return {base.__module__.partition(".")[0] for base in type(given).__mro__}


def _of_known_dialect(handle: H) -> H:
    if handle.dialect not in DIALECTS:
        raise Misuse(f"{quoted(handle.dialect)} is no database that a fence knows; it knows {', '.join(DIALECTS)}")
    return handle


def _unknown(given: object) -> Misuse:
    return Misuse(
        "give an open connection of psycopg, psycopg2 or PyMySQL (in async code: psycopg or asyncmy), a "
        f"connection or session of SQLAlchemy, or a connection of Django, not {quoted(given)}; for others, go through "
        "SQLAlchemy"
    )
