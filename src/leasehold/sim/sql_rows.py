"""Leases in the tables of a simulated SQL server: connections, transactions, locked rows, a wall clock.

Transactions stay open when their client is gone, until the server ends them. What each statement does to the rows is
the business of a model of the server's own.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from leasehold.sim.history import Event, Freed, Granted, Left, Queued, Unqueued
from leasehold.sim.network import Link, Network
from leasehold.sim.postgres_model import (
    DELAY,
    EXPIRES,
    HOLDER,
    TOKEN,
    Blocked,
    Database,
    Duplicate,
    Key,
    Rows,
    Transaction,
)
from leasehold.sim.server import FIRST_SECOND
from leasehold.sim.site import Site
from leasehold.sim.sql_lines import GONE, REFUSED
from leasehold.wires.sql_table import Dialect, Raced, Request, Row

ROOM: Final = 2
"""How many of a queue may stand in a name's row here: so few that others often stand beyond it."""


def with_little_room(dialect: Dialect) -> Dialect:
    """A dialect as it is used here."""
    return dialect._replace(front=dialect.front._replace(room=ROOM))


class Backend:
    """The server's side of one connection."""

    keeps_locks_after_error = False
    """Whether a transaction of which a statement failed goes on, with all that it has locked."""

    def __init__(self, site: RowsSite, answer: Callable[[object], object]) -> None:
        self._site, self._database, self._answer = site, site.database, answer
        self.transaction = Transaction()
        self._asked: list[Request] = []
        self._answers: list[list[Row]] = []
        self._turn = 0
        self.channel = ""
        self.is_over = False

    def ask(self, requests: Sequence[Request]) -> None:
        """Carry out statements one after the other."""
        self._turn += 1
        self._asked, self._answers = list(requests), []
        self.go_on()

    def go_on(self) -> None:
        """Carry out what is left, up to where somebody else has locked a row."""
        database = self._database
        while self._asked and not self.is_over:
            try:
                rows = database.carry_out(self.transaction, self._asked[0])
            except Blocked as blocked:
                self._site.wait_for(blocked.key, self)
                self._site.later(self._site.lock_timeout, partial(self._lock_timeout, self._turn))
                return
            except Duplicate:
                self._refuse(Raced)
                return
            self._asked.pop(0)
            self._answers.append(rows)
        if self.is_over:
            return
        self._rest()
        self._answer(self._answers)

    def _rest(self) -> None:
        """Wait for the client to go on; in a transaction not for long."""
        self._turn += 1
        if self.transaction.open:
            turn = self._turn
            self._site.later(self._site.stall, lambda: self.end() if turn == self._turn else None)

    def _refuse(self, why: object) -> None:
        self._asked = []
        if not self.keeps_locks_after_error:
            self._database.end(self.transaction, commit=False)
        self._rest()
        self._answer(why)

    def _lock_timeout(self, turn: int) -> None:
        if turn == self._turn and not self.is_over:
            self._site.stop_waiting(self)
            self._refuse(REFUSED)

    def hang_up(self) -> None:
        """The client has closed it."""
        self.end()

    def end(self) -> None:
        """The connection is over: what was not committed is undone."""
        if not self.is_over:
            self.is_over = True
            self._site.stop_waiting(self)
            self._site.deaf(self)
            self._database.end(self.transaction, commit=False)
            self._answer(GONE)


class RowsSite(Site):
    """One server."""

    linger = 2.0
    lock_timeout: float
    """For how long a statement waits for a row."""
    stall: float
    """For how long a transaction may stand still."""

    def __init__(self, network: Network, events: list[Event], rate: float) -> None:
        super().__init__(network, events, rate)
        self.shift = FIRST_SECOND
        self.set_back = 0.0
        self.database = self._new_database()
        self.database.front = ROOM
        self.database.committed, self.database.freed = self._note, self._freed
        self._backends: dict[Link, list[Backend]] = {}
        self._waiting: dict[Key, list[Backend]] = {}
        self.listeners = 0

    @abstractmethod
    def _new_database(self) -> Database:
        """The tables, with nothing in them."""

    @abstractmethod
    def deaf(self, backend: Any) -> None:
        """A backend that may have listened for wake-ups is over."""

    @abstractmethod
    def _new_backend(self, answer: Callable[[object], object]) -> Backend:
        """The server's side of a connection."""

    def clock(self) -> int:
        """The server's wall clock, in microseconds."""
        return int((self.scheduler.now * self.rate + self.shift) * 1_000_000)

    def set_clock(self, seconds: float) -> None:
        """Set the clock forward, or back."""
        self.shift += seconds
        self.set_back += max(-seconds, 0.0)

    def later(self, seconds: float, call: Callable[[], object]) -> None:
        """Do something by itself, later."""
        self.scheduler.call_at(self.scheduler.now + seconds, self.when_awake, call)

    def accept(self, link: Link, answer: Callable[[object], object]) -> Backend:
        """Serve a new connection."""
        backend = self._new_backend(answer)
        self._backends.setdefault(link, []).append(backend)
        return backend

    def wait_for(self, key: Key, backend: Backend) -> None:
        """A backend waits for a row that another one has locked."""
        self._waiting.setdefault(key, []).append(backend)

    def stop_waiting(self, backend: Backend) -> None:
        """It waits no more."""
        for waiting in self._waiting.values():
            if backend in waiting:
                waiting.remove(backend)

    def _freed(self, key: Key) -> None:
        waiting = self._waiting.pop(key, [])
        for backend in waiting:
            self.scheduler.call_at(self.scheduler.now, self.when_awake, backend.go_on)

    def hung_up(self, link: Link) -> None:
        """The other end of a connection is gone, and said so."""
        for backend in self._backends.pop(link, ()):
            backend.end()

    def stopped(self, *, wipe: bool) -> None:  # noqa: ARG002 -- a crash of the disk is not simulated
        """What was not committed is undone."""
        for link in list(self._backends):
            self.hung_up(link)

    # What the judges see

    def _note(self, key: Key, before: Rows, after: Rows, decided: int) -> None:
        now, name, events = self.scheduler.now, key[1], self.events
        old, new = _seats(before), _seats(after)
        forced = before.lease is not None and _minted_for_nobody(before.lease, after)
        gone_by = "forced" if forced else "released"
        for (holder, token), (_, expires, delay) in old.items():
            if (holder, token) not in new:
                # What was given back in time may be committed later: it is lost if it was over when that was decided.
                lapsed = expires <= decided
                closed = min(expires, decided) + delay if delay and (lapsed or forced) else 0
                until = (closed / 1_000_000 - self.shift) / self.rate if closed else 0.0
                events.append(Freed(now, name, holder, "lapsed" if lapsed else gone_by, until))
        for (holder, token), (mode, _, _) in new.items():
            if (holder, token) not in old:
                events.append(Granted(now, name, holder, token, mode))
        was, still = [one[0] for one in before.queue], [one[0] for one in after.queue]
        events.extend(Unqueued(now, name, gone, gone_by) for gone in was if gone not in still)
        events.extend(Queued(now, name, come) for come in still if come not in was)

    def leftovers(self) -> list[Left]:
        """Every lease must have run out by now, and every place soon will have."""
        now, clock = self.scheduler.now, self.clock() + round(self.set_back * 1_000_000)
        return [
            Left(now, name, holder, "seat")
            for (_, name), rows in self.database.rows.items()
            for (holder, _), (_, expires, _) in _seats(rows).items()
            if expires > clock
        ]


def _minted_for_nobody(before: Sequence[Any], after: Rows) -> bool:
    """Whether there is a new token that no lease has: only a release by force makes one."""
    minted = after.lease[TOKEN] if after.lease is not None else 0
    return minted > before[TOKEN] and minted not in {token for _, token in _seats(after)}


def _seats(rows: Rows) -> dict[tuple[str, int], tuple[Any, int, int]]:
    found = {(one[0], one[1]): (one[2], one[4], one[7]) for one in rows.seats.values()}
    lease = rows.lease
    if lease is not None and lease[HOLDER] is not None:
        found[lease[HOLDER], lease[TOKEN]] = ("exclusive", lease[EXPIRES], lease[DELAY])
    return found
