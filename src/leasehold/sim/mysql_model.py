"""What MySQL and MariaDB do with the statements of their engine, where that is not what PostgreSQL does.

The clock stands still within a statement, also while the statement waits for a row. A statement that changes rows
answers how many. Who listens sleeps in the server, and is told by a letter in a table and an interruption.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from leasehold.sim.postgres_model import BEAT, CROWD, EXPIRES, HOLDER, LASTS, TURN_SINCE, Database, Transaction
from leasehold.sim.postgres_model import _is_free as is_free
from leasehold.sim.postgres_model import _seated as seated
from leasehold.wires.mysql_ear import KEEP_LETTERS
from leasehold.wires.sql_table import Request, Row

NONE_CHANGED: list[Row] = [(0, 0)]


class Sleeping(Exception):
    """The connection sleeps in the server."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


class MysqlTransaction(Transaction):
    """One that knows when its statement began."""

    def __init__(self) -> None:
        super().__init__()
        self.began: int | None = None


class MysqlDatabase(Database):
    """The tables, those of letters among them."""

    def __init__(self, wall_clock: Callable[[], int]) -> None:
        super().__init__(self._statement_clock)
        self._wall_clock, self._now = wall_clock, 0
        self.letters: dict[tuple[str, str], tuple[str, int]] = {}
        """Holder and time of each letter, by its address and its own name."""
        self.ears: dict[str, Any] = {}
        """The connections that hold the lock of an address."""

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

    def _release_alone(self, transaction: Transaction, namespace: str, name: str, holder: str) -> list[Row]:
        lease, now = self.lock(transaction, (namespace, name)).lease, self.clock()
        if lease is None or lease[HOLDER] != holder or lease[CROWD] or lease[EXPIRES] <= now:
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

    def _lock(self, transaction: Transaction, namespace: str, name: str) -> list[Row]:
        return [(1,)] if self._lock_lease(transaction, namespace, name) else []

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

    def _sleep(self, _transaction: Transaction, address: str, known: int, seconds: int) -> list[Row]:
        if sum(at == address for at, _ in self.letters) > known:
            return [(0,)]
        raise Sleeping(seconds)

    def _take_away(self, _transaction: Transaction, address: str, letters: str) -> list[Row]:
        gone = [key for key in self.letters if key[0] == address and key[1] in letters.split(",")]
        for key in gone:
            del self.letters[key]
        return [(len(gone), 0)]

    def _nudge(self, _transaction: Transaction, address: str) -> list[Row]:
        ear = self.ears.get(address)
        if ear is not None:
            ear.interrupt()
        return []

    def _old_letters(self, _transaction: Transaction) -> list[Row]:
        return [key for key, (_, since) in sorted(self.letters.items()) if since <= self.clock() - KEEP_LETTERS]

    def _drop_letter(self, _transaction: Transaction, address: str, letter: str) -> list[Row]:
        self.letters.pop((address, letter), None)
        return [(1, 0)]
