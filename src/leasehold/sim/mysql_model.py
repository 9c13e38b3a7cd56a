"""What MySQL and MariaDB do with the statements of their engine, where that is not what PostgreSQL does.

The clock stands still within a statement, also while the statement waits for a row. A statement that changes rows
answers how many. Who listens waits in the server for a lock that somebody keeps, and is told by a letter in a table
and an interruption.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from leasehold.core.table import LATENESS, LONGEST_SILENCE, NEAR, SLACK, TURN
from leasehold.sim.postgres_model import (
    ABOUT,
    BEAT,
    CLOSED_UNTIL,
    CROWD,
    EXPIRES,
    HOLDER,
    LASTS,
    TOKEN,
    TURN_SINCE,
    Database,
    Transaction,
)
from leasehold.sim.postgres_model import _is_free as is_free
from leasehold.sim.postgres_model import _may_be_handed as may_be_handed
from leasehold.sim.postgres_model import _seated as seated
from leasehold.wires.mysql_ear import KEEP_LETTERS
from leasehold.wires.sql_table import USUAL_DEPTH, Request, Row

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
        self.head: list[Any] | None = None
        """Who was found to be the first in the queue."""
        self.ear: str | None = None
        """Where it listens: whose wait is to be interrupted."""
        self.is_handed = False
        """Whether it is handed the name."""


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
        transaction.began = None
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

    def _mark(self, transaction: Transaction, namespace: str, name: str, holder: str) -> list[Row]:
        lease, now = self.lock(transaction, (namespace, name)).lease, self.clock()
        if lease is None or lease[CROWD] or lease[HOLDER] in (None, holder) or lease[EXPIRES] <= now:
            return NONE_CHANGED
        lease[CROWD] = 2
        return [(1, 0)]

    def _lock(self, transaction: Transaction, namespace: str, name: str) -> list[Row]:
        return [(1,)] if self._lock_lease(transaction, namespace, name) else []

    def _lock_held(self, transaction: Transaction, namespace: str, name: str) -> list[Row]:
        rows = self._lock_lease(transaction, namespace, name)
        return [(row[TOKEN], row[BEAT], row[LASTS], row[ABOUT]) for row in rows]

    def _queue_up(self, transaction: Transaction, *values: Any) -> list[Row]:
        namespace, name, holder, mode, most, patience, address, about, ttl, delay = values
        rows, now = self.lock(transaction, (namespace, name)), self.clock()
        lease, line = rows.lease, [one for _, one in sorted(rows.waiters.items())][:USUAL_DEPTH]
        if lease is None or lease[HOLDER] in (None, holder) or lease[EXPIRES] <= now or lease[TURN_SINCE] > now:
            return NONE_CHANGED
        rank, is_odd = len(line), any(one[1] == holder or one[5] <= now for one in line)
        if lease[CROWD] != 2 or rank >= USUAL_DEPTH or is_odd:
            return NONE_CHANGED
        free_in = min(max(lease[EXPIRES], lease[CLOSED_UNTIL]) - now, lease[LASTS])
        free_in += rank * TURN if rank > NEAR else 0
        silence = min(rank * (rank + 1) // 2 * TURN, LONGEST_SILENCE) if rank else LONGEST_SILENCE
        ask_again, seq = max(min(free_in, silence), 1), max(rows.waiters, default=0) + 1
        until = now + min(patience, ask_again) + LATENESS
        rows.waiters[seq] = [seq, holder, mode, most, now, until, address, about, ttl, delay]
        return [(1, ask_again)]

    def _find_next(self, transaction: Transaction, namespace: str, name: str, holder: str) -> list[Row]:
        assert isinstance(transaction, MysqlTransaction)
        rows, now = self.lock(transaction, (namespace, name)), self.clock()
        lease, waiting = rows.lease, [one for _, one in sorted(rows.waiters.items()) if one[5] > now]
        transaction.head, transaction.ear, transaction.is_handed = waiting[0] if waiting else None, None, False
        if lease is None or transaction.head is None or lease[HOLDER] != holder or lease[CLOSED_UNTIL] > now:
            return [(1, 0)]
        if transaction.head[6] in self.ears:
            in_turn = [one[1:] for one in waiting]
            transaction.ear, transaction.is_handed = transaction.head[6], may_be_handed(lease, in_turn, now)
        return [(1, 0)]

    def _release_to_next(self, transaction: Transaction, namespace: str, name: str, holder: str) -> list[Row]:
        assert isinstance(transaction, MysqlTransaction)
        rows, now = self.lock(transaction, (namespace, name)), self.clock()
        lease, head = rows.lease, transaction.head
        if lease is None or lease[HOLDER] != holder or lease[CROWD] not in (0, 2) or lease[EXPIRES] <= now:
            return NONE_CHANGED
        lease[HOLDER], lease[TURN_SINCE] = None, now
        if transaction.is_handed and head is not None:
            seated(lease, now, (namespace, name, head[1], head[8], head[9], head[7]))
        if rows.waiters:
            return [(1, 0)]
        lease[CROWD] = 0
        return [(1, 1)]

    def _unqueue_next(self, transaction: Transaction, namespace: str, name: str) -> list[Row]:
        assert isinstance(transaction, MysqlTransaction)
        rows, head = self.lock(transaction, (namespace, name)), transaction.head
        if rows.lease is None or head is None or not transaction.is_handed or rows.lease[HOLDER] != head[1]:
            return NONE_CHANGED
        del rows.waiters[head[0]]
        return [(1, 0)]

    def _tell_next(self, transaction: Transaction, namespace: str, name: str, letter: str) -> list[Row]:
        assert isinstance(transaction, MysqlTransaction)
        lease, head = self.rows[namespace, name].lease, transaction.head
        if lease is None or head is None or transaction.ear is None:
            return NONE_CHANGED
        if lease[HOLDER] != (head[1] if transaction.is_handed else None):
            return NONE_CHANGED
        said = f"{head[1]} {lease[TOKEN]}" if transaction.is_handed else head[1]
        transaction.news.append((f"{transaction.ear} {letter}", said))
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

    def _letters(self, _transaction: Transaction, address: str, known: str) -> list[Row]:
        new = {key: letter for key, letter in self.letters.items() if key[1] not in known.split(",")}
        return [(letter, holder) for (at, letter), (holder, _) in sorted(new.items()) if at == address]

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
