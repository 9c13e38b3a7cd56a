"""What MySQL and MariaDB do with the statements of their engine, where that is not what PostgreSQL does.

The clock stands still within a statement, also while the statement waits for a row. A statement that changes rows
answers how many. Who listens waits in the server for a lock that somebody keeps, and is told by a letter in a table
and an interruption.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

from leasehold.sim.postgres_model import (
    ABOUT,
    BEAT,
    CROWD,
    EXPIRES,
    HOLDER,
    LASTS,
    TOKEN,
    TURN_SINCE,
    Database,
    Key,
    Transaction,
)
from leasehold.sim.postgres_model import _is_free as is_free
from leasehold.sim.postgres_model import _seated as seated
from leasehold.wires.mysql_ear import KEEP_LETTERS
from leasehold.wires.mysql_tables import dialect_of
from leasehold.wires.sql_table import Front, Request, Row

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
        self.told: str | None = None
        """Where the one listens who was last found to be told something."""
        self.number = 0
        """The number that the last statement has left, where that is none of an address."""
        self.ear: str | None = None
        """The address that it has left the number of: whose wait is to be interrupted."""


class MysqlDatabase(Database):
    """The tables, those of letters among them."""

    form: Front = dialect_of().front

    def __init__(self, wall_clock: Callable[[], int]) -> None:
        super().__init__(self._statement_clock)
        self._wall_clock, self._now = wall_clock, 0
        self.letters: dict[tuple[str, str], tuple[str, int]] = {}
        """Holder and time of each letter, by its address and its own name."""
        self.ears: dict[str, Any] = {}
        """The connections that hold the lock of an address."""
        self.keeper: Any = None
        """The connection that keeps the gate."""
        self.signed: dict[Key, tuple[str, str | None]] = {}
        """The letter that is to be left when a name's row was last passed on, and where."""

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
        if not _is_given_back(lease) or lease[CROWD] or not is_free(lease, now):
            return NONE_CHANGED
        return [(2, seated(lease, now, values))]

    def _take_known(self, transaction: Transaction, *values: Any) -> list[Row]:
        lease, now = self.lock(transaction, values[:2]).lease, self.clock()
        if not _is_given_back(lease) or lease[CROWD] or not is_free(lease, now):
            return NONE_CHANGED
        return [(1, seated(lease, now, values))]

    def _release_alone(self, transaction: Transaction, namespace: str, name: str, holder: str) -> list[Row]:
        lease, now = self.lock(transaction, (namespace, name)).lease, self.clock()
        if lease is None or lease[HOLDER] != holder or lease[CROWD] or lease[EXPIRES] <= now:
            return NONE_CHANGED
        lease[HOLDER], lease[TURN_SINCE] = None, now
        return [(1, 0)]

    def _take_turn(self, transaction: Transaction, *values: Any) -> list[Row]:
        if not _is_given_back(self.lock(transaction, values[:2]).lease):
            return NONE_CHANGED
        taken = super()._take_turn(transaction, *values)
        return [(1, token) for token, _ in taken] or NONE_CHANGED

    def _lock(self, transaction: Transaction, namespace: str, name: str) -> list[Row]:
        return [(1,)] if self._lock_lease(transaction, namespace, name) else []

    def _queue(self, transaction: Transaction, *values: Any) -> list[Row]:
        queued = super()._queue(transaction, *values)
        return [(1, ask_again) for ask_again, *_ in queued] or NONE_CHANGED

    def _incumbent(self, _transaction: Transaction, namespace: str, name: str) -> list[Row]:
        lease = self.rows[namespace, name].lease
        if lease is None or lease[HOLDER] is None:
            return []
        return [(f"{lease[TOKEN]} {lease[BEAT]} {lease[LASTS]} {lease[ABOUT]}",)]

    def _hand_over(self, transaction: Transaction, *values: Any) -> list[Row]:
        return self._passed_on(transaction, super()._hand_over, TOKEN, *values)

    def _release_to_next(self, transaction: Transaction, *values: Any) -> list[Row]:
        return self._passed_on(transaction, super()._release_to_next, CROWD, *values)

    def _passed_on(
        self, transaction: Transaction, step: Callable[..., list[Row]], number: int, *values: Any
    ) -> list[Row]:
        """Carry out a step that signs the row with a letter, and answers with what then stands in a column."""
        assert isinstance(transaction, MysqlTransaction)
        *given, letter = values
        key = (values[0], values[1])
        transaction.told = transaction.ear = None
        if not step(transaction, *given):
            return NONE_CHANGED
        self.signed[key] = (letter, transaction.told)
        lease = self.rows[key].lease
        assert lease is not None
        transaction.number = lease[number]
        return [(1, transaction.number)]

    def _hears(self, channel: str) -> bool:
        return channel in self.ears

    def _told(self, transaction: Transaction, channel: str, payload: str) -> bool:  # noqa: ARG002 -- a letter says it
        assert isinstance(transaction, MysqlTransaction)
        transaction.told = channel if self._hears(channel) else None
        return transaction.told is not None

    def _tell_handed(self, transaction: Transaction, namespace: str, name: str, letter: str) -> list[Row]:
        assert isinstance(transaction, MysqlTransaction)
        lease, (signed, told) = self.rows[namespace, name].lease, self.signed.get((namespace, name), ("", None))
        if lease is None or signed != letter or lease[TOKEN] != transaction.number or told is None:
            return NONE_CHANGED
        return self._left(transaction, told, letter, f"{lease[HOLDER]} {lease[TOKEN]}")

    def _tell_next(self, transaction: Transaction, namespace: str, name: str, letter: str) -> list[Row]:
        rows, (signed, told) = self.rows[namespace, name], self.signed.get((namespace, name), ("", None))
        if rows.lease is None or signed != letter or rows.lease[HOLDER] is not None or told is None or not rows.front:
            return NONE_CHANGED
        holder, address = rows.front[0][0], rows.front[0][5]
        return self._left(transaction, address, letter, holder) if told == address else NONE_CHANGED

    def _left(self, transaction: Transaction, address: str, letter: str, said: str) -> list[Row]:
        assert isinstance(transaction, MysqlTransaction)
        transaction.ear = address
        transaction.news.append((f"{address} {letter}", said))
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
        return [(f"{letter} {holder}",) for (at, letter), (holder, _) in sorted(new.items()) if at == address]

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


def _is_given_back(lease: Sequence[Any] | None) -> TypeGuard[list[Any]]:
    """Whether nobody has the name, whatever the clock says."""
    return lease is not None and lease[HOLDER] is None
