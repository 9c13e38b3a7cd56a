"""Guards of things in SQL databases, by every way in which people reach them."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import itertools
import sys
from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

from tests.fences.guards import Blocked, Guard

from leasehold.fences import AsyncSqlFence, SqlFence
from leasehold.fences.sql_handles import async_handle, blocking_handle
from leasehold.fences.sql_rule import Ask
from leasehold.names import HIGHEST_TOKEN

T = TypeVar("T")
_numbers = itertools.count()

_SELECT = "SELECT value FROM thing WHERE resource = :resource"
_DELETE = "DELETE FROM thing WHERE resource = :resource"
_INSERT = "INSERT INTO thing (resource, value) VALUES (:resource, :value)"
_COUNT = "SELECT count(*) FROM leasehold_fence"
_CREATE = "CREATE TABLE IF NOT EXISTS thing (resource VARCHAR(255) PRIMARY KEY, value TEXT)"
# psycopg and psycopg2, MySQL, SQLite: what they say when somebody else has the lock for too long.
_WAITED = {"55P03", 1205}


def is_blocked(error: BaseException) -> bool:
    seen: BaseException | None = error
    while seen is not None:
        codes = {getattr(seen, "sqlstate", None), getattr(seen, "pgcode", None), *seen.args[:1]}
        if codes & _WAITED or "database is locked" in str(seen):
            return True
        seen = getattr(seen, "orig", None) or seen.__cause__
    return False


def patience_of(url: str, patience: float) -> str:
    """The statement that makes a connection wait so long for a lock, at most."""
    if url.startswith("postgresql"):
        return f"SET lock_timeout = '{round(patience * 1000)}ms'"
    if url.startswith("mysql"):
        return f"SET innodb_lock_wait_timeout = {max(round(patience), 1)}"
    return f"PRAGMA busy_timeout = {round(patience * 1000)}"


# Opening: what people hold in their hands, and how to close it


def _psycopg(url: str) -> tuple[Any, Callable[[], object]]:
    import psycopg

    connection = psycopg.connect(url, autocommit=True)
    return connection, connection.close


def _psycopg2(url: str) -> tuple[Any, Callable[[], object]]:
    import psycopg2

    connection = psycopg2.connect(url)
    connection.autocommit = True
    return connection, connection.close


def _pymysql(url: str) -> tuple[Any, Callable[[], object]]:
    import pymysql

    parts = urlsplit(url)
    connection = pymysql.connect(
        host=parts.hostname,
        port=parts.port or 3306,
        user=parts.username,
        password=parts.password or "",
        database=parts.path.strip("/"),
        autocommit=True,
    )
    return connection, connection.close


_DRIVERS = {"postgresql": "psycopg", "mysql": "pymysql", "sqlite": "pysqlite"}
_ASYNC_DRIVERS = {"postgresql": "psycopg", "mysql": "asyncmy", "sqlite": "aiosqlite"}


def _with_driver(url: str, drivers: dict[str, str]) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme}+{drivers[scheme]}://{rest}"


def _core(url: str) -> tuple[Any, Callable[[], object]]:
    import sqlalchemy

    engine = sqlalchemy.create_engine(_with_driver(url, _DRIVERS), poolclass=sqlalchemy.NullPool)
    connection = engine.connect()
    return connection, connection.close


def _orm(url: str) -> tuple[Any, Callable[[], object]]:
    import sqlalchemy
    import sqlalchemy.orm

    engine = sqlalchemy.create_engine(_with_driver(url, _DRIVERS), poolclass=sqlalchemy.StaticPool)
    session = sqlalchemy.orm.Session(engine)

    def close() -> None:
        session.close()
        engine.dispose()

    return session, close


def set_up_django() -> None:
    """Once in a process."""
    settings = importlib.import_module("django.conf").settings
    if not settings.configured:
        settings.configure(DATABASES={}, USE_TZ=True)
        importlib.import_module("django").setup()


def install_pymysql_for_django() -> None:
    """Lend PyMySQL the name that Django imports, and each module of it too.

    Django imports modules by that name. If they were loaded a second time for it, they would take the places of
    PyMySQL's own, and `pymysql.err` would have classes of errors that no connection raises.
    """
    import pymysql

    pymysql.install_as_MySQLdb()
    for name, module in list(sys.modules.items()):
        if name.startswith("pymysql."):
            sys.modules[name.replace("pymysql", "MySQLdb", 1)] = module


def django_connection(url: str) -> Any:
    """A connection of its own: an alias that nobody else has."""
    install_pymysql_for_django()
    set_up_django()
    database = importlib.import_module("django.db")
    parts = urlsplit(url)
    scheme = url.partition(":")[0]
    alias = f"guard{next(_numbers)}"
    database.connections.settings[alias] = {
        **database.connections.configure_settings({"default": {}})["default"],
        "ENGINE": f"django.db.backends.{'sqlite3' if scheme == 'sqlite' else scheme}",
        "NAME": url.removeprefix("sqlite:///") if scheme == "sqlite" else parts.path.strip("/"),
        "HOST": parts.hostname or "",
        "PORT": parts.port or "",
        "USER": parts.username or "",
        "PASSWORD": parts.password or "",
    }
    connection = database.connections[alias]
    connection.inc_thread_sharing()
    return connection


def _django(url: str) -> tuple[Any, Callable[[], object]]:
    connection = django_connection(url)
    return connection, connection.close


OPENERS = {
    "psycopg": _psycopg,
    "psycopg2": _psycopg2,
    "pymysql": _pymysql,
    "core": _core,
    "orm": _orm,
    "django": _django,
}


class SqlGuard(Guard):
    """What the address is like: ``orm postgresql://…``."""

    def __init__(self, address: str, resource: str, *, patience: float = 0.2) -> None:
        super().__init__()
        self.address, self.resource, self.patience = address, resource, patience
        way, _, url = address.partition(" ")
        self.given, self._closing = OPENERS[way](url)
        self.fence = SqlFence(self.given, jump_limit=HIGHEST_TOKEN)
        self.handle = blocking_handle(self.given)
        self.ask(patience_of(url, patience))
        self.end()

    @classmethod
    def prepare(cls, address: str) -> None:
        """Make the tables, once for all."""
        guard = cls(address, "none")
        guard.fence.create()
        with guard.handle.setting_up():
            guard.ask(_CREATE)
        guard.close()

    def ask(self, sql: str, **values: object) -> list[tuple[Any, ...]]:
        return self.handle.ask(Ask(sql, values)).rows

    def end(self) -> None:
        """End the transaction that SQLAlchemy begins for whatever it is asked."""
        if not hasattr(self.given, "vendor") and hasattr(self.given, "in_transaction"):
            self.given.commit()

    def _another(self) -> Self:
        return type(self)(self.address, self.resource, patience=self.patience)

    def write(self, token: int, value: str, *, once: bool = False, between: Callable[[], object] | None = None) -> None:
        try:
            with self.fence.writing(self.resource, token, once=once):
                if between is not None:
                    between()
                self.put(value)
        except Exception as error:
            if is_blocked(error):
                raise Blocked(str(error)) from error
            raise

    def put(self, value: str) -> None:
        self.ask(_DELETE, resource=self.resource)
        self.ask(_INSERT, resource=self.resource, value=value)

    def write_past(self, value: str) -> None:
        with self.handle.transaction():
            self.put(value)

    def floor_size(self) -> int:
        rows = self.ask(_COUNT)
        self.end()
        return int(rows[0][0])

    def read(self, token: int) -> str | None:
        with self.fence.reading(self.resource, token):
            return self._value()

    def _value(self) -> str | None:
        rows = self.ask(_SELECT, resource=self.resource)
        return rows[0][0] if rows else None

    def peek(self) -> str | None:
        value = self._value()
        self.end()
        return value

    def delete(self, token: int) -> None:
        with self.fence.writing(self.resource, token):
            self.ask(_DELETE, resource=self.resource)

    def announce(self, token: int) -> None:
        self.fence.announce(self.resource, token)

    def raise_floor(self, token: int) -> None:
        self.fence.raise_floor(self.resource, token)

    def floor(self) -> int | None:
        found = self.fence.floor(self.resource)
        self.end()
        return found

    def _close(self) -> None:
        self._closing()


# Asyncio


async def _async_psycopg(url: str) -> tuple[Any, Callable[[], Coroutine[Any, Any, object]]]:
    import psycopg

    connection = await psycopg.AsyncConnection.connect(url, autocommit=True)
    return connection, connection.close


async def _async_core(url: str) -> tuple[Any, Callable[[], Coroutine[Any, Any, object]]]:
    import sqlalchemy.ext.asyncio

    engine = sqlalchemy.ext.asyncio.create_async_engine(
        _with_driver(url, _ASYNC_DRIVERS), poolclass=sqlalchemy.NullPool
    )
    connection = await engine.connect()
    return connection, connection.close


async def _async_orm(url: str) -> tuple[Any, Callable[[], Coroutine[Any, Any, object]]]:
    import sqlalchemy.ext.asyncio

    engine = sqlalchemy.ext.asyncio.create_async_engine(
        _with_driver(url, _ASYNC_DRIVERS), poolclass=sqlalchemy.StaticPool
    )
    session = sqlalchemy.ext.asyncio.AsyncSession(engine)

    async def close() -> None:
        await session.close()
        await engine.dispose()

    return session, close


async def _asyncmy(url: str) -> tuple[Any, Callable[[], Coroutine[Any, Any, object]]]:
    parts = urlsplit(url)
    connection = await importlib.import_module("asyncmy").connect(
        host=parts.hostname,
        port=parts.port or 3306,
        user=parts.username,
        password=parts.password or "",
        db=parts.path.strip("/"),
        autocommit=True,
    )
    return connection, connection.ensure_closed


ASYNC_OPENERS: dict[
    str, Callable[[str], Coroutine[Any, Any, tuple[Any, Callable[[], Coroutine[Any, Any, object]]]]]
] = {
    "psycopg": _async_psycopg,
    "asyncmy": _asyncmy,
    "core": _async_core,
    "orm": _async_orm,
}


class AsyncSqlGuard(Guard):
    """Drives an asyncio fence from blocking scenarios, with an event loop of its own."""

    def __init__(self, address: str, resource: str, *, patience: float = 0.2) -> None:
        super().__init__()
        self.address, self.resource, self.patience = address, resource, patience
        self._runner = asyncio.Runner()
        way, _, url = address.partition(" ")
        self.given, self._closing = self.run(ASYNC_OPENERS[way](url))
        self.fence = AsyncSqlFence(self.given, jump_limit=HIGHEST_TOKEN)
        self.handle = async_handle(self.given)
        self.run(self.alone(patience_of(url, patience)))

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(coroutine)

    async def ask(self, sql: str, **values: object) -> list[tuple[Any, ...]]:
        return (await self.handle.ask(Ask(sql, values))).rows

    async def alone(self, sql: str, **values: object) -> list[tuple[Any, ...]]:
        rows = await self.ask(sql, **values)
        await self._end()
        return rows

    async def _end(self) -> None:
        if hasattr(self.given, "in_transaction"):  # SQLAlchemy begins for whatever it is asked
            await self.given.commit()

    def _another(self) -> Self:
        return type(self)(self.address, self.resource, patience=self.patience)

    def write(self, token: int, value: str, *, once: bool = False, between: Callable[[], object] | None = None) -> None:
        async def writing() -> None:
            async with self.fence.writing(self.resource, token, once=once):
                if between is not None:
                    await asyncio.to_thread(between)
                await self.ask(_DELETE, resource=self.resource)
                await self.ask(_INSERT, resource=self.resource, value=value)

        try:
            self.run(writing())
        except Exception as error:
            if is_blocked(error):
                raise Blocked(str(error)) from error
            raise

    def write_past(self, value: str) -> None:
        async def writing() -> None:
            async with self.handle.transaction():
                await self.ask(_DELETE, resource=self.resource)
                await self.ask(_INSERT, resource=self.resource, value=value)

        self.run(writing())

    def floor_size(self) -> int:
        return int(self.run(self.alone(_COUNT))[0][0])

    def read(self, token: int) -> str | None:
        async def reading() -> list[tuple[Any, ...]]:
            async with self.fence.reading(self.resource, token):
                return await self.ask(_SELECT, resource=self.resource)

        rows = self.run(reading())
        return rows[0][0] if rows else None

    def peek(self) -> str | None:
        rows = self.run(self.alone(_SELECT, resource=self.resource))
        return rows[0][0] if rows else None

    def delete(self, token: int) -> None:
        async def deleting() -> None:
            async with self.fence.writing(self.resource, token):
                await self.ask(_DELETE, resource=self.resource)

        self.run(deleting())

    def announce(self, token: int) -> None:
        self.run(self.fence.announce(self.resource, token))

    def raise_floor(self, token: int) -> None:
        self.run(self.fence.raise_floor(self.resource, token))

    def floor(self) -> int | None:
        async def asking() -> int | None:
            found = await self.fence.floor(self.resource)
            await self._end()
            return found

        return self.run(asking())

    def _close(self) -> None:
        with contextlib.closing(self._runner):
            self.run(self._closing())
