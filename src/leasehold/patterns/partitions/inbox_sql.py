# ruff: noqa: S608 - what is put into the statements is a table's name that was checked, and our own words
"""An inbox in two tables of SQLite, PostgreSQL or MySQL/MariaDB, and a fence beside them.

A row for each partition gives its messages their numbers. It stays locked until the transaction of whoever puts a
message ends, so messages become visible in the order of their numbers, and none slips in between later.
"""

from __future__ import annotations

import functools
import hashlib
import json
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar

from leasehold.errors import KeyReused, LeaseholdError, Misuse, QueueFull, quoted
from leasehold.fences.rule import HasToken
from leasehold.fences.sql import SqlFence
from leasehold.fences.sql_handles import Handle
from leasehold.fences.sql_rule import Answer, Ask, check_identifier
from leasehold.fences.sqlite import SqliteFence
from leasehold.names import check_wait
from leasehold.patterns.databases import PATIENCE, Connections, dialect_of, handle_of, never_twice, perform
from leasehold.patterns.dialects import INSERT, LOCKING, TEXT, UNLESS_THERE, NewRow, clock
from leasehold.patterns.optimistic import is_conflict
from leasehold.patterns.partitions.bells import Bell, Ring, hear_postgres, keep_listening
from leasehold.patterns.partitions.entities import Entities
from leasehold.patterns.partitions.inbox import (
    BATCH,
    MOST_TRIES,
    MOST_WAITING,
    REMEMBER,
    Key,
    Message,
    Parked,
    check_entity,
    key_of,
    packed,
    storable,
)

P = ParamSpec("P")
T = TypeVar("T")
Steps = Generator[Ask, Answer, T]

LONGEST_PAUSE: Final = 0.05
_MESSAGES: Final = """
CREATE TABLE IF NOT EXISTS {table} (
    team CHAR(32) NOT NULL, place INTEGER NOT NULL, seq BIGINT NOT NULL, entity {text} NOT NULL,
    payload {text} NOT NULL, tries INTEGER NOT NULL, parked BIGINT NOT NULL, error {text} NOT NULL,
    PRIMARY KEY (team, place, seq))"""
_PLACES: Final = """
CREATE TABLE IF NOT EXISTS {table}_place (
    team CHAR(32) NOT NULL, place INTEGER NOT NULL, last_seq BIGINT NOT NULL, waiting INTEGER NOT NULL,
    PRIMARY KEY (team, place))"""

_KEYS: Final = """
CREATE TABLE IF NOT EXISTS {table}_key (
    team CHAR(32) NOT NULL, name CHAR(32) NOT NULL, fingerprint CHAR(32) NOT NULL, seq BIGINT NOT NULL,
    at BIGINT NOT NULL, PRIMARY KEY (team, name))"""


def _begun_again(step: Callable[P, T]) -> Callable[P, T]:
    """Of two steps in each other's way a server undoes one; in a transaction of its own it can begin again."""

    @functools.wraps(step)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        give_up_at = time.monotonic() + PATIENCE
        while True:
            try:
                return step(*args, **kwargs)
            except Exception as error:
                # A SQLite file was waited for already, for as long.
                if isinstance(error, sqlite3.Error) or not is_conflict(error) or time.monotonic() > give_up_at:
                    raise
            time.sleep(random.random() * LONGEST_PAUSE)

    return call


class _Put(NamedTuple):
    """What came of putting a message: its number, 0 when there was no room; and what was put under its key."""

    seq: int
    fingerprint: str


class _Sql:
    """The statements, in the words of one kind of database."""

    def __init__(self, dialect: str, table: str, channel: str) -> None:
        this, now = "team = :team AND place = :place", clock(dialect, 3)
        self.create = [made.format(table=table, text=TEXT[dialect]) for made in (_MESSAGES, _PLACES, _KEYS)]
        self._count_up = (
            f"UPDATE {table}_place SET waiting = waiting + 1, last_seq = last_seq + 1 WHERE {this} AND waiting < :most"
        )
        self._count_down = f"UPDATE {table}_place SET waiting = waiting - 1 WHERE {this}"
        self._add_place = (
            f"{INSERT[dialect]} INTO {table}_place (team, place, last_seq, waiting) "
            f"VALUES (:team, :place, 0, 0){UNLESS_THERE[dialect]}"
        )
        self._count_back = f"UPDATE {table}_place SET waiting = waiting - 1, last_seq = last_seq - 1 WHERE {this}"
        self._known = f"SELECT seq, fingerprint FROM {table}_key WHERE team = :team AND name = :name"
        self._known_by_now = self._known + LOCKING[dialect]
        self._add_key = (
            f"{INSERT[dialect]} INTO {table}_key (team, name, fingerprint, seq, at) "
            f"VALUES (:team, :name, :fingerprint, :seq, {now}){UNLESS_THERE[dialect]}"
        )
        self._sweep_keys = f"DELETE FROM {table}_key WHERE team = :team AND at <= {now} - :age"
        self._notify = f"SELECT pg_notify('{channel}', '')" if dialect == "postgresql" else ""
        self._last_seq = f"SELECT last_seq FROM {table}_place WHERE {this}"
        self._add = (
            f"INSERT INTO {table} (team, place, seq, entity, payload, tries, parked, error) "
            "VALUES (:team, :place, :seq, :entity, :payload, 0, 0, '')"
        )
        self._waiting = f"SELECT place FROM {table}_place WHERE team = :team AND waiting > 0"
        self._next = (
            f"SELECT seq, entity, payload, tries FROM {table} WHERE {this} AND parked = 0 ORDER BY seq LIMIT :most"
        )
        self._delete = f"DELETE FROM {table} WHERE {this} AND seq = :seq AND parked = 0"
        self._failed = (
            f"UPDATE {table} SET tries = tries + 1, error = :error, "
            f"parked = CASE WHEN tries + 1 >= :most THEN {now} ELSE 0 END "
            f"WHERE {this} AND seq = :seq AND parked = 0"
        )
        # MySQL lets an assignment see what the one before it has assigned; so the state is read, not computed again.
        self._is_parked = f"SELECT parked FROM {table} WHERE {this} AND seq = :seq"
        self._parked = (
            f"SELECT place, seq, entity, payload, error FROM {table} "
            "WHERE team = :team AND parked > 0 ORDER BY parked, place, seq LIMIT :most"
        )
        self._sweep = f"DELETE FROM {table} WHERE team = :team AND parked > 0 AND parked <= {now} - :age"
        if dialect == "mysql":
            self._failed = (
                f"UPDATE {table} SET parked = CASE WHEN tries + 1 >= :most THEN {now} ELSE 0 END, "
                f"tries = tries + 1, error = :error WHERE {this} AND seq = :seq AND parked = 0"
            )

    def put(self, values: dict[str, object], key: Key | None) -> Steps[_Put]:
        """Take the next number, and store the message under it, unless its key is known."""
        named = {**values, **key._asdict()} if key else values
        if key and (rows := (yield Ask(self._known, named)).rows):
            return _Put(int(rows[0][0]), rows[0][1])
        if not (yield Ask(self._count_up, values)).touched:
            yield NewRow(self._add_place, values)
            if not (yield Ask(self._count_up, values)).touched:
                return _Put(0, "")
        seq = int((yield Ask(self._last_seq, values)).rows[0][0])
        if key and not (yield NewRow(self._add_key, {**named, "seq": seq})).touched:
            # Somebody else has put it since: the number was not seen by anybody, and is given back.
            yield Ask(self._count_back, values)
            [(seq, fingerprint)] = (yield Ask(self._known_by_now, named)).rows
            return _Put(int(seq), fingerprint)
        yield Ask(self._add, {**values, "seq": seq})
        if self._notify:
            yield Ask(self._notify, {})
        return _Put(seq, key.fingerprint if key else "")

    def waiting(self, team: str) -> Steps[list[int]]:
        """The partitions that have messages."""
        return [int(place) for [place] in (yield Ask(self._waiting, {"team": team})).rows]

    def take(self, values: dict[str, object]) -> Steps[list[tuple[Any, ...]]]:
        """The next messages."""
        return (yield Ask(self._next, values)).rows

    def acknowledge(self, values: dict[str, object]) -> Steps[None]:
        """Delete it, unless it was deleted before."""
        if (yield Ask(self._delete, values)).touched:
            yield Ask(self._count_down, values)

    def fail(self, values: dict[str, object]) -> Steps[bool]:
        """Count the failure, and put the message aside when there were too many."""
        if not (yield Ask(self._failed, values)).touched:
            return False
        parked = bool((yield Ask(self._is_parked, values)).rows[0][0])
        if parked:
            yield Ask(self._count_down, values)
        return parked

    def parked(self, team: str, most: int) -> Steps[list[tuple[Any, ...]]]:
        """What was put aside."""
        return (yield Ask(self._parked, {"team": team, "most": most})).rows

    def sweep(self, team: str, age: int, age_of_keys: int) -> Steps[int]:
        """Forget what was put aside, and keys."""
        yield Ask(self._sweep_keys, {"team": team, "age": age_of_keys})
        return (yield Ask(self._sweep, {"team": team, "age": age})).touched


def _fence(connection: Any) -> SqliteFence | SqlFence:
    return SqliteFence(connection) if isinstance(connection, sqlite3.Connection) else SqlFence(connection)


class SqlInbox:
    """An inbox in a database: a SQLite file, or what `on` connects to (psycopg, psycopg2, PyMySQL, sqlite3).

    >>> import tempfile
    >>> inbox = SqlInbox(Entities("orders"), Path(tempfile.mkdtemp()) / "app.db")
    >>> inbox.create()
    >>> [inbox.put("customer-42", {"add": 1}), inbox.put("customer-42", {"add": 2})]
    [1, 2]
    >>> [message.payload for message in inbox.take(inbox.waiting()[0], token=7)]
    [{'add': 1}, {'add': 2}]
    >>> inbox.close()
    """

    def __init__(
        self,
        entities: Entities,
        on: Path | Callable[[], Any],
        *,
        table: str = "leasehold_inbox",
        most_waiting: int = MOST_WAITING,
        most_tries: int = MOST_TRIES,
        remember: float = REMEMBER,
    ) -> None:
        """Refuse messages while `most_waiting` wait in one partition; put one aside that failed `most_tries` times.

        Keys are known for `remember` seconds at least, and until the next `sweep`.
        """
        self._connections = Connections(on)
        self._entities, self._table = entities, check_identifier(table, what="table")
        self._most_waiting, self._most_tries = most_waiting, most_tries
        self._remember = int(check_wait(remember, what="remember") * 1000)
        self._bell = Bell()
        # A digest is compared byte by byte under every collation.
        self._team = hashlib.blake2b(entities.group.encode(), digest_size=16).hexdigest()

    def create(self) -> None:
        """Make the tables unless they are there; where you set up your own tables."""

        def step(connection: Any, handle: Handle, sql: _Sql) -> None:
            for statement in sql.create:
                handle.ask(Ask(statement, {}))
            _fence(connection).create()

        self._perform(step)

    @_begun_again
    def put(self, entity: str, payload: object, *, key: str | None = None) -> int:
        """See `Inbox`."""

        def step(connection: Any, handle: Handle, sql: _Sql) -> int:
            # By its key a message is recognised that was put before; without one, it would be two.
            whole = handle.transaction()
            with whole if key is not None else never_twice(connection, whole):
                return self._put(handle, sql, entity, payload, key)

        seq = self._perform(step)
        self._bell.ring()
        return seq

    def put_on(self, connection: Any, entity: str, payload: object, *, key: str | None = None) -> int:
        """Put a message in the transaction that is open on the caller's own connection: both happen, or neither."""
        handle = handle_of(connection)
        if not handle.will_be_in_transaction():
            raise Misuse("no transaction is open on this connection; begin one, or use put()")
        return self._put(handle, self._sql(handle), entity, payload, key)

    def listen(self, ring: Ring, over: threading.Event) -> None:
        """See `Inbox`. What other processes put is told by PostgreSQL alone; elsewhere it is found by looking."""

        def hear() -> None:
            connection: Any = self._connections.connect()
            try:
                if dialect_of(handle_of(connection)) == "postgresql":
                    connection.autocommit = True
                    hear_postgres(connection, self._channel, ring, over)
                    return
            finally:
                connection.close()
            over.wait()

        with self._bell.heard(ring):
            keep_listening(hear, over)

    def waiting(self) -> list[int]:
        """See `Inbox`."""
        return self._perform(lambda _, handle, sql: perform(sql.waiting(self._team), handle), reads=True)

    @_begun_again
    def take(self, partition: int, token: int | HasToken, most: int = BATCH) -> list[Message]:
        """See `Inbox`."""
        values: dict[str, object] = {"team": self._team, "place": partition, "most": most}

        def step(connection: Any, handle: Handle, sql: _Sql) -> list[tuple[Any, ...]]:
            with _fence(connection).reading(self._resource(partition), token):
                return perform(sql.take(values), handle)

        rows = self._perform(step)
        return [Message(partition, int(seq), entity, payload, int(tries)) for seq, entity, payload, tries in rows]

    @_begun_again
    def acknowledge(self, message: Message, token: int | HasToken) -> None:
        """See `Inbox`."""

        def step(connection: Any, handle: Handle, sql: _Sql) -> None:
            with _fence(connection).writing(self._resource(message.partition), token):
                perform(sql.acknowledge(self._values(message)), handle)

        self._perform(step)

    def acknowledge_on(self, connection: Any, message: Message, token: int | HasToken) -> None:
        """Acknowledge in the transaction that is open on the handler's own connection: handled exactly once, then.

        Raises `StaleToken` when a later owner was here; roll back, then.
        """
        handle = handle_of(connection)
        _fence(connection).check(self._resource(message.partition), token)
        perform(self._sql(handle).acknowledge(self._values(message)), handle)
        message.acknowledged = True

    def fail(self, message: Message, token: int | HasToken, error: str) -> bool:
        """See `Inbox`."""
        text = storable(error)
        try:
            return self._fail(message, token, text)
        except Exception as failure:
            if isinstance(failure, LeaseholdError) or text.isascii():
                raise
            # The connection may be in a character set that lacks something; the failure is to be counted all the same.
            return self._fail(message, token, text.encode("ascii", "backslashreplace").decode())

    @_begun_again
    def _fail(self, message: Message, token: int | HasToken, error: str) -> bool:
        values = {**self._values(message), "error": error, "most": self._most_tries}

        def step(connection: Any, handle: Handle, sql: _Sql) -> bool:
            # Twice would be two failures, and a message that is put aside too soon.
            with never_twice(connection, _fence(connection).writing(self._resource(message.partition), token)):
                return perform(sql.fail(values), handle)

        return self._perform(step)

    def parked(self, most: int = BATCH) -> list[Parked]:
        """See `Inbox`."""
        rows = self._perform(lambda _, handle, sql: perform(sql.parked(self._team, most), handle), reads=True)
        return [
            Parked(int(place), int(seq), entity, json.loads(text), error) for place, seq, entity, text, error in rows
        ]

    @_begun_again
    def sweep(self, older_than: float) -> int:
        """See `Inbox`."""
        age = int(check_wait(older_than, what="older_than") * 1000)
        return self._perform(lambda _, handle, sql: perform(sql.sweep(self._team, age, self._remember), handle))

    def close(self) -> None:
        """Close connections; they are made again when needed."""
        self._connections.close()

    def _put(self, handle: Handle, sql: _Sql, entity: str, payload: object, key: str | None) -> int:
        place, text = self._entities.partition_of(entity), packed(payload)
        named = key_of(key, check_entity(entity), text)
        values: dict[str, object] = {
            "team": self._team,
            "place": place,
            "entity": entity,
            "payload": text,
            "most": self._most_waiting,
        }
        put = perform(sql.put(values, named), handle)
        if not put.seq:
            raise QueueFull(f"partition {place} of the inbox {quoted(self._entities.group)}", self._most_waiting)
        if key is not None and named is not None and put.fingerprint != named.fingerprint:
            raise KeyReused(key)
        return put.seq

    def _values(self, message: Message) -> dict[str, object]:
        return {"team": self._team, "place": message.partition, "seq": message.seq}

    def _resource(self, partition: int) -> str:
        return f"{self._table}/{self._team}/{partition}"

    def _perform(self, step: Callable[[Any, Handle, _Sql], T], *, reads: bool = False) -> T:
        """Carry out a step, and once more if its connection broke: a second attempt finds what the first has done."""

        def on(connection: Any) -> T:
            handle = handle_of(connection)
            return step(connection, handle, self._sql(handle))

        return self._connections.perform(on, reads=reads)

    def _sql(self, handle: Handle) -> _Sql:
        return _Sql(dialect_of(handle), self._table, self._channel)

    @property
    def _channel(self) -> str:
        return f"leasehold_inbox_{self._team}"
