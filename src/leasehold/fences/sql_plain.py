"""Plain connections that a SQL fence can use: of psycopg, psycopg2, PyMySQL and asyncmy.

A block has to notice when somebody ends its transaction inside of it, since what comes after that is not fenced. That
must not cost a round trip: psycopg forbids it, psycopg2 sends a savepoint along with other statements, and MySQL says
with every answer whether a transaction is open.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Self

from leasehold.errors import Misuse
from leasehold.fences.sql_rule import Answer, Ask

_VALUE = re.compile(r":([a-z_][a-z0-9_]*)")
_MARKS = {"format": "%s", "qmark": "?"}
_SERVER_IN_TRANSACTION = 1  # a bit of the status that MySQL sends with every answer
_DEADLOCK = 1213  # MySQL has then rolled back the whole transaction
_BEGINS = re.compile(rb"\s*(begin(\s+work)?\s*;?\s*$|start\s+transaction)", re.IGNORECASE)
_savepoints = itertools.count()
"""In MySQL a savepoint ends an earlier one of the same name, so each has its own."""


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


def answer_of(cursor: Any) -> Answer:
    """What a cursor of blocking code says after a statement."""
    return Answer(cursor.rowcount, [_plain(row) for row in cursor.fetchall()] if cursor.description else [])


def _plain(row: Any) -> tuple[Any, ...]:
    """A row in the order of its columns; the caller's own cursors may return mappings."""
    return tuple(row.values() if isinstance(row, Mapping) else row)


class Psycopg:
    """A connection of psycopg, whose own transactions nest."""

    dialect = "postgresql"

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def ask(self, ask: Ask) -> Answer:
        """Carry out one statement; the rows are plain, whatever the connection's own factory makes."""
        with self._connection.cursor(row_factory=_plain_rows) as cursor:
            cursor.execute(*in_style(ask, "pyformat"))
            return answer_of(cursor)

    def transaction(self) -> AbstractContextManager[object]:
        """A transaction, or a savepoint in the one that is open; it forbids commit() inside."""
        transaction: AbstractContextManager[object] = self._connection.transaction()
        return transaction

    setting_up = transaction

    def in_transaction(self) -> bool:
        """Whether one is open now."""
        return bool(self._connection.info.transaction_status)

    def stands_alone(self) -> bool:
        """In autocommit mode, while none is open."""
        return bool(self._connection.autocommit) and not self.in_transaction()

    def will_be_in_transaction(self) -> bool:
        """Without autocommit the driver opens one."""
        return not self.stands_alone()


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

    setting_up = transaction

    def in_transaction(self) -> bool:
        """Whether one is open now."""
        return bool(self._connection.info.transaction_status)

    def stands_alone(self) -> bool:
        """In autocommit mode, while none is open."""
        return bool(self._connection.autocommit) and not self.in_transaction()

    async def will_be_in_transaction(self) -> bool:
        """Without autocommit the driver opens one."""
        return not self.stands_alone()


def _plain_rows(_cursor: object) -> type[tuple[Any, ...]]:
    return tuple


def codes_of(error: BaseException) -> set[object]:
    """What the database calls this error: a SQLSTATE, a number of MySQL, or (SQLite) the beginning of a sentence."""
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    first = error.args[0] if error.args else None
    return {state, first.partition(":")[0] if isinstance(first, str) else first}


def _ended_inside() -> Misuse:
    return Misuse(
        "the transaction was ended inside of the fenced block, and what came after that was not fenced; "
        "leave commit to the end of the block, and raise to roll back"
    )


def _new_savepoint() -> str:
    return f"leasehold_fence_{next(_savepoints)}"


class Psycopg2:
    """A connection of psycopg2, which takes several statements at a time."""

    dialect = "postgresql"

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._sent_along = ""

    def ask(self, ask: Ask) -> Answer:
        """Carry out one statement."""
        sql, values = in_style(ask, "pyformat")
        sent_along, self._sent_along = self._sent_along, ""
        with self._connection.cursor() as cursor:
            cursor.execute(sent_along + sql, values)
            return answer_of(cursor)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """A transaction, or a part of the one that is open. The savepoint shows whether somebody ended it inside."""
        joins, savepoint = self.in_transaction(), _new_savepoint()
        if joins or self._connection.autocommit:
            self._say(f"SAVEPOINT {savepoint}" if joins else f"BEGIN; SAVEPOINT {savepoint}")
        else:  # psycopg2 begins with the next statement
            self._sent_along = f"SAVEPOINT {savepoint}; "
        try:
            yield
            self._end(savepoint, joins=joins)
        except BaseException:
            with contextlib.suppress(Exception):  # the first error is the one that tells
                self._undo(savepoint, joins=joins)
            raise

    setting_up = transaction

    def in_transaction(self) -> bool:
        """Whether one is open now."""
        return bool(self._connection.info.transaction_status)

    def stands_alone(self) -> bool:
        """In autocommit mode, while none is open."""
        return bool(self._connection.autocommit) and not self.in_transaction()

    def will_be_in_transaction(self) -> bool:
        """Without autocommit the driver opens one."""
        return not self.stands_alone()

    def _end(self, savepoint: str, *, joins: bool) -> None:
        by_hand = self._connection.autocommit and not joins
        if not self._sent_along:  # else nothing was asked through this handle
            try:
                self._say(f"RELEASE SAVEPOINT {savepoint}" + ("; COMMIT" if by_hand else ""))
            except Exception as error:
                if not codes_of(error) & {"3B001", "25P01"}:
                    raise
                raise _ended_inside() from error
        self._sent_along = ""
        if not joins and not by_hand:
            # Not by a statement: psycopg2 would believe that its transaction is still open, and begin no other.
            self._connection.commit()

    def _undo(self, savepoint: str, *, joins: bool) -> None:
        self._sent_along = ""
        if joins:
            self._say(f"ROLLBACK TO SAVEPOINT {savepoint}")
        elif not self._connection.autocommit:
            self._connection.rollback()
        elif self.in_transaction():
            self._say("ROLLBACK")

    def _say(self, sql: str) -> None:
        self.ask(Ask(sql, {}))


# MySQL


class _Watch:
    """Notices the end of a transaction by the status that comes with every answer: to ask would be a round trip.

    While it lasts, the connection's own methods that talk to the server are wrapped.
    """

    _METHODS = ("query", "begin", "commit", "rollback")

    def __init__(self, connection: Any, *, asyncio: bool) -> None:
        self._connection, self._was_open, self._asyncio = connection, _is_open(connection), asyncio
        self.ended = False

    @classmethod
    def is_on(cls, connection: Any) -> bool:
        """Whether a block lasts that has asked nothing yet: without autocommit the server knows of no transaction."""
        return cls._METHODS[0] in vars(connection)

    def __enter__(self) -> Self:
        for name in self._METHODS:
            inner = getattr(self._connection, name)
            setattr(self._connection, name, self._awaited(inner, name) if self._asyncio else self._called(inner, name))
        return self

    def __exit__(self, *_: object) -> None:
        for name in self._METHODS:
            delattr(self._connection, name)

    def _called(self, inner: Any, name: str) -> Any:
        def call(*given: Any, **more: Any) -> Any:
            with self._noting(given[0] if given else name):
                return inner(*given, **more)

        return call

    def _awaited(self, inner: Any, name: str) -> Any:
        async def call(*given: Any, **more: Any) -> Any:
            with self._noting(given[0] if given else name):
                return await inner(*given, **more)

        return call

    @contextlib.contextmanager
    def _noting(self, sql: str | bytes) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.ended = self.ended or _DEADLOCK in codes_of(error)
            raise
        is_open = _is_open(self._connection)
        begins = _BEGINS.match(sql.encode(errors="replace") if isinstance(sql, str) else sql) is not None
        self.ended = self.ended or (self._was_open and (begins or not is_open))
        self._was_open = is_open

    def check(self) -> None:
        """Refuse a block whose transaction is not the one that it began with."""
        if self.ended:
            raise _ended_inside()


def _is_open(connection: Any) -> bool:
    return bool(connection.server_status & _SERVER_IN_TRANSACTION)


class _MySql:
    """What blocking and asyncio connections share."""

    dialect = "mysql"

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def in_transaction(self) -> bool:
        """Whether one is open now."""
        return _is_open(self._connection)

    def stands_alone(self) -> bool:
        """In autocommit mode, while none is open."""
        return bool(self._connection.get_autocommit()) and not self.in_transaction()


class PyMySql(_MySql):
    """A connection of PyMySQL."""

    def ask(self, ask: Ask) -> Answer:
        """Carry out one statement."""
        with self._connection.cursor() as cursor:
            cursor.execute(*in_style(ask, "pyformat"))
            return answer_of(cursor)

    def transaction(self) -> AbstractContextManager[object]:
        """A transaction, or a part of the one that is open."""
        return self._part() if self.in_transaction() or _Watch.is_on(self._connection) else self._whole()

    def setting_up(self) -> AbstractContextManager[object]:
        """MySQL ends a transaction, and every savepoint in it, where a table is made."""
        return contextlib.nullcontext()

    def will_be_in_transaction(self) -> bool:
        """Without autocommit the server opens one."""
        return not self.stands_alone()

    @contextlib.contextmanager
    def _whole(self) -> Iterator[None]:
        if self._connection.get_autocommit():
            self._say("BEGIN")
        try:
            with _Watch(self._connection, asyncio=False) as watch:
                yield
            watch.check()
            self._say("COMMIT")
        except BaseException:
            if self.in_transaction():
                with contextlib.suppress(Exception):  # the first error is the one that tells
                    self._say("ROLLBACK")
            raise

    @contextlib.contextmanager
    def _part(self) -> Iterator[None]:
        savepoint = _new_savepoint()
        self._say(f"SAVEPOINT {savepoint}")
        try:
            yield
            with _telling_who_ended_it():
                self._say(f"RELEASE SAVEPOINT {savepoint}")
        except BaseException:
            if self.in_transaction():
                with contextlib.suppress(Exception):
                    self._say(f"ROLLBACK TO SAVEPOINT {savepoint}")
            raise

    def _say(self, sql: str) -> None:
        self.ask(Ask(sql, {}))


class AsyncMySql(_MySql):
    """A connection of asyncmy.

    It ends transactions by the connection's own methods: of a statement, asyncmy does not take note when the server
    answers with a status of 0, as it does without autocommit, and the transaction would seem to be open still.
    """

    async def ask(self, ask: Ask) -> Answer:
        """Carry out one statement."""
        async with self._connection.cursor() as cursor:
            await cursor.execute(*in_style(ask, "pyformat"))
            return Answer(
                cursor.rowcount, [_plain(row) for row in await cursor.fetchall()] if cursor.description else []
            )

    def transaction(self) -> AbstractAsyncContextManager[object]:
        """A transaction, or a part of the one that is open."""
        return self._part() if self.in_transaction() or _Watch.is_on(self._connection) else self._whole()

    def setting_up(self) -> AbstractAsyncContextManager[object]:
        """MySQL ends a transaction, and every savepoint in it, where a table is made."""
        return contextlib.nullcontext()

    async def will_be_in_transaction(self) -> bool:
        """Without autocommit the server opens one."""
        return not self.stands_alone()

    @contextlib.asynccontextmanager
    async def _whole(self) -> AsyncIterator[None]:
        if self._connection.get_autocommit():
            await self._say("BEGIN")
        try:
            with _Watch(self._connection, asyncio=True) as watch:
                yield
            watch.check()
            await self._connection.commit()
        except BaseException:
            if self.in_transaction():
                with contextlib.suppress(Exception):  # the first error is the one that tells
                    await self._connection.rollback()
            raise

    @contextlib.asynccontextmanager
    async def _part(self) -> AsyncIterator[None]:
        savepoint = _new_savepoint()
        await self._say(f"SAVEPOINT {savepoint}")
        try:
            yield
            with _telling_who_ended_it():
                await self._say(f"RELEASE SAVEPOINT {savepoint}")
        except BaseException:
            if self.in_transaction():
                with contextlib.suppress(Exception):
                    await self._say(f"ROLLBACK TO SAVEPOINT {savepoint}")
            raise

    async def _say(self, sql: str) -> None:
        await self.ask(Ask(sql, {}))


@contextlib.contextmanager
def _telling_who_ended_it() -> Iterator[None]:
    """A savepoint that is gone shows that somebody ended the transaction."""
    try:
        yield
    except Exception as error:
        if 1305 not in codes_of(error):
            raise
        raise _ended_inside() from error
