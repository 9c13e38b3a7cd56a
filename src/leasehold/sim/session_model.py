"""Locks that live in connections, as PostgreSQL (advisory locks) and MySQL (GET_LOCK) have them, and a table of tokens.

Each statement of the engines is known by its name, and does here what its SQL does there. A lock is counted: who takes
it twice has to give it back twice. Who waits is queued by the server, which hands a lock over by itself.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from math import inf
from typing import Any, Protocol

from leasehold.wires.sql_table import Request, Row

Key = Hashable


class Waits(Exception):
    """A lock is held by another connection; the statement waits for it, for so many seconds at most."""

    def __init__(self, key: Key, patience: float, about: str) -> None:
        super().__init__(key)
        self.key, self.patience, self.about = key, patience, about


class TimeIsUp(Exception):
    """A lock was not had in time, and the statement fails for that."""


class Connection(Protocol):
    """The server's side of one connection, as far as its locks go."""

    pid: int
    locks: Counter[Key]
    silence: float
    """After how long without a word the server ends it; 0: never."""
    patience: float
    """For how long a statement of it waits for a lock, where that is a setting; 0: for as long as it takes."""
    in_vain: bool
    """Whether the statement has waited as long as it may."""

    def end(self, how: str) -> None:
        """End it, with its locks."""
        ...


class Token:
    """What the table of tokens has of one name."""

    def __init__(self, namespace: str, name: str) -> None:
        self.namespace, self.name, self.token, self.about = namespace, name, 0, ""


class Sessions:
    """The server: who has which lock, and the table."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self.clock = clock
        self.holders: dict[Key, Connection] = {}
        self.rows: dict[Any, Token] = {}
        self.granted: Callable[[Connection, Key, Token], object] = lambda _connection, _key, _row: None
        self.freed: Callable[[Connection, Key, str], object] = lambda _connection, _key, _how: None
        self.connection_of: Callable[[int], Connection | None] = lambda _pid: None

    def carry_out(self, connection: Connection, request: Request) -> list[Row]:
        """One statement."""
        name = request.statement.name.removeprefix("leasehold_")
        rows: list[Row] = getattr(self, f"_{name}")(connection, *request.values)
        return rows

    # Locks

    def lock(self, connection: Connection, key: Key) -> bool:
        """Take a lock, once more if it is held by the same connection."""
        if self.holders.setdefault(key, connection) is not connection:
            return False
        connection.locks[key] += 1
        return True

    def unlock(self, connection: Connection, key: Key) -> bool:
        """Give it back, once."""
        if not connection.locks[key]:
            return False
        connection.locks[key] -= 1
        if not connection.locks[key]:
            self._free(connection, key, "released")
        return True

    def unlock_all(self, connection: Connection, how: str) -> None:
        """The connection is over."""
        for key in [key for key, times in connection.locks.items() if times]:
            self._free(connection, key, how)

    def _free(self, connection: Connection, key: Key, how: str) -> None:
        del connection.locks[key]
        del self.holders[key]
        self.freed(connection, key, how)

    def _minted(self, row: Token, about: str) -> int:
        row.token, row.about = max(row.token + 1, self.clock()), about
        return row.token

    def fail_over(self, age: Callable[[], float]) -> None:
        """Another server takes over, which lacks the latest: what was written so recently is gone."""
        for key, row in list(self.rows.items()):
            if row.token > self.clock() - age() * 1_000_000:
                del self.rows[key]

    # Statements that both have

    def _page(self, _connection: Connection, *_after: Any) -> list[Row]:
        return []  # no name is as old as that here


class PostgresSessions(Sessions):
    """The statements of PostgreSQL."""

    def _locked(self, connection: Connection, got: bool, values: Sequence[Any]) -> list[Row]:
        key, namespace, name, _, about, silence = values
        before = copy.copy(self.rows.get(key))
        token = None
        if got:
            row = self.rows.setdefault(key, Token(namespace, name))
            if (row.namespace, row.name) == (namespace, name):
                token = self._minted(row, about)
                self.granted(connection, key, row)
            connection.silence = int(silence) / 1000
        if before is None:
            return [(got, token, connection.pid, None, None, None, None, silence)]
        return [(got, token, connection.pid, before.namespace, before.name, before.token, before.about, silence)]

    def _try(self, connection: Connection, *values: Any) -> list[Row]:
        return self._locked(connection, self.lock(connection, values[0]), values)

    def _try_first(self, connection: Connection, *values: Any) -> list[Row]:
        [row] = self._try(connection, *values[:6])
        if not row[0]:
            self._patience(connection, values[6], values[4], values[5])
        return [(*row, "")]

    def _lock(self, connection: Connection, *values: Any) -> list[Row]:
        if connection.in_vain:
            raise TimeIsUp
        if not self.lock(connection, values[0]):
            raise Waits(values[0], connection.patience or inf, values[4])
        [row] = self._locked(connection, True, values)
        return [] if row[1] is None else [(*row[:3], *values[1:3], values[5])]

    def _begin(self, _connection: Connection) -> list[Row]:
        return []

    def _commit(self, _connection: Connection) -> list[Row]:
        return []

    def _patience(self, connection: Connection, milliseconds: str, about: str, silence: str) -> list[Row]:
        connection.patience, connection.silence = int(milliseconds) / 1000, int(silence) / 1000
        return [(milliseconds, about, silence)]

    def _heartbeat(self, connection: Connection, milliseconds: str) -> list[Row]:
        connection.silence = int(milliseconds) / 1000
        return [(connection.pid, milliseconds)]

    def _unlock(self, connection: Connection, key: Key) -> list[Row]:
        unlocked = self.unlock(connection, key)
        connection.silence = 0.0
        return [(unlocked, connection.pid, "0")]

    def _unlock_only(self, connection: Connection, key: Key) -> list[Row]:
        return [(self.unlock(connection, key), connection.pid)]

    def _force(self, connection: Connection, key: Key, namespace: str, name: str) -> list[Row]:
        row = self.rows.setdefault(key, Token(namespace, name))
        token, holder = self._minted(row, row.about), self.holders.get(key)
        if holder is None or holder is connection:
            return [(token, 0)]
        holder.end("forced")
        return [(token, 1)]


class MysqlSessions(Sessions):
    """The statements of MySQL and MariaDB. Several that are one request are carried out one after the other."""

    def _lock(self, connection: Connection, *values: Any) -> list[Row]:
        key, milliseconds, namespace, name, _, seconds, about = values
        got = self.lock(connection, key)
        if not got and milliseconds and not connection.in_vain:
            raise Waits(key, milliseconds / 1000, about)
        minted = 0
        if self.holders.get(key) is connection:
            row = self.rows.setdefault((namespace, name), Token(namespace, name))
            minted = self._minted(row, about)
            self.granted(connection, key, row)
            connection.silence = float(seconds)
        else:
            connection.silence = 0.0
        seen = self.rows.get((namespace, name))
        return [(int(got), minted, connection.pid, *((seen.token, seen.about) if seen else (None, None)))]

    def _take(self, connection: Connection, *values: Any) -> list[Row]:
        namespace, name, key, _, about, pid = values
        row = self.rows.get((namespace, name))
        if row is None or connection.pid != pid or not self.lock(connection, key):
            return [(0, 0)]
        return self._granted(connection, key, row, about)

    def _queue(self, connection: Connection, *values: Any) -> list[Row]:
        key, milliseconds, namespace, name, _, pid, about = values
        got = connection.pid == pid and self.lock(connection, key)
        if connection.pid == pid and not got and not connection.in_vain:
            raise Waits(key, milliseconds / 1000, about)
        row = self.rows.get((namespace, name))
        if row is None or not got:
            return [(0, 0)]
        return self._granted(connection, key, row, about)

    def _granted(self, connection: Connection, key: Key, row: Token, about: str) -> list[Row]:
        minted = self._minted(row, about)
        self.granted(connection, key, row)
        return [(1, minted)]

    def _heartbeat(self, connection: Connection, key: Key, seconds: int) -> list[Row]:
        connection.silence = float(seconds)
        return [(connection.pid if self.holders.get(key) is connection else 0,)]

    def _unlock(self, connection: Connection, key: Key, pid: int) -> list[Row]:
        unlocked = connection.pid == pid and self.unlock(connection, key)
        return [(int(unlocked), 0)]

    def _self(self, connection: Connection) -> list[Row]:
        return [(connection.pid,)]

    def _nudge(self, _connection: Connection, pid: int, waits: str = "") -> list[Row]:
        """Kill a connection; one that is to be killed while it waits is spared when it holds something."""
        killed = self.connection_of(pid)
        if killed is not None and not (waits and +killed.locks):
            killed.end("forced" if +killed.locks else "killed")
        return []

    def _who(self, _connection: Connection, key: Key) -> list[Row]:
        holder = self.holders.get(key)
        return [(None if holder is None else holder.pid,)]

    def _mint(self, _connection: Connection, namespace: str, name: str, key: Key) -> list[Row]:
        row = self.rows.setdefault((namespace, name), Token(namespace, name))
        holder = self.holders.get(key)
        return [(self._minted(row, row.about), None if holder is None else holder.pid)]
