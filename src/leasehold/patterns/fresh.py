"""A fresh transaction for each attempt: none is open before it, and none of its own is left open when it failed.

An attempt in a transaction that somebody began before would read again what it read before, and could never undo only
its own part; so that is refused.
"""

from __future__ import annotations

import contextlib
import inspect
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Final, NamedTuple

from leasehold.errors import Misuse
from leasehold.fences.sql_handles import async_handle, is_session
from leasehold.fences.sql_rule import Ask
from leasehold.patterns.databases import handle_of
from leasehold.patterns.versions import AsyncVersions, Versions

_BEGINS: Final = Ask("SELECT 1", {})
"""psycopg2 begins with the first statement, and whoever else uses the connection has to see that it has begun."""
_LIBPQ_OPEN: Final = (1, 2, 3)  # active, in a transaction, in a failed one; 0 is idle, 4 a connection that is gone
_MYSQL_OPEN: Final = 1  # a bit of the status that MySQL sends with every answer


class _Kind(NamedTuple):
    """How connections of a library are told from the rest of it, and whether a transaction is open: no round trip."""

    is_connection: Callable[[Any], bool]
    is_open: Callable[[Any], bool]


def _with(attribute: str) -> Callable[[Any], bool]:
    return lambda given: hasattr(given, attribute)


def _is_of_django(given: object) -> bool:
    """By its class alone: to look at a lazy object of Django would load it."""
    return any(base.__name__ in ("BaseDatabaseWrapper", "ConnectionProxy") for base in type(given).__mro__)


_SQLITE: Final = _Kind(_with("in_transaction"), lambda given: given.in_transaction)
_POSTGRESQL: Final = _Kind(_with("info"), lambda given: given.info.transaction_status in _LIBPQ_OPEN)
_MYSQL: Final = _Kind(_with("server_status"), lambda given: given.server_status & _MYSQL_OPEN)
_KINDS: Final = {
    "sqlite3": _SQLITE,
    "aiosqlite": _SQLITE,
    "psycopg": _POSTGRESQL,
    "psycopg2": _POSTGRESQL,
    "asyncpg": _Kind(_with("is_in_transaction"), lambda given: given.is_in_transaction()),
    "pymysql": _MYSQL,
    "asyncmy": _MYSQL,
    "sqlalchemy": _Kind(
        lambda given: hasattr(given, "exec_driver_sql") or is_session(given), lambda given: given.in_transaction()
    ),
    "django": _Kind(_is_of_django, lambda given: given.in_atomic_block or not given.get_autocommit()),
}
"""By the library that a connection comes from."""


class Transactions:
    """Those of the attempts of one function, on the connection that it was told of or that is among the arguments."""

    def __init__(self, function: Callable[..., Any], on: object) -> None:
        self._on = _checked(on, function)

    @contextlib.contextmanager
    def fresh(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[None]:
        """Around an attempt with these arguments."""
        if self._on is not None:
            handle = self._handle(handle_of, args, kwargs)
            with handle.transaction():
                if not handle.in_transaction():
                    handle.ask(_BEGINS)
                yield
            return
        found = _connections((*args, *kwargs.values()))
        try:
            yield
        except BaseException:
            for connection in found:
                if _is_open(connection) and not inspect.iscoroutinefunction(connection.rollback):
                    connection.rollback()
            raise

    @contextlib.asynccontextmanager
    async def fresh_async(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> AsyncIterator[None]:
        """The same in async code."""
        if self._on is not None:
            async with self._handle(async_handle, args, kwargs).transaction():
                yield
            return
        found = _connections((*args, *kwargs.values()))
        try:
            yield
        except BaseException:
            for connection in found:
                if _is_open(connection):
                    # asyncpg has no such method: its transactions are objects, or begun by a statement
                    by_method = hasattr(connection, "rollback")
                    undoing = connection.rollback() if by_method else connection.execute("ROLLBACK")
                    if inspect.isawaitable(undoing):
                        await undoing
            raise

    def _handle(self, handle_of: Callable[[Any], Any], args: Any, kwargs: Any) -> Any:
        assert self._on is not None
        given = _connection_in(self._on(args, kwargs))
        try:
            handle = handle_of(given)
        except Misuse as error:
            raise Misuse(
                f"on= is or gives a {type(given).__name__}, on which an attempt cannot begin a transaction: it takes a "
                "connection of sqlite3, psycopg, psycopg2, PyMySQL, SQLAlchemy or Django, a session of SQLAlchemy, or "
                "a store of versions; in async code one of psycopg, asyncmy or SQLAlchemy"
            ) from error
        if _always_has_one(given):
            raise Misuse(
                "a connection of sqlite3 with autocommit=False has a transaction open always, so none can be begun for "
                "an attempt; connect without that argument"
            )
        _refuse_if_open(given)
        return handle


def _checked(on: Any, function: Callable[..., Any]) -> Callable[[Any, Any], Any] | None:
    """How the connection is found from the arguments of a call; none when it was not told."""
    if on is None:
        return None
    if isinstance(on, str):
        signature = inspect.signature(function)
        if on not in signature.parameters:
            raise Misuse(
                "on= is the name of a parameter of the function that takes the connection: "
                f"{', '.join(signature.parameters) or 'it has none'}; or the connection, or a function that gives it"
            )
        return lambda args, kwargs: signature.bind(*args, **kwargs).arguments.get(on)
    if _is_connection(_connection_in(on)):  # first: some of them can be called
        return lambda _args, _kwargs: on
    if callable(on):
        return lambda _args, _kwargs: on()
    raise Misuse(
        "on= is a connection, a function that gives it such as lambda: connection, or the name of the parameter that "
        f"takes it, not a {type(on).__name__}"
    )


def _connections(arguments: tuple[Any, ...]) -> list[Any]:
    """Those among the arguments, none of which is in a transaction."""
    found = [given for given in map(_connection_in, arguments) if _is_connection(given)]
    for connection in found:
        _refuse_if_open(connection)
    return found


def _connection_in(given: Any) -> Any:
    return given.connection if isinstance(given, Versions | AsyncVersions) else given


def _library(given: object) -> str:
    libraries = {base.__module__.partition(".")[0] for base in type(given).__mro__}
    return next((library for library in _KINDS if library in libraries), "")


def _is_connection(given: Any) -> bool:
    kind = _KINDS.get(_library(given))
    return kind is not None and kind.is_connection(given)


def _is_open(connection: Any) -> bool:
    return bool(_KINDS[_library(connection)].is_open(connection))


def _always_has_one(connection: object) -> bool:
    """Python's sqlite3 with autocommit=False, which does not say whether anything was done in its transaction."""
    return isinstance(connection, sqlite3.Connection) and getattr(connection, "autocommit", None) is False


def _refuse_if_open(connection: Any) -> None:
    if _is_open(connection) and not _always_has_one(connection):
        raise Misuse(
            f"a function with retry_on_conflict was given a {type(connection).__name__} of {_library(connection)} on "
            "which a transaction is open already; its attempts would be parts of that and could not begin anew. Commit "
            "or roll back before the call (reading begins a transaction, too), or put retry_on_conflict on the "
            "outermost function, in which the transaction begins"
        )
