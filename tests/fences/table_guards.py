"""Guards of rows that carry their own floor, and of a table that a trigger holds to its token."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Self

import psycopg
from tests.fences.guards import Blocked
from tests.fences.sql_guards import AsyncSqlGuard, SqlGuard, is_blocked

from leasehold.errors import StaleToken
from leasehold.fences import AsyncColumnFence, AsyncTriggerFence, ColumnFence, TriggerFence
from leasehold.fences.trigger import install_sql
from leasehold.names import HIGHEST_TOKEN

Between = Callable[[], object] | None

_CREATE_ROWS = (
    "CREATE TABLE IF NOT EXISTS row_thing (id VARCHAR(200) PRIMARY KEY, value TEXT, "
    "fence BIGINT NOT NULL DEFAULT -1, fence_written BIGINT NOT NULL DEFAULT -1)"
)
_CREATE_TRIGGERED = "CREATE TABLE IF NOT EXISTS held_thing (id TEXT PRIMARY KEY, value TEXT)"


def prepare_tables(address: str) -> None:
    """Make the tables, once for all."""
    guard = SqlGuard(address, "none")
    with guard.handle.setting_up():
        guard.ask(_CREATE_ROWS)
    guard.close()
    url = address.partition(" ")[2]
    if url.startswith("postgresql"):
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(_CREATE_TRIGGERED)
            connection.execute(install_sql("held_thing", column="id").encode())


class ColumnGuard(SqlGuard):
    """A row that is there or not; while it is not, its floor is in the table of floors."""

    def __init__(self, address: str, resource: str, *, patience: float = 0.2) -> None:
        super().__init__(address, resource, patience=patience)
        self.key = resource
        self.column = ColumnFence(self.given, "row_thing", written="fence_written", jump_limit=HIGHEST_TOKEN)
        self.resource = self.column.resource(resource)

    def _another(self) -> Self:
        return type(self)(self.address, self.key, patience=self.patience)

    def write(self, token: int, value: str, *, once: bool = False, between: Between = None) -> None:
        try:
            with self.handle.transaction() if between is not None else contextlib.nullcontext():
                if not self.column.update(self.key, token, {"value": value}, once=once):
                    self.column.insert(self.key, token, {"value": value})
                if between is not None:
                    between()
        except Exception as error:
            if is_blocked(error):
                raise Blocked(str(error)) from error
            raise

    def write_past(self, value: str) -> None:
        with contextlib.nullcontext() if self.handle.stands_alone() else self.handle.transaction():
            self.ask("UPDATE row_thing SET value = :value WHERE id = :id", value=value, id=self.key)

    def read(self, token: int) -> str | None:
        row = self.column.read(self.key, token, ["value"])
        if row is None:
            self.fence.announce(self.resource, token)
        return None if row is None else row[0]

    def peek(self) -> str | None:
        rows = self.ask("SELECT value FROM row_thing WHERE id = :id", id=self.key)
        self.end()
        return rows[0][0] if rows else None

    def delete(self, token: int) -> None:
        self.column.delete(self.key, token)

    def announce(self, token: int) -> None:
        if not self.column.announce(self.key, token):
            self.fence.announce(self.resource, token)

    def raise_floor(self, token: int) -> None:
        try:
            self.announce(token)
        except StaleToken:
            return

    def floor(self) -> int | None:
        rows = self.ask("SELECT fence FROM row_thing WHERE id = :id", id=self.key)
        self.end()
        return rows[0][0] if rows else super().floor()


class AsyncColumnGuard(AsyncSqlGuard):
    """The same in asyncio."""

    def __init__(self, address: str, resource: str, *, patience: float = 0.2) -> None:
        super().__init__(address, resource, patience=patience)
        self.key = resource
        self.column = AsyncColumnFence(self.given, "row_thing", written="fence_written", jump_limit=HIGHEST_TOKEN)
        self.resource = self.column.resource(resource)

    def _another(self) -> Self:
        return type(self)(self.address, self.key, patience=self.patience)

    async def _write(self, token: int, value: str, *, once: bool, between: Between) -> None:
        if between is not None:
            async with self.handle.transaction():
                await self._write(token, value, once=once, between=None)
                await asyncio.to_thread(between)
            return
        if not await self.column.update(self.key, token, {"value": value}, once=once):
            await self.column.insert(self.key, token, {"value": value})

    def write(self, token: int, value: str, *, once: bool = False, between: Between = None) -> None:
        try:
            self.run(self._write(token, value, once=once, between=between))
        except Exception as error:
            if is_blocked(error):
                raise Blocked(str(error)) from error
            raise

    def write_past(self, value: str) -> None:
        async def writing() -> None:
            async with contextlib.nullcontext() if self.handle.stands_alone() else self.handle.transaction():
                await self.ask("UPDATE row_thing SET value = :value WHERE id = :id", value=value, id=self.key)

        self.run(writing())

    def read(self, token: int) -> str | None:
        row: Any = self.run(self.column.read(self.key, token, ["value"]))
        if row is None:
            self.run(self.fence.announce(self.resource, token))
        return None if row is None else row[0]

    def peek(self) -> str | None:
        rows = self.run(self.alone("SELECT value FROM row_thing WHERE id = :id", id=self.key))
        return rows[0][0] if rows else None

    def delete(self, token: int) -> None:
        self.run(self.column.delete(self.key, token))

    def announce(self, token: int) -> None:
        if not self.run(self.column.announce(self.key, token)):
            self.run(self.fence.announce(self.resource, token))

    def raise_floor(self, token: int) -> None:
        try:
            self.announce(token)
        except StaleToken:
            return

    def floor(self) -> int | None:
        rows = self.run(self.alone("SELECT fence FROM row_thing WHERE id = :id", id=self.key))
        return rows[0][0] if rows else super().floor()


_DELETE = "DELETE FROM held_thing WHERE id = :id"
_INSERT = "INSERT INTO held_thing (id, value) VALUES (:id, :value)"
_SELECT = "SELECT value FROM held_thing WHERE id = :id"


class TriggerGuard(SqlGuard):
    """Writes as anybody would, with the token said before; reads behind the guard row that trigger and fence share."""

    def __init__(self, address: str, resource: str, *, patience: float = 0.2) -> None:
        super().__init__(address, f"held_thing/{resource}", patience=patience)
        self.key = resource
        self.trigger = TriggerFence(self.given)

    def _another(self) -> Self:
        return type(self)(self.address, self.key, patience=self.patience)

    def write(self, token: int, value: str, *, once: bool = False, between: Between = None) -> None:
        try:
            with self.trigger.writing(token, once=once, allow_jump=True):
                self.ask(_DELETE, id=self.key)
                if between is not None:
                    between()
                self.ask(_INSERT, id=self.key, value=value)
        except Exception as error:
            if is_blocked(error):
                raise Blocked(str(error)) from error
            raise

    def _value(self) -> str | None:
        rows = self.ask(_SELECT, id=self.key)
        return rows[0][0] if rows else None

    def delete(self, token: int) -> None:
        with self.trigger.writing(token, allow_jump=True):
            self.ask(_DELETE, id=self.key)


class AsyncTriggerGuard(AsyncSqlGuard):
    """The same in asyncio."""

    def __init__(self, address: str, resource: str, *, patience: float = 0.2) -> None:
        super().__init__(address, f"held_thing/{resource}", patience=patience)
        self.key = resource
        self.trigger = AsyncTriggerFence(self.given)

    def _another(self) -> Self:
        return type(self)(self.address, self.key, patience=self.patience)

    async def _write(self, token: int, value: str | None, *, once: bool = False, between: Between = None) -> None:
        async with self.trigger.writing(token, once=once, allow_jump=True):
            await self.ask(_DELETE, id=self.key)
            if between is not None:
                await asyncio.to_thread(between)
            if value is not None:
                await self.ask(_INSERT, id=self.key, value=value)

    def write(self, token: int, value: str, *, once: bool = False, between: Between = None) -> None:
        try:
            self.run(self._write(token, value, once=once, between=between))
        except Exception as error:
            if is_blocked(error):
                raise Blocked(str(error)) from error
            raise

    def read(self, token: int) -> str | None:
        self.announce(token)
        return self.peek()

    def peek(self) -> str | None:
        rows = self.run(self.alone(_SELECT, id=self.key))
        return rows[0][0] if rows else None

    def delete(self, token: int) -> None:
        self.run(self._write(token, None))
