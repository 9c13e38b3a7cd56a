"""What MySQL and MariaDB do with the statements of their engine, where that is not what PostgreSQL does.

The clock stands still within a statement, also while the statement waits for a row. A statement that changes rows
answers how many. Who listens waits in the server for a lock that somebody keeps, and is told by a letter in a table
and an interruption.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from leasehold.core.table import LATENESS, SLACK
from leasehold.sim.postgres_model import (
    BEAT,
    CLOSED_UNTIL,
    CROWD,
    EXPIRES,
    HOLDER,
    LASTS,
    TURN_SINCE,
    Database,
    Key,
    Rows,
    Transaction,
)
from leasehold.sim.postgres_model import _is_free as is_free
from leasehold.sim.postgres_model import _seated as seated
from leasehold.wires.mysql_ear import KEEP_LETTERS
from leasehold.wires.sql_table import Request, Row

NONE_CHANGED: list[Row] = [(0, 0)]


class AtGate(Exception):
    """The connection waits for the lock that another one keeps."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


class MysqlTransaction(Transaction):
    """One that knows when its statement began."""

    def __init__(self) -> None:
        super().__init__()
        self.began: int | None = None
        self.changed = 0
        """How many rows its last statement has changed."""
        self.ear: str | None = None
        """Whose wait is to be interrupted."""


class MysqlDatabase(Database):
    """The tables, those of letters among them."""

    def __init__(self, wall_clock: Callable[[], int]) -> None:
        super().__init__(self._statement_clock)
        self._wall_clock, self._now = wall_clock, 0
        self.letters: dict[tuple[str, str], tuple[str, int]] = {}
        """Holder and time of each letter, by its address and its own name."""
        self.ears: dict[str, Any] = {}
        """The connections that hold the lock of an address."""
        self.keeper: Any = None
        """The connection that keeps the gate."""

    def _statement_clock(self) -> int:
        return self._now

    def carry_out(self, transaction: Transaction, request: Request) -> list[Row]:
        """One statement; its clock is that of its beginning, however often it is tried again for a row."""
        assert isinstance(transaction, MysqlTransaction)
        if transaction.began is None:
            transaction.began = self._wall_clock()
        self._now = transaction.began
        rows = super().carry_out(transaction, request)
        transaction.began, transaction.changed = None, rows[0][0] if rows else 0
        return rows

    # Leases

    def _take_free(self, transaction: Transaction, *values: Any) -> list[Row]:
        namespace, name, holder, ttl, delay, about = values
        rows, now = self.lock(transaction, (namespace, name)), self.clock()
        lease = rows.lease
        if lease is None:
            token = max(self.base + 1, now)
            rows.lease = [token, now, 0, 0, holder, now, now + ttl, ttl, 0, delay, about]
            return [(1, token)]
        if lease[HOLDER] == holder or lease[CROWD] or not is_free(lease, now):
            return NONE_CHANGED
        return [(2, seated(lease, now, values))]

    def _take_known(self, transaction: Transaction, *values: Any) -> list[Row]:
        lease, now = self.lock(transaction, values[:2]).lease, self.clock()
        if lease is None or lease[CROWD] or not is_free(lease, now):
            return NONE_CHANGED
        return [(1, seated(lease, now, values))]

    def _release_alone(self, transaction: Transaction, namespace: str, name: str, holder: str) -> list[Row]:
        lease, now = self.lock(transaction, (namespace, name)).lease, self.clock()
        if lease is None or lease[HOLDER] != holder or lease[CROWD] or lease[EXPIRES] <= now:
            return NONE_CHANGED
        lease[HOLDER], lease[TURN_SINCE] = None, now
        return [(1, 0)]

    def _take_turn(self, transaction: Transaction, *values: Any) -> list[Row]:
        namespace, name, holder, ttl, _, _ = values
        rows, now = self.lock(transaction, (namespace, name)), self.clock()
        lease, waiting = rows.lease, [one for _, one in sorted(rows.waiters.items()) if one[5] > now]
        if lease is None or not waiting or waiting[0][1] != holder or lease[CROWD] != 2 or not is_free(lease, now):
            return NONE_CHANGED
        if any(one[5] > now + ttl + LATENESS + SLACK for one in waiting[1:2]):
            return NONE_CHANGED
        lease[CROWD] = 2 if any(one[1] != holder for one in rows.waiters.values()) else 0
        return [(1, seated(lease, now, values))]

    def _leave_queue(self, transaction: Transaction, namespace: str, name: str, holder: str) -> list[Row]:
        rows = self.lock(transaction, (namespace, name))
        if rows.lease is not None and rows.lease[HOLDER] == holder:
            rows.waiters = {seq: one for seq, one in rows.waiters.items() if one[1] != holder}
        return [(1, 0)]

    def _release_to_next(self, transaction: Transaction, namespace: str, name: str, holder: str) -> list[Row]:
        lease, now = self.lock(transaction, (namespace, name)).lease, self.clock()
        if lease is None or lease[HOLDER] != holder or lease[CROWD] not in (0, 2) or lease[EXPIRES] <= now:
            return NONE_CHANGED
        lease[HOLDER], lease[TURN_SINCE] = None, now
        return [(1, 0)]

    def _renew_lease(self, transaction: Transaction, *values: Any) -> list[Row]:
        namespace, name, holder, token, ttl = values
        lease, now = self.lock(transaction, (namespace, name)).lease, self.clock()
        if not lease or (lease[HOLDER], lease[0]) != (holder, token) or lease[EXPIRES] <= now:
            return NONE_CHANGED
        lease[LASTS] = max(lease[LASTS], ttl)
        lease[EXPIRES], lease[BEAT] = now + lease[LASTS], lease[BEAT] + 1
        return [(1, 0)]

    def _renew_seat(self, transaction: Transaction, *values: Any) -> list[Row]:
        namespace, name, holder, token, ttl = values
        seat, now = self.lock(transaction, (namespace, name)).seats.get(token), self.clock()
        if seat is None or seat[0] != holder or seat[4] <= now:
            return NONE_CHANGED
        seat[5] = max(seat[5], ttl)
        seat[4], seat[6] = now + seat[5], seat[6] + 1
        return [(1, 0)]

    # Wake-ups

    def _wake(self, transaction: Transaction, *values: Any) -> list[Row]:
        address, letter, holder = values
        if address not in self.ears:
            return NONE_CHANGED
        transaction.news.append((f"{address} {letter}", holder))
        return [(1, 0)]

    def leave(self, where: str, holder: str) -> None:
        """A letter is committed."""
        address, letter = where.split(" ")
        self.letters[address, letter] = (holder, self._wall_clock())

    def _letters(self, _transaction: Transaction, address: str) -> list[Row]:
        return [(letter, holder) for (at, letter), (holder, _) in sorted(self.letters.items()) if at == address]

    def _wait_at_gate(self, _transaction: Transaction, address: str, known: int, _gate: str, seconds: int) -> list[Row]:
        if self.keeper is None:
            self.keeper = self.ears[address]
        if self.keeper is self.ears[address]:
            return [(1,)]
        if sum(at == address for at, _ in self.letters) > known:
            return [(0,)]
        raise AtGate(seconds)

    def _keep_gate(self, _transaction: Transaction, _seconds: int) -> list[Row]:
        return [(0, 0)]

    def _take_away(self, _transaction: Transaction, address: str, letters: str) -> list[Row]:
        gone = [key for key in self.letters if key[0] == address and key[1] in letters.split(",")]
        for key in gone:
            del self.letters[key]
        return [(len(gone), 0)]

    def _find_head(self, transaction: Transaction, namespace: str, name: str) -> list[Row]:
        assert isinstance(transaction, MysqlTransaction)
        head = self._head((namespace, name))
        transaction.ear = head[6] if transaction.changed == 1 and head and head[6] in self.ears else None
        return [(0, 0)]

    def _leave_for_head(self, transaction: Transaction, namespace: str, name: str, letter: str) -> list[Row]:
        assert isinstance(transaction, MysqlTransaction)
        lease, head = self.rows[namespace, name].lease, self._head((namespace, name))
        is_free = lease is not None and lease[HOLDER] is None and lease[CLOSED_UNTIL] <= self.clock()
        if head is None or not is_free or transaction.ear is None:
            return NONE_CHANGED
        transaction.news.append((f"{head[6]} {letter}", head[1]))
        return [(1, 0)]

    def _head(self, key: Key) -> list[Any] | None:
        waiters = self.rows.get(key, Rows()).waiters
        return next((one for _, one in sorted(waiters.items()) if one[5] > self.clock()), None)

    def _nudge(self, transaction: Transaction, address: str | None = None) -> list[Row]:
        assert isinstance(transaction, MysqlTransaction)
        ear = self.ears.get(address or transaction.ear or "")
        if ear is not None:
            ear.interrupt()
        return []

    def _old_letters(self, _transaction: Transaction) -> list[Row]:
        return [key for key, (_, since) in sorted(self.letters.items()) if since <= self.clock() - KEEP_LETTERS]

    def _drop_letter(self, _transaction: Transaction, address: str, letter: str) -> list[Row]:
        self.letters.pop((address, letter), None)
        return [(1, 0)]
