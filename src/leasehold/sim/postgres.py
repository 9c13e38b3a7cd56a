"""The lease mode of PostgreSQL in the simulated world: the engine's own code before a model of its tables.

Simulated are connections that deliver in order or break, transactions that stay open when their client is gone (and are
ended by the server after a while), rows that others have locked, NOTIFY, and a wall clock that can be set. The bytes of
PostgreSQL's protocol are not: a statement travels as it is, known by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, cast

from leasehold.engines.postgres import PostgresEngine, PostgresFamily
from leasehold.errors import NotSupported
from leasehold.sim.bells import SimBell
from leasehold.sim.history import Event, Freed, Granted, Left, Queued, Unqueued
from leasehold.sim.network import Channel, Link, Network
from leasehold.sim.postgres_model import (
    CLOSED_UNTIL,
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
from leasehold.sim.scheduler import PARK
from leasehold.sim.server import FIRST_SECOND
from leasehold.sim.site import Site
from leasehold.sim.sockets import SimSockets
from leasehold.sim.world import SimWorld
from leasehold.wires.postgres import PostgresWire
from leasehold.wires.postgres_errors import cut_off, unanswered, unreachable
from leasehold.wires.postgres_tables import LOCK_TIMEOUT_MS, STALL_MS
from leasehold.wires.postgres_target import target_from_url
from leasehold.wires.sql_listen import Ear, Listener, Waiter, key_of, new_channel
from leasehold.wires.sql_pool import Pool
from leasehold.wires.sql_table import Raced, Request, Row

TARGET: Final = target_from_url("postgresql://worker@one/shop")
GONE: Final = object()
REFUSED: Final = object()
NOTHING: Final = object()


class Backend:
    """The server's side of one connection."""

    def __init__(self, site: PostgresSite, answer: Callable[[object], object]) -> None:
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
                self._site.later(LOCK_TIMEOUT_MS / 1000, partial(self._lock_timeout, self._turn))
                return
            except Duplicate:
                self._refuse(Raced)
                return
            self._asked.pop(0)
            self._answers.append(rows)
        if self.is_over:
            return
        self._turn += 1
        if self.transaction.open:
            turn = self._turn
            self._site.later(STALL_MS / 1000, lambda: self.end() if turn == self._turn else None)
        self._answer(self._answers)

    def _refuse(self, why: object) -> None:
        self._asked = []
        self._turn += 1
        self._database.end(self.transaction, commit=False)
        self._answer(why)

    def _lock_timeout(self, turn: int) -> None:
        if turn == self._turn and not self.is_over:
            self._site.stop_waiting(self)
            self._refuse(REFUSED)

    def end(self) -> None:
        """The connection is over: what was not committed is undone."""
        if not self.is_over:
            self.is_over = True
            self._site.stop_waiting(self)
            self._database.listening.discard(key_of(self.channel) or 0)
            self._database.end(self.transaction, commit=False)
            self._answer(GONE)


class PostgresSite(Site):
    """One server."""

    linger = 2.0

    def __init__(self, network: Network, events: list[Event], rate: float) -> None:
        super().__init__(network, events, rate)
        self.shift = FIRST_SECOND
        self.set_back = 0.0
        self.database = Database(self.clock)
        self.database.committed, self.database.notify = self._note, self._notify
        self.database.freed = self._freed
        self._backends: dict[Link, list[Backend]] = {}
        self._waiting: dict[Key, list[Backend]] = {}
        self._how = "released"
        self.channels = 0

    def family(self, world: SimWorld) -> SimPostgresFamily:
        """The engine's own family over simulated connections."""
        return SimPostgresFamily(world, self)

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
        backend = Backend(self, answer)
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

    def _notify(self, channel: str, payload: str) -> None:
        for backends in self._backends.values():
            for backend in backends:
                if backend.channel == channel and not backend.is_over:
                    backend._answer((channel, payload))

    def hung_up(self, link: Link) -> None:
        """The other end of a connection is gone, and said so."""
        for backend in self._backends.pop(link, ()):
            backend.end()

    def stopped(self, *, wipe: bool) -> None:  # noqa: ARG002 -- a crash of the disk is not simulated
        """What was not committed is undone."""
        for link in list(self._backends):
            self.hung_up(link)

    # What the judges see

    def _note(self, key: Key, before: Rows, after: Rows) -> None:
        now, clock, name, events = self.scheduler.now, self.clock(), key[1], self.events
        old, new = _seats(before), _seats(after)
        for (holder, token), (_, expires, delay) in old.items():
            if (holder, token) not in new:
                lapsed = expires <= clock
                # What was given back in time may be committed later: whether it was lost, the row says.
                closed_before, is_now = (rows.lease[CLOSED_UNTIL] if rows.lease else 0 for rows in (before, after))
                closed = is_now if delay and is_now > closed_before else 0
                until = (closed / 1_000_000 - self.shift) / self.rate if closed else 0.0
                events.append(Freed(now, name, holder, "lapsed" if lapsed else self._how, until))
        for (holder, token), (mode, _, _) in new.items():
            if (holder, token) not in old:
                events.append(Granted(now, name, holder, token, mode))
        was, still = [one[1] for one in before.waiters.values()], [one[1] for one in after.waiters.values()]
        events.extend(Unqueued(now, name, gone, self._how) for gone in was if gone not in still)
        events.extend(Queued(now, name, come) for come in still if come not in was)

    def force_release(self, name: str) -> object:
        """Not among the faults of this engine."""
        raise NotSupported(f"nobody breaks {name!r} in this simulation")

    def leftovers(self) -> list[Left]:
        """Every lease must have run out by now, and every place soon will have."""
        now, clock = self.scheduler.now, self.clock() + round(self.set_back * 1_000_000)
        return [
            Left(now, name, holder, "seat")
            for (_, name), rows in self.database.rows.items()
            for (holder, _), (_, expires, _) in _seats(rows).items()
            if expires > clock
        ]


def _seats(rows: Rows) -> dict[tuple[str, int], tuple[Any, int, int]]:
    found = {(one[0], one[1]): (one[2], one[4], one[7]) for one in rows.seats.values()}
    lease = rows.lease
    if lease is not None and lease[HOLDER] is not None:
        found[lease[HOLDER], lease[TOKEN]] = ("exclusive", lease[EXPIRES], lease[DELAY])
    return found


class SimLine:
    """The client's side of one connection: implements the lines of `leasehold.engines.sql_lease` and `sql_listen`."""

    def __init__(self, world: SimWorld, site: PostgresSite, link: Link) -> None:
        self._world, self._site, self._link, self._epoch = world, site, link, link.epoch
        self._there = Channel(site.network, link, self._arrives, to_process=False)
        self._back = Channel(site.network, link, self._comes_back, to_process=True)
        self._backend = site.accept(link, self._back.send)
        self._bell: SimBell | None = None
        self._answer: object = NOTHING
        self._heard: list[tuple[str, str]] = []
        self.news: Callable[[], object] = lambda: None
        self.is_open, self.socket = True, 1
        link.sockets.append(self)

    def _arrives(self, requests: object) -> None:
        self._site.receive(self._link, self._epoch, self._serve, requests)

    def _serve(self, requests: object) -> None:
        if self._backend.is_over:
            return
        if requests is None:
            self._backend.end()
        elif isinstance(requests, str):
            self._backend.channel = requests
            self._site.database.listening.add(key_of(requests) or 0)
            self._back.send([])
        else:
            self._backend.ask(cast(Sequence[Request], requests))

    def _comes_back(self, answer: object) -> None:
        if isinstance(answer, tuple):
            self._heard.append(answer)
            self.news()
            return
        if answer is GONE:
            self.broke()
            return
        self._answer = answer
        if self._bell is not None:
            self._bell.ring()

    def broke(self) -> None:
        """The connection broke."""
        self.is_open = False
        if self._bell is not None:
            self._bell.ring()
        self.news()

    async def send(self, what: object, until: float, *, commits: bool) -> object:
        """Send something and return its answer."""
        if not self.is_open:
            raise unreachable(TARGET.address, "the connection broke")
        if self._world.now() >= until:
            raise unreachable(TARGET.address, "there was no time left to ask")
        self._bell, self._answer = SimBell(self._world), NOTHING
        self._there.send(what)
        try:
            while self._answer is NOTHING and self.is_open:
                if not await self._bell.wait(until):
                    break
        except BaseException:
            self.close()
            raise
        answer = self._received()
        if answer is NOTHING:
            failed = unanswered if self.is_usable() else cut_off
            self.close()
            raise failed(TARGET.address, commits=commits)
        if answer is Raced:
            self.close()
            raise Raced
        if answer is REFUSED:
            self.close()
            raise unreachable(TARGET.address, "a row was locked for too long")
        return answer

    def _received(self) -> object:
        return self._answer

    async def ask_all(self, requests: Sequence[Request], until: float, *, commits: bool) -> list[list[Row]]:
        """Send statements together and return the rows of each."""
        return cast(list[list[Row]], await self.send(list(requests), until, commits=commits))

    async def ask(self, request: Request, until: float) -> list[Row]:
        """Send one statement, a transaction of its own."""
        return (await self.ask_all([request], until, commits=True))[0]

    def notifications(self) -> list[tuple[str, str]]:
        """Channels and payloads that have come."""
        if not self.is_open and not self._heard:
            raise ConnectionError
        heard, self._heard = self._heard, []
        return heard

    def is_usable(self) -> bool:
        """Whether it can carry a request."""
        return self.is_open and not self._backend.is_over

    def close(self) -> None:
        """Close it; the server hears of that when it gets there."""
        if self.is_open:
            self.is_open = False
            self._there.send(None)
        if self in self._link.sockets:
            self._link.sockets.remove(self)

    def let_go(self) -> None:
        """Nobody forks here."""


class SimListener(Listener):
    """Tasks sleep until the simulated connection has heard of them."""

    def _opened(self, ear: Ear) -> None:
        if ear.line is not None:
            cast(SimLine, ear.line).news = lambda: self._read(ear)

    async def _wait(self, holder: str, waiter: Waiter, until: float) -> None:  # noqa: ARG002 -- the bell knows it
        while not waiter.woken and await waiter.bell.wait(until):
            continue


class SimPostgresWire(PostgresWire):
    """The engine's own wire, over simulated connections."""

    def __init__(self, sockets: SimSockets, site: PostgresSite, link: Link) -> None:
        self.world = sockets.world
        self._own, self._site, self._link = sockets, site, link
        self._pool = cast(Any, Pool(cast(Any, sockets), self._connected, TARGET.address))
        self._listener = SimListener(cast(Any, sockets), self._open_ear)
        self.lend, self.give_back = self._pool.lend, self._pool.give_back
        self._lines: list[SimLine] = []

    async def _connected(self, until: float) -> SimLine:
        scheduler = self._own.world.scheduler
        give_up_at = self._own.world.true_time(until)
        if not self._link.cut:
            scheduler.resume_at(
                min(scheduler.now + 2 * self._site.network.delay(), give_up_at), scheduler.current, True
            )
        scheduler.resume_at(give_up_at, scheduler.current)
        if await PARK is None or self._link.cut:
            raise unreachable(TARGET.address, "no answer in time")
        if self._site.down:
            raise unreachable(TARGET.address, "connection refused")
        line = SimLine(self._own.world, self._site, self._link)
        self._lines.append(line)
        return line

    async def _open_ear(self, until: float) -> Ear:
        line = await self._connected(until)
        self._site.channels += 1
        channel = new_channel(f"{self._site.channels:016x}")
        await line.send(channel, until, commits=False)
        return Ear(cast(Any, line), channel)


class SimPostgresFamily(PostgresFamily):
    """The engine's own family, with simulated connections."""

    def __init__(self, world: SimWorld, site: PostgresSite) -> None:
        super().__init__(TARGET, "", world.inside.label)
        self._world, self._site = world, site
        self.links: list[Link] = []

    def blocking(self) -> PostgresEngine:
        """Not another world here."""
        return self.asyncio()

    def asyncio(self) -> PostgresEngine:
        """An engine with connections of its own."""
        process = self._world.inside
        link = self._site.network.connect(process, f"{process.label}/{len(self.links) + 1}")
        self.links.append(link)
        sockets = SimSockets(self._world, self._site.network, self._site, self.links)
        return self._engine(SimPostgresWire(sockets, self._site, link))
