"""Where the command keeps the books of its jobs: with the engine that it was given, over the same wire."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any, Final, Protocol, TypeVar

from leasehold.core.worlds import run_blocking
from leasehold.errors import EngineError, EngineUnavailable, NotSupported, quoted
from leasehold.fences.sql_handles import in_style
from leasehold.fences.sql_rule import Answer, Ask
from leasehold.fences.steps import drive
from leasehold.patterns.dialects import NewRow
from leasehold.patterns.idempotency.redis import NOTE, SET_NOTE, note_key, note_of
from leasehold.patterns.idempotency.sql import Sql, SqlKeys
from leasehold.patterns.notes import Note, Notes
from leasehold.wires.sqlite_file import LeaseFile, ReadMounts, find_place

T = TypeVar("T")
PATIENCE: Final = 10.0
"""Seconds for each request."""


class Shelf(Notes, Protocol):
    """Notes that are kept with an engine."""

    def close(self) -> None:
        """Close connections; they are made again when needed."""
        ...


def notes_with(family: Any, label: str) -> Shelf:
    """Notes that are kept with an engine, for blocking code. Nothing is sent there yet."""
    kind = family.facts.engine
    if kind == "sqlite":
        return _FileNotes(family._file, family._read_mounts)
    if kind in ("redis", "valkey"):
        from leasehold.wires.redis_blocking import BlockingWire

        return _RedisNotes(BlockingWire(family.target, label), family.facts.address)
    if kind.startswith("postgresql"):
        from leasehold.wires import postgres
        from leasehold.wires.postgres_tables import prefix_of
        from leasehold.wires.sql_table import Statement

        wire = postgres.blocking_wire(family.target, label)
        return _SqlNotes(wire, "postgresql", f"{prefix_of(family.target.schema)}key", lambda text: Statement(text, ""))
    if kind == "mysql":
        from leasehold.wires import mysql
        from leasehold.wires.mysql_packets import written

        wire_to = mysql.blocking_wire(family.target, label)
        return _SqlNotes(wire_to, "mysql", "leasehold_key", lambda text: written("", text))
    raise NotSupported(
        f"the engine {kind} keeps no books of jobs; give a SQLite file, Redis, Valkey, PostgreSQL, MySQL or MariaDB"
    )


class _FileNotes:
    """Notes in a file of their own, next to the lease file and as open to others as that one."""

    def __init__(self, leases: LeaseFile, read_mounts: ReadMounts) -> None:
        self._leases, self._read_mounts = leases, read_mounts
        self._file = leases.path.with_name(f"{leases.path.name}-jobs")
        self._keys = SqlKeys(self._file)
        self._is_made = False

    async def note(self, name: str) -> Note:
        with self._explained():
            if not self._file.exists():
                return Note(0, "", time.time())
            self._make()
            return await self._keys.note(name)

    async def set_note(self, name: str, version: int, text: str) -> bool:
        with self._explained():
            self._make()
            return await self._keys.set_note(name, version, text)

    async def pause(self, seconds: float) -> None:
        await self._keys.pause(seconds)

    def close(self) -> None:
        self._keys.close()

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Say which file it is that cannot be used, and what to look at."""
        try:
            yield
        except (OSError, sqlite3.Error) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise EngineUnavailable(
                f"the books of jobs in {quoted(str(self._file))} cannot be used: {why}; look at who may read and write "
                "the file and its folder, and if it is no database or damaged, move it away: jobs then begin anew"
            ) from error

    def _make(self) -> None:
        if self._is_made:
            return
        if not self._file.exists():
            leases, _ = find_place(self._leases, self._read_mounts)
            mode = leases.stat().st_mode & 0o666 if leases.exists() else 0o600
            os.close(os.open(self._file, os.O_CREAT | os.O_RDWR, mode))
        self._keys.create()
        self._is_made = True


class _RedisNotes:
    """Notes on the server."""

    def __init__(self, wire: Any, address: str) -> None:
        self._wire, self._address = wire, address

    async def note(self, name: str) -> Note:
        return note_of(self._run(NOTE, name))

    async def set_note(self, name: str, version: int, text: str) -> bool:
        return bool(self._run(SET_NOTE, name, version, text))

    async def pause(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - this store blocks

    def close(self) -> None:
        self._wire.close()

    def _run(self, script: str, name: str, *arguments: str | int) -> Any:
        from leasehold.wires.redis_replies import ErrorReply, command, error_from

        request = command("EVAL", script, 1, note_key(name), *arguments)
        reply = self._wire.ask(request, self._wire.world.now() + PATIENCE)
        if type(reply) is ErrorReply:
            raise error_from(reply, self._address)
        return reply


class _SqlNotes:
    """Notes in a table of the database in which the leases are."""

    def __init__(self, wire: Any, dialect: str, table: str, write: Callable[[str], Any]) -> None:
        self._wire, self._dialect, self._table, self._write = wire, dialect, table, write
        self._sql = Sql(dialect, table)
        self._is_made = False

    async def note(self, name: str) -> Note:
        if not self._is_made and not self._is_there():
            return Note(0, "", time.time())  # those who only read make no table
        return self._drive(self._sql.notes.note(name))

    async def set_note(self, name: str, version: int, text: str) -> bool:
        return self._drive(self._sql.notes.set_note(name, version, text))

    async def pause(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - this store blocks

    def close(self) -> None:
        run_blocking(self._wire.close())

    def _drive(self, steps: Generator[Ask, Answer, T]) -> T:
        self._make()
        return drive(steps, self._ask)

    def _ask(self, ask: Ask) -> Answer:
        changes = not ask.sql.startswith("SELECT")
        text, values = in_style(ask, "numeric_dollar")
        if changes and self._dialect == "postgresql":
            text += " RETURNING 1"
        if isinstance(ask, NewRow) and self._dialect == "mysql":
            text += " ON DUPLICATE KEY UPDATE id = id"  # our own wire has rows counted that were changed: none then
        rows = self._send(text, values)
        if changes and self._dialect == "mysql":
            return Answer(int(rows[0][0]), [])  # how many rows it has changed
        return Answer(len(rows), [tuple(map(_text, row)) for row in rows])

    def _send(self, text: str, values: tuple[Any, ...] = ()) -> list[Any]:
        from leasehold.wires.sql_table import Request

        until = self._wire.world.now() + PATIENCE
        rows: list[Any] = run_blocking(self._wire.ask(Request(self._write(text), values), until))
        return rows

    def _make(self) -> None:
        """Make the table unless it is there; who may not make tables needs one that is."""
        if self._is_made or self._is_there():
            self._is_made = True
            return
        try:
            self._send(self._sql.create)
        except EngineError:
            if not self._is_there():  # somebody else has made it at the same time
                raise
        self._is_made = True

    def _is_there(self) -> bool:
        if self._dialect == "postgresql":
            [[found]] = self._send("SELECT to_regclass($1) IS NOT NULL", (self._table,))
            return _text(found) in (True, "t", "true", 1)
        name = "SELECT count(*) FROM information_schema.tables WHERE table_schema = database() AND table_name = $1"
        [[count]] = self._send(name, (self._table,))
        return bool(int(count))


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value
