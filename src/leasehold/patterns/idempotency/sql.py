# ruff: noqa: S608 - what is put into the statements is a table's name that was checked, and our own words
"""Idempotency records in one table of SQLite, PostgreSQL or MySQL/MariaDB, by the database's own clock.

Every step is one statement that states its own condition, so there is no transaction to hold open and nothing to lock.
"""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
import time
from collections.abc import Callable, Coroutine, Generator
from pathlib import Path
from typing import Any, Final, TypeVar

from leasehold.core.worlds import run_blocking
from leasehold.fences.sql_handles import AsyncHandle, async_handle
from leasehold.fences.sql_rule import Answer, Ask
from leasehold.patterns.databases import Connections, check_table, dialect_of, handle_of, perform, perform_async
from leasehold.patterns.dialects import INSERT, TEXT, UNLESS_THERE, NewRow, clock
from leasehold.patterns.idempotency.records import Change, Claim, Record
from leasehold.patterns.notes import Note, NoteSql

T = TypeVar("T")
Steps = Generator[Ask, Answer, T]

_GREATEST: Final = {"sqlite": "max", "postgresql": "greatest", "mysql": "greatest"}
_CREATE: Final = """
CREATE TABLE IF NOT EXISTS {table} (
    id CHAR(64) PRIMARY KEY, scope {text} NOT NULL, name {text} NOT NULL, fingerprint VARCHAR(64) NOT NULL,
    state VARCHAR(12) NOT NULL, run VARCHAR(64) NOT NULL, token BIGINT NOT NULL, expires BIGINT NOT NULL,
    keep_until BIGINT NOT NULL, point {text} NOT NULL, data {text} NOT NULL, result {text} NOT NULL)"""
_TAKE_OVER: Final = "state = 'released' OR keep_until <= {now} OR (state = 'running' AND expires <= {now})"


class Sql:
    """The statements, in the words of one kind of database."""

    def __init__(self, dialect: str, table: str) -> None:
        now = clock(dialect, 6)
        self.notes = NoteSql(dialect, table, now)
        words = {"table": table, "now": now, "text": TEXT[dialect], "greatest": _GREATEST[dialect]}
        self.create = _CREATE.format(**words)
        self._now = f"SELECT {now}"
        columns = f"state, run, token, fingerprint, expires - {now}, point, data, result, {now} >= keep_until"
        returning = "" if dialect == "mysql" else f" RETURNING {columns}"  # MySQL has none: its row is read afterwards
        self._insert = (
            f"{INSERT[dialect]} INTO {table} (id, scope, name, fingerprint, state, run, token, expires, keep_until, "
            f"point, data, result) VALUES (:id, :scope, :key, :fingerprint, 'running', :run, {now}, {now} + :lease, "
            f"{now} + :keep, '', '', ''){UNLESS_THERE[dialect]}{returning}"
        )
        self._select = f"SELECT {columns} FROM {table} WHERE id = :id"
        # What is kept no longer is as good as gone: neither payload nor recovery point of it counts any more.
        fresh = f"keep_until <= {now} OR state = 'released'"
        self._take_over = (
            f"UPDATE {table} SET fingerprint = CASE WHEN {fresh} THEN :fingerprint ELSE fingerprint END, "
            f"point = CASE WHEN {fresh} THEN '' ELSE point END, data = CASE WHEN {fresh} THEN '' ELSE data END, "
            f"run = :run, token = {words['greatest']}(token + 1, {now}), expires = {now} + :lease, result = '', "
            f"keep_until = {now} + :keep, state = 'running' "
            f"WHERE id = :id AND token = :seen AND ({_TAKE_OVER.format(now=now)})"
        )
        self._change = (
            f"UPDATE {table} SET state = :state, expires = {now} + :lease, keep_until = {now} + :keep, "
            f"point = coalesce(:point, point), data = coalesce(:data, data), result = :result "
            f"WHERE id = :id AND token = :token AND state = 'running'"
        )
        self._release = (
            f"UPDATE {table} SET state = 'released', result = '' "
            f"WHERE id = :id AND state NOT IN ('running', 'released')"
        )
        self._mine = f"SELECT state, result FROM {table} WHERE id = :id AND token = :token"
        self._token = f"SELECT token FROM {table} WHERE id = :id"
        self._old = f"SELECT id, token FROM {table} WHERE keep_until <= {now} ORDER BY keep_until LIMIT :most"
        self._forget = f"DELETE FROM {table} WHERE id = :id AND token = :token AND keep_until <= {now}"

    def create_table(self) -> Steps[None]:
        """Make the table unless it is there."""
        yield Ask(self.create, {})

    def now(self) -> Steps[float]:
        """The database's clock."""
        answer = yield Ask(self._now, {})
        return float(answer.rows[0][0]) / 1e6

    def claim(self, claim: Claim) -> Steps[Record]:
        """Insert, or take over, or leave as it is; whoever waits for a result, or gets one again, only reads."""
        values: dict[str, object] = {
            **claim._asdict(),
            "id": claim.id,
            "lease": _micros(claim.lease),
            "keep": _micros(claim.keep),
        }
        while True:
            answer = yield Ask(self._select, {"id": claim.id})
            if not answer.rows:  # never there, or swept away in between
                answer = yield NewRow(self._insert, values)
            if not answer.rows:
                continue
            record, is_old = _record(answer.rows[0])
            if record.run == claim.run or not (is_old or _is_free(record)):
                return record
            same_payload = is_old or record.state == "released" or _agree(record.fingerprint, claim.fingerprint)
            if not same_payload:
                return record
            yield Ask(self._take_over, {**values, "seen": record.token})

    def change(self, claim: Claim, token: int, change: Change) -> Steps[bool]:
        """One conditional update; the same once more is no failure."""
        spans = {"lease": _micros(change.lease), "keep": _micros(claim.keep)}
        values = {**change._asdict(), **spans, "id": claim.id, "token": token}
        answer = yield Ask(self._change, values)
        if answer.touched == 1:
            return True
        # MySQL counts rows that were different, not rows that were found; and an answer may have been lost.
        answer = yield Ask(self._mine, {"id": claim.id, "token": token})
        return answer.rows == [(change.state, change.result)]

    def token(self, claim: Claim) -> Steps[int]:
        """The highest token of this key that is known; 0 when none is."""
        rows = (yield Ask(self._token, {"id": claim.id})).rows
        return int(rows[0][0]) if rows else 0

    def forget(self, claim: Claim) -> Steps[bool]:
        """Let it run again."""
        return (yield Ask(self._release, {"id": claim.id})).touched == 1

    def sweep(self, most: int) -> Steps[int]:
        """Forget old records, one by one, unless they were taken over meanwhile."""
        forgotten = 0
        for name, token in (yield Ask(self._old, {"most": most})).rows:
            forgotten += (yield Ask(self._forget, {"id": name, "token": token})).touched
        return forgotten


def _record(row: tuple[Any, ...]) -> tuple[Record, bool]:
    state, run, token, fingerprint, left, point, data, result, is_old = row
    return Record(state, run, int(token), fingerprint, float(left) / 1e6, point, data, result), bool(is_old)


def _micros(seconds: float) -> int:
    return int(seconds * 1_000_000)


def _is_free(record: Record) -> bool:
    return record.state == "released" or (record.state == "running" and record.left <= 0)


def _agree(one: str, other: str) -> bool:
    return not one or not other or one == other


class SqlKeys:
    """Records in a table of a database: a SQLite file, or what `on` connects to (psycopg, psycopg2, PyMySQL, sqlite3).

    The connections that it makes are used for nothing else, by one thread at a time. One that the server has ended is
    replaced, and the step is carried out once more: a claim is recognised by its run, a change by its token, a note by
    its version and text.
    """

    def __init__(self, on: Path | Callable[[], Any], *, table: str = "leasehold_key") -> None:
        self.connections = Connections(on)
        self._table = check_table(table)

    def create(self) -> None:
        """Make the table unless it is there; where you set up your own tables."""
        self._perform(lambda sql: sql.create_table())

    async def claim(self, claim: Claim) -> Record:
        """See `Store`."""
        return self._perform(lambda sql: sql.claim(claim))

    async def change(self, claim: Claim, token: int, change: Change) -> bool:
        """See `Store`."""
        return self._perform(lambda sql: sql.change(claim, token, change))

    async def forget(self, claim: Claim) -> bool:
        """See `Store`."""
        # Not twice: the second might let an operation run again that somebody has carried out in between.
        return self._perform(lambda sql: sql.forget(claim), repeats=False)

    async def sweep(self, most: int) -> int:
        """See `Store`."""
        return self._perform(lambda sql: sql.sweep(most))

    async def now(self) -> float:
        """See `Store`."""
        return self._perform(lambda sql: sql.now(), reads=True)

    async def pause(self, seconds: float) -> None:
        """See `Store`."""
        time.sleep(seconds)  # noqa: ASYNC251 - this store blocks

    def change_on(self, connection: Any, claim: Claim, token: int, change: Change) -> bool:
        """Change the record in the transaction that is open on the caller's own connection."""
        return self._perform_on(connection, lambda sql: sql.change(claim, token, change))

    def token_on(self, connection: Any, claim: Claim) -> int:
        """The token of the last run of a key, as the transaction on the caller's own connection sees it."""
        return self._perform_on(connection, lambda sql: sql.token(claim))

    def is_open_on(self, connection: Any) -> bool:
        """Whether a transaction is open on the caller's own connection now."""
        try:
            return not _is_closed(connection) and handle_of(connection).in_transaction()
        except sqlite3.ProgrammingError:
            return False

    async def note(self, name: str) -> Note:
        """See `Notes`."""
        return self._perform(lambda sql: sql.notes.note(name), reads=True)

    async def set_note(self, name: str, version: int, text: str) -> bool:
        """See `Notes`."""
        attempts = itertools.count()
        return self._perform(lambda sql: sql.notes.set_note(name, version, text, again=next(attempts) > 0))

    async def note_on(self, connection: Any, name: str) -> Note:
        """Read a note in the transaction that is open on the caller's own connection, and let nobody change it."""
        return self._perform_on(connection, lambda sql: sql.notes.note(name, locked=True))

    async def set_note_on(self, connection: Any, name: str, version: int, text: str) -> bool:
        """Write a note in the transaction that is open on the caller's own connection."""
        return self._perform_on(connection, lambda sql: sql.notes.set_note(name, version, text))

    def close(self) -> None:
        """Close connections; they are made again when needed."""
        self.connections.close()

    def _perform(self, steps: Callable[[Sql], Steps[T]], *, reads: bool = False, repeats: bool = True) -> T:
        return self.connections.perform(
            lambda connection: self._perform_on(connection, steps), reads=reads, repeats=repeats
        )

    def _perform_on(self, connection: Any, steps: Callable[[Sql], Steps[T]]) -> T:
        handle = handle_of(connection)
        return perform(steps(Sql(dialect_of(handle), self._table)), handle)


class InThreads:
    """A store of the blocking world for asyncio: each step runs in a thread, and the event loop goes on."""

    def __init__(self, store: SqlKeys) -> None:
        self._store = store

    async def claim(self, claim: Claim) -> Record:
        """See `Store`."""
        return await _in_thread(lambda: self._store.claim(claim))

    async def change(self, claim: Claim, token: int, change: Change) -> bool:
        """See `Store`."""
        return await _in_thread(lambda: self._store.change(claim, token, change))

    async def forget(self, claim: Claim) -> bool:
        """See `Store`."""
        return await _in_thread(lambda: self._store.forget(claim))

    async def sweep(self, most: int) -> int:
        """See `Store`."""
        return await _in_thread(lambda: self._store.sweep(most))

    async def now(self) -> float:
        """See `Store`."""
        return await _in_thread(self._store.now)

    async def note(self, name: str) -> Note:
        """See `Notes`."""
        return await _in_thread(lambda: self._store.note(name))

    async def set_note(self, name: str, version: int, text: str) -> bool:
        """See `Notes`."""
        return await _in_thread(lambda: self._store.set_note(name, version, text))

    async def note_on(self, connection: Any, name: str) -> Note:
        """Read a note in the transaction that is open on the caller's own async connection."""
        handle = async_handle(connection)
        return await perform_async(self._sql(handle).notes.note(name, locked=True), handle)

    async def set_note_on(self, connection: Any, name: str, version: int, text: str) -> bool:
        """Write a note in the transaction that is open on the caller's own async connection."""
        handle = async_handle(connection)
        return await perform_async(self._sql(handle).notes.set_note(name, version, text), handle)

    async def pause(self, seconds: float) -> None:
        """See `Store`."""
        await asyncio.sleep(seconds)

    async def change_on(self, connection: Any, claim: Claim, token: int, change: Change) -> bool:
        """Change the record in the transaction that is open on the caller's own async connection."""
        handle = async_handle(connection)
        return await perform_async(self._sql(handle).change(claim, token, change), handle)

    async def token_on(self, connection: Any, claim: Claim) -> int:
        """The token of the last run of a key, as the transaction on the caller's own connection sees it."""
        handle = async_handle(connection)
        return await perform_async(self._sql(handle).token(claim), handle)

    def is_open_on(self, connection: Any) -> bool:
        """Whether a transaction is open on the caller's own async connection now."""
        return not _is_closed(connection) and async_handle(connection).in_transaction()

    def _sql(self, handle: AsyncHandle) -> Sql:
        return Sql(dialect_of(handle), self._store._table)


async def _in_thread(step: Callable[[], Coroutine[Any, Any, T]]) -> T:
    return await asyncio.to_thread(lambda: run_blocking(step()))


def _is_closed(connection: Any) -> bool:
    """Whether a driver or SQLAlchemy says so, each in its way; sqlite3 refuses what is asked of it then."""
    is_open = getattr(connection, "open", True) and getattr(connection, "connected", True)
    return bool(getattr(connection, "closed", False)) or not is_open
