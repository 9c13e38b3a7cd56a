"""A transaction of the caller's own, on whichever kind of connection it is: how our statements join it.

Nothing is begun, committed or rolled back here but a savepoint: the transaction is the caller's. So are the errors of
its driver, which are raised as they are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, Protocol

import psycopg
from psycopg.rows import tuple_row

from leasehold.core.worlds import World
from leasehold.errors import Misuse
from leasehold.wires.sql_table import Request, Row
from leasehold.worlds import AsyncWorld, BlockingWorld

_PLACEHOLDER: Final = re.compile(r"\$([0-9]+)")


class Transaction(Protocol):
    """The open transaction of a caller, in one of the worlds."""

    @property
    def world(self) -> World:
        """The world that it blocks or suspends in."""
        ...

    async def ask(self, request: Request) -> list[Row]:
        """Carry out one statement."""
        ...


def sqlstate_of(error: BaseException) -> str:
    """The code of an error that a server answered with, whichever driver brought it; empty if it is none."""
    original = getattr(error, "orig", None) or error  # SQLAlchemy wraps the driver's
    return str(getattr(original, "sqlstate", None) or getattr(original, "pgcode", None) or "")


class _Psycopg:
    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.world: World = BlockingWorld()
        self._connection = connection

    async def ask(self, request: Request) -> list[Row]:
        with psycopg.RawCursor(self._connection, row_factory=tuple_row) as cursor:
            cursor.execute(request.statement.text.encode(), request.values)
            return cursor.fetchall() if cursor.description else []


class _AsyncPsycopg:
    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self.world: World = AsyncWorld()
        self._connection = connection

    async def ask(self, request: Request) -> list[Row]:
        async with psycopg.AsyncRawCursor(self._connection, row_factory=tuple_row) as cursor:
            await cursor.execute(request.statement.text.encode(), request.values)
            return await cursor.fetchall() if cursor.description else []


class _SqlAlchemy:
    def __init__(self, connection: Any) -> None:
        self.world: World = BlockingWorld()
        self._connection = connection

    async def ask(self, request: Request) -> list[Row]:
        return _rows(self._connection.exec_driver_sql(*_by_names(request)))


class _AsyncSqlAlchemy:
    def __init__(self, connection: Any) -> None:
        self.world: World = AsyncWorld()
        self._connection = connection

    async def ask(self, request: Request) -> list[Row]:
        return _rows(await self._connection.exec_driver_sql(*_by_names(request)))


def _by_names(request: Request) -> tuple[str, Mapping[str, object]]:
    """A statement as drivers take it whose placeholders have names."""
    values = {f"p{number}": value for number, value in enumerate(request.values, 1)}
    return _PLACEHOLDER.sub(r"%(p\1)s", request.statement.text), values


def _rows(result: Any) -> list[Row]:
    return [tuple(row) for row in result] if result.returns_rows else []


def blocking_transaction(connection: Any) -> Transaction:
    """Of a Connection of psycopg, or a Connection or Session of SQLAlchemy."""
    if isinstance(connection, psycopg.Connection):
        return _Psycopg(connection)
    if _is_sqlalchemy(connection) and not hasattr(connection, "run_sync"):
        return _SqlAlchemy(_checked(connection.connection() if hasattr(connection, "flush") else connection))
    raise _not_accepted(connection, "a Connection of psycopg, or a Connection or Session of SQLAlchemy")


async def asyncio_transaction(connection: Any) -> Transaction:
    """Of an AsyncConnection of psycopg, or an AsyncConnection or AsyncSession of SQLAlchemy."""
    if isinstance(connection, psycopg.AsyncConnection):
        return _AsyncPsycopg(connection)
    if _is_sqlalchemy(connection) and hasattr(connection, "run_sync"):
        return _AsyncSqlAlchemy(_checked(await connection.connection() if hasattr(connection, "flush") else connection))
    raise _not_accepted(
        connection, "an AsyncConnection of psycopg, or an AsyncConnection or AsyncSession of SQLAlchemy"
    )


def _is_sqlalchemy(connection: object) -> bool:
    """Also of a class that somebody derived from one of SQLAlchemy's."""
    return any(one.__module__.partition(".")[0] == "sqlalchemy" for one in type(connection).__mro__) and (
        hasattr(connection, "exec_driver_sql") or hasattr(connection, "flush")
    )


def _checked(connection: Any) -> Any:
    dialect = connection.dialect
    if dialect.name != "postgresql" or dialect.paramstyle != "pyformat":
        raise Misuse(
            f"a connection of SQLAlchemy to {dialect.name} by {dialect.driver} cannot lock in a transaction; connect "
            "to PostgreSQL by psycopg (postgresql+psycopg://…)"
        )
    return connection


def _not_accepted(connection: object, accepted: str) -> Misuse:
    return Misuse(f"a transaction is given by its connection: {accepted}, not {type(connection).__name__}")
