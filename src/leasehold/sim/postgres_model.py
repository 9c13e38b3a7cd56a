"""What PostgreSQL does with the statements of its engine: rows that are locked, transactions, a clock that can be set.

Each statement is known by its name, and does here what its SQL does there. That this is the same is shown by way of the
lease table: a state machine compares the engine on this model with it, as others do the engine on real servers.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from typing import Any

from leasehold.core.table import LATENESS, LONGEST_SILENCE, NEAR, PROMPT, SLACK, TURN
from leasehold.wires.postgres_tables import dialect_of
from leasehold.wires.sql_listen import key_of
from leasehold.wires.sql_table import BEYOND, FIELDS, KEEP_IDLE, SWEEP_AT_ONCE, Front, Request, Row
from leasehold.wires.sqlite_rows import QUEUE

Key = tuple[str, str]
DECIDING = frozenset(
    {
        "clock", "take_free", "take_known", "queue", "take_turn", "release_alone", "hand_over", "release_to_next",
    }
)  # fmt: skip
"""Statements that read the clock for what is decided by them, or in the program after them."""
TOKEN, TURN_SINCE, CLOSED_UNTIL, CROWD, HOLDER, SINCE, EXPIRES, LASTS, BEAT, DELAY, ABOUT = range(11)


class Blocked(Exception):
    """Another transaction has locked a row that is needed."""

    def __init__(self, key: Key) -> None:
        super().__init__(key)
        self.key = key


class Duplicate(Exception):
    """A row with this key is there already; the transaction is over."""


class Rows:
    """All that is stored of one name."""

    def __init__(self) -> None:
        self.lease: list[Any] | None = None
        self.seats: dict[int, list[Any]] = {}
        self.front: list[list[Any]] = []
        """The places that stand in the row, each as in `waiters` but without a number."""
        self.lapses = 0
        """Before this none of them runs out."""
        self.waiters: dict[int, list[Any]] = {}

    @property
    def queue(self) -> list[list[Any]]:
        """All who wait, in their order, as in `waiters` but without their numbers."""
        return self.front + [one[1:] for _, one in sorted(self.waiters.items())]


class Transaction:
    """What one connection has locked, changed, and will say when it commits."""

    def __init__(self) -> None:
        self.open = False
        self.before: dict[Key, Rows] = {}
        self.news: list[tuple[str, str]] = []
        self.decided = 0
        """The server's time by which it was last decided what is over and what is not."""


class Database:
    """The tables, and who has locked what."""

    form: Front = dialect_of("public").front
    """How places stand in a name's row."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self.clock, self.base = clock, 0
        self.rows: dict[Key, Rows] = {}
        self.locks: dict[Key, Transaction] = {}
        self.front = self.form.room
        """How many places there is room for in a name's row."""
        self.listening: set[int] = set()
        """Keys of the advisory locks of those who listen."""
        self.committed: Callable[[Key, Rows, Rows, int], object] = lambda _key, _before, _after, _decided: None
        self.notify: Callable[[str, str], object] = lambda _channel, _payload: None
        self.freed: Callable[[Key], object] = lambda _key: None

    def row_of(self, rows: Rows) -> Row:
        """A name's row as it is read."""
        assert rows.lease is not None
        texts = [str(value) for place in rows.front for value in place]
        return (*rows.lease, self.form.written(texts), rows.lapses)

    def put_row(self, rows: Rows, row: Sequence[Any]) -> None:
        """Have a name's row as it is written."""
        *rows.lease, front, rows.lapses = row
        rows.front = _places(self.form.texts_in(front))

    # Transactions

    def lock(self, transaction: Transaction, key: Key) -> Rows:
        """Lock all that belongs to a name until the transaction ends; raises `Blocked`."""
        if self.locks.setdefault(key, transaction) is not transaction:
            raise Blocked(key)
        rows = self.rows.setdefault(key, Rows())
        if key not in transaction.before:
            transaction.before[key] = copy.deepcopy(rows)
        return rows

    def end(self, transaction: Transaction, *, commit: bool) -> None:
        """Commit, or undo."""
        before, transaction.before, transaction.open = transaction.before, {}, False
        news, transaction.news = transaction.news, []
        for key, rows in before.items():
            if not commit:
                self.rows[key] = rows
            del self.locks[key]
        if commit:
            for key, rows in before.items():
                self.committed(key, rows, self.rows[key], transaction.decided)
            for channel, payload in news:
                self.notify(channel, payload)
        for key in before:
            self.freed(key)

    def carry_out(self, transaction: Transaction, request: Request) -> list[Row]:
        """One statement; on its own it is a transaction of its own."""
        name = request.statement.name.removeprefix("leasehold_")
        if name in ("begin", "read"):
            transaction.open = True
            return []
        if name == "commit":
            self.end(transaction, commit=True)
            return []
        if name in DECIDING:
            transaction.decided = self.clock()
        rows: list[Row] = getattr(self, f"_{name}")(transaction, *request.values)
        if not transaction.open:
            self.end(transaction, commit=True)
        return rows

    # Statements of the lease table

    def _lazily(self, _transaction: Transaction) -> list[Row]:
        return [("off",)]

    def _lock_lease(self, transaction: Transaction, namespace: str, name: str) -> list[Row]:
        key = (namespace, name)
        if self.rows.get(key, Rows()).lease is None and self.locks.get(key, transaction) is transaction:
            return []
        rows = self.lock(transaction, key)
        return [] if rows.lease is None else [self.row_of(rows)]

    def _clock(self, _transaction: Transaction) -> list[Row]:
        return [(self.clock(), self.base, "")]

    def _seats(self, _transaction: Transaction, namespace: str, name: str) -> list[Row]:
        rows = self.rows.get((namespace, name), Rows())
        return [tuple(seat) for _, seat in sorted(rows.seats.items())]

    def _places(
        self, _transaction: Transaction, namespace: str, name: str, after: int, limit: int, holder: str
    ) -> list[Row]:
        waiters = [one for _, one in sorted(self.rows.get((namespace, name), Rows()).waiters.items())]
        head = [(0, *one) for one in waiters if one[0] > after][:limit]
        return [*head, *((1, *one) for one in waiters if one[1] == holder)]

    def _add_lease(self, transaction: Transaction, namespace: str, name: str, *row: Any) -> list[Row]:
        rows = self.lock(transaction, (namespace, name))
        if rows.lease is not None:
            raise Duplicate
        self.put_row(rows, row)
        return []

    def _put_lease(self, transaction: Transaction, namespace: str, name: str, *row: Any) -> list[Row]:
        self.put_row(self.lock(transaction, (namespace, name)), row)
        return []

    def _add_seat(self, transaction: Transaction, namespace: str, name: str, *row: Any) -> list[Row]:
        self.lock(transaction, (namespace, name)).seats[row[1]] = list(row)
        return []

    def _put_seat(self, transaction: Transaction, namespace: str, name: str, token: int, *row: int) -> list[Row]:
        self.lock(transaction, (namespace, name)).seats[token][4:7] = row
        return []

    def _drop_seat(self, transaction: Transaction, namespace: str, name: str, token: int) -> list[Row]:
        self.lock(transaction, (namespace, name)).seats.pop(token, None)
        return []

    def _add_place(self, transaction: Transaction, namespace: str, name: str, *row: Any) -> list[Row]:
        waiters = self.lock(transaction, (namespace, name)).waiters
        seq = max(waiters, default=0) + 1
        waiters[seq] = [seq, *row]
        return []

    def _put_place(self, transaction: Transaction, *values: Any) -> list[Row]:
        namespace, name, seq, *changed = values
        self.lock(transaction, (namespace, name)).waiters[seq][5:7] = changed
        return []

    def _drop_place(self, transaction: Transaction, namespace: str, name: str, seq: int) -> list[Row]:
        self.lock(transaction, (namespace, name)).waiters.pop(seq, None)
        return []

    def _read_lease(self, _transaction: Transaction, namespace: str, name: str) -> list[Row]:
        rows = self.rows.get((namespace, name), Rows())
        return [] if rows.lease is None else [self.row_of(rows)]

    def _names(self, _transaction: Transaction, namespace: str, after: str, limit: int) -> list[Row]:
        now, found = self.clock(), []
        for (space, name), rows in sorted(self.rows.items()):
            held = rows.lease is not None and rows.lease[HOLDER] is not None and rows.lease[EXPIRES] > now
            held = held or any(seat[4] > now for seat in rows.seats.values())
            if space == namespace and name > after and (held or any(one[4] > now for one in rows.queue)):
                found.append((name,))
        return found[:limit]

    def _page(self, _transaction: Transaction, *after: str) -> list[Row]:
        now = self.clock()
        return [
            (*key, rows.lease[TOKEN], self._is_idle(rows.lease), rows.lease[CROWD] and _is_old(rows.lease, now))
            for key, rows in sorted(self.rows.items())
            if key > after and rows.lease is not None
        ][:SWEEP_AT_ONCE]

    def _is_idle(self, lease: Sequence[Any]) -> bool:
        now = self.clock()
        old = lease[EXPIRES] <= now - KEEP_IDLE and lease[EXPIRES] + lease[DELAY] <= now
        over = lease[HOLDER] is None or old
        return bool(not lease[CROWD] and _is_old(lease, now) and lease[CLOSED_UNTIL] <= now and over)

    def _raise_base(self, _transaction: Transaction, base: int) -> list[Row]:
        self.base = max(self.base, base)
        return []

    def _forget(self, transaction: Transaction, namespace: str, name: str, token: int) -> list[Row]:
        rows = self.lock(transaction, (namespace, name))
        if rows.lease is not None and rows.lease[TOKEN] == token and self._is_idle(rows.lease):
            rows.lease = None
        return []

    # Statements of PostgreSQL's engine

    def _take_free(self, transaction: Transaction, *values: Any) -> list[Row]:
        namespace, name, holder, ttl, delay, about = values
        rows, now = self.lock(transaction, (namespace, name)), self.clock()
        lease = rows.lease
        if lease is None:
            token = max(self.base + 1, now)
            rows.lease = [token, now, 0, 0, holder, now, now + ttl, ttl, 0, delay, about]
            return [(token, holder)]
        if lease[CROWD] or not _is_free(lease, now):
            return []
        return [(_seated(lease, now, values), holder)]

    def _take_known(self, transaction: Transaction, *values: Any) -> list[Row]:
        lease, now = self.lock(transaction, values[:2]).lease, self.clock()
        if lease is None or lease[CROWD] or not _is_free(lease, now):
            return []
        return [(_seated(lease, now, values), values[2])]

    def _release_alone(self, transaction: Transaction, namespace: str, name: str, holder: str) -> list[Row]:
        lease, now = self.lock(transaction, (namespace, name)).lease, self.clock()
        if lease is None or lease[HOLDER] != holder or lease[CROWD] or lease[EXPIRES] <= now:
            return []
        lease[HOLDER], lease[TURN_SINCE] = None, now
        return [(1,)]

    def _take_turn(self, transaction: Transaction, *values: Any) -> list[Row]:
        namespace, name, holder, ttl, _, _ = values
        rows, now = self.lock(transaction, (namespace, name)), self.clock()
        lease, front = rows.lease, rows.front
        if lease is None or not _can_move_up(rows, now) or front[0][0] != holder or not _is_free(lease, now):
            return []
        if any(one[4] > now + ttl + LATENESS + SLACK for one in front[1:2]):
            return []
        return [(_moved_up(rows, now, values), holder)]

    def _queue(self, transaction: Transaction, *values: Any) -> list[Row]:
        namespace, name, holder, mode, most, patience, address, about, ttl, delay = values
        rows, now = self.lock(transaction, (namespace, name)), self.clock()
        lease, front = rows.lease, rows.front
        if lease is None or lease[HOLDER] in (None, holder) or lease[EXPIRES] <= now or lease[TURN_SINCE] > now:
            return []
        if lease[CROWD] not in (0, QUEUE) or len(front) >= self.front or _stands_in(front, holder):
            return []
        if lease[CROWD] and rows.lapses <= now:
            return []
        rank = len(front)
        free_in = min(max(lease[EXPIRES], lease[CLOSED_UNTIL]) - now, lease[LASTS])
        free_in += rank * TURN if rank > NEAR else 0
        silence = min(rank * (rank + 1) // 2 * TURN, LONGEST_SILENCE) if rank else LONGEST_SILENCE
        ask_again = max(min(free_in, silence), 1)
        until = now + min(patience, ask_again) + LATENESS
        front.append([holder, mode, most, now, until, address, about, ttl, delay])
        rows.lapses = min(rows.lapses, now + LATENESS) if lease[CROWD] else now + LATENESS
        lease[CROWD] = QUEUE
        return [(ask_again, lease[TOKEN], lease[BEAT], lease[LASTS], lease[ABOUT], "off")]

    def _hand_over(self, transaction: Transaction, namespace: str, name: str, holder: str) -> list[Row]:
        rows, now = self.lock(transaction, (namespace, name)), self.clock()
        lease, front = rows.lease, rows.front
        if lease is None or not _can_move_up(rows, now) or not _gives_back(lease, front, holder, now):
            return []
        to, _, _, _, _, address, about, lasts, delay = front[0]
        if lease[CLOSED_UNTIL] > now or not _may_be_handed(lease, front, now) or not self._hears(address):
            return []
        _moved_up(rows, now, (namespace, name, to, lasts, delay, about))
        self._told(transaction, address, f"{to} {lease[TOKEN]}")
        return [(lease[CROWD], "", None)]

    def _release_to_next(self, transaction: Transaction, namespace: str, name: str, holder: str) -> list[Row]:
        rows, now = self.lock(transaction, (namespace, name)), self.clock()
        lease, front = rows.lease, rows.front
        if lease is None or not _gives_back(lease, front, holder, now):
            return []
        waits = lease[CROWD] in (QUEUE, QUEUE | BEYOND) and front and rows.lapses > now
        if lease[CROWD] and not waits:
            return []
        head: list[Any] = front[0] if front else [None] * FIELDS
        lease[HOLDER], lease[TURN_SINCE], told = None, now, True
        if front and lease[CLOSED_UNTIL] <= now and head[5]:
            told = self._told(transaction, head[5], head[0])
        return [(lease[CROWD], told, "off", *[None if value is None else str(value) for value in head])]

    def _hears(self, channel: str) -> bool:
        """Whether somebody listens there."""
        return key_of(channel) in self.listening

    def _told(self, transaction: Transaction, channel: str, payload: str) -> bool:
        """Tell whoever listens there, if anybody does, when this is committed."""
        if not self._hears(channel):
            return False
        transaction.news.append((channel, payload))
        return True

    def _wake(self, transaction: Transaction, channel: str, payload: str, _key: int) -> list[Row]:
        return [(self._told(transaction, channel, payload),)]

    def _renew_lease(self, transaction: Transaction, namespace: str, asked: str) -> list[Row]:
        now, kept = self.clock(), []
        for one in json.loads(asked):
            lease = self.lock(transaction, (namespace, one["name"])).lease
            if lease and (lease[HOLDER], lease[TOKEN]) == (one["holder"], one["token"]) and lease[EXPIRES] > now:
                lease[LASTS] = max(lease[LASTS], one["ttl"])
                lease[EXPIRES], lease[BEAT] = now + lease[LASTS], lease[BEAT] + 1
                kept.append((one["holder"], one["token"]))
        return kept

    def _renew_seat(self, transaction: Transaction, namespace: str, asked: str) -> list[Row]:
        now, kept = self.clock(), []
        for one in json.loads(asked):
            seat = self.lock(transaction, (namespace, one["name"])).seats.get(one["token"])
            if seat is not None and seat[0] == one["holder"] and seat[4] > now:
                seat[5] = max(seat[5], one["ttl"])
                seat[4], seat[6] = now + seat[5], seat[6] + 1
                kept.append((one["holder"], one["token"]))
        return kept


def _is_old(lease: Sequence[Any], now: int) -> bool:
    return bool(lease[TURN_SINCE] <= now - KEEP_IDLE)


def _is_free(lease: Sequence[Any], now: int) -> bool:
    over = lease[HOLDER] is None or (lease[EXPIRES] <= now and not lease[DELAY])
    return bool(lease[CLOSED_UNTIL] <= now and over)


def _gives_back(lease: Sequence[Any], front: Sequence[Sequence[Any]], holder: str, now: int) -> bool:
    return bool(lease[HOLDER] == holder and lease[EXPIRES] > now and not _stands_in(front, holder))


def _stands_in(front: Sequence[Sequence[Any]], holder: str) -> bool:
    return any(holder in map(str, place) for place in front)


def _can_move_up(rows: Rows, now: int) -> bool:
    """Whether the head of the queue stands in the row, and the one behind it, if there is any."""
    assert rows.lease is not None
    needed = {QUEUE: 1, QUEUE | BEYOND: 2}.get(rows.lease[CROWD])
    return needed is not None and len(rows.front) >= needed and rows.lapses > now


def _may_be_handed(lease: Sequence[Any], waiting: Sequence[Sequence[Any]], now: int) -> bool:
    """Whether the head of the queue has only just asked, and the one behind it looks by itself in time."""
    _, mode, _, since, _, _, _, lasts, _ = waiting[0]
    promptly = since <= now < since + min(PROMPT, lasts // 8)
    sleeps = any(one[4] > now + lasts + LATENESS + SLACK for one in waiting[1:2])
    return bool(mode == "exclusive" and lease[TOKEN] < now and promptly and not sleeps)


def _moved_up(rows: Rows, now: int, values: tuple[Any, ...]) -> int:
    """Give the name to the head of the queue, which leaves that; returns the token."""
    assert rows.lease is not None
    token = _seated(rows.lease, now, values)
    del rows.front[0]
    if not rows.front:
        rows.lease[CROWD] = 0
    return token


def _places(texts: Sequence[str]) -> list[list[Any]]:
    """What stands in the row, with times as numbers."""
    places = zip(*[iter(texts)] * FIELDS, strict=True)
    return [
        [holder, mode, int(most), int(since), int(until), address, about, int(lasts), int(delay)]
        for holder, mode, most, since, until, address, about, lasts, delay in places
    ]


def _seated(lease: list[Any], now: int, values: tuple[Any, ...]) -> int:
    """Give the name to who asks; returns the token."""
    _, _, holder, ttl, delay, about = values
    token = max(lease[TOKEN] + 1, now)
    lease[TOKEN], lease[TURN_SINCE] = token, now
    lease[HOLDER:] = [holder, now, now + ttl, ttl, 0, delay, about]
    return int(token)
