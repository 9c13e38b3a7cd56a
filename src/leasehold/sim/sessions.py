"""The session modes of PostgreSQL and MySQL in the simulated world: the engines' own code before a model of locks.

Each lease has a connection of its own, which either side can lose without the other's knowing. A proxy may stand in
between, which keeps a connection when one of its ends is gone, and lets another session of the server serve it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import Any, Final, cast

from leasehold.engines.mysql_session import EARLY, MysqlSessionEngine, MysqlSessionFamily
from leasehold.engines.postgres_session import PostgresSessionEngine, PostgresSessionFamily, key_of
from leasehold.engines.sql_session import SHORTEST_OPENING, SHORTEST_REQUEST
from leasehold.sim.history import Deafened, Event, Freed, Granted, Left, Noticed
from leasehold.sim.network import Link, Network
from leasehold.sim.server import FIRST_SECOND
from leasehold.sim.session_model import Key, MysqlSessions, PostgresSessions, Sessions, TimeIsUp, Token, Waits
from leasehold.sim.site import SimulatedFamily, Site
from leasehold.sim.sockets import SimSockets
from leasehold.sim.sql_lines import GONE, REFUSED, SimLine, connected
from leasehold.sim.world import SimWorld
from leasehold.wires import mysql_target, postgres_target
from leasehold.wires.postgres_tables import CHECK_CLIENT_MS
from leasehold.wires.sql_pins import Pins
from leasehold.wires.sql_table import Request, Row

POSTGRES: Final = postgres_target.target_from_url("postgresql+session://worker@one/shop")
MYSQL: Final = mysql_target.target_from_url("mysql+session://worker@one/shop")
CLOSE_CALL: Final = 0.05
"""So shortly before its time is up, in seconds, a lock may be granted to one who is told that it was not."""
COMMITTED: Final = "leasehold_commit"
"""The statement by which what was set before it is kept, whatever follows."""
LATEST: Final = 0.5
"""What was written within so many seconds may be missing on a server that takes over."""


class SessionBackend:
    """The server's side of one connection."""

    def __init__(self, site: SessionSite, answer: Callable[[object], object]) -> None:
        self._site, self._answer = site, answer
        site.pids += 1
        self.pid, self.locks = site.pids, Counter[Key]()
        self.silence = self.patience = 0.0
        self.in_vain = self.is_over = self.is_mute = self._is_left = False
        self.names: dict[Key, tuple[str, str]] = {}
        """Name and holder of each lock that it was granted with a token."""
        self._settings = (self.silence, self.patience)
        """As they were before what it is asked for now: a transaction that fails takes its settings back."""
        self._asked: list[Request] = []
        self._answers: list[list[Row]] = []
        self._turn = 0
        self.waits_until: float | None = None
        self.whose = ""
        """Who waits, while it does."""

    def ask(self, requests: Sequence[Request]) -> None:
        """Carry out statements one after the other, all that follow the last commit in one transaction."""
        self._settings = (self.silence, self.patience)
        self._asked, self._answers = list(requests), []
        self.go_on()

    def go_on(self) -> None:
        """Carry out what is left, up to where it has to wait for a lock."""
        self._turn += 1
        self.waits_until = None
        while self._asked and not self.is_over:
            try:
                rows = self._site.server.carry_out(self, self._asked[0])
            except Waits as waits:
                self.whose = waits.about
                self.waits_until = self._site.scheduler.now + waits.patience / self._site.rate
                self._site.queue(waits.key, self)
                if waits.patience < inf:
                    self._site.later(waits.patience, partial(self._time_is_up, self._turn))
                return
            except TimeIsUp:
                self.refuse()
                return
            if self._asked.pop(0).statement.name == COMMITTED:
                self._settings = (self.silence, self.patience)
            self._answers.append(rows)
            self.in_vain = False
        self._rest(self._answers)

    def refuse(self) -> None:
        """Fail what it was asked for; a lock that it got meanwhile stays, and what it has set does not."""
        self._asked, self.in_vain, self.waits_until = [], False, None
        self.silence, self.patience = self._settings
        self._turn += 1
        self._rest(REFUSED)

    def _rest(self, answer: object) -> None:
        if self.is_over:
            return
        if self._is_left:
            self.end("released")
            return
        if self.silence:
            self._site.later(self.silence, partial(self._fell_silent, self._turn))
        self._answer(answer)

    def _fell_silent(self, turn: int) -> None:
        if turn == self._turn:
            self.end("lapsed")

    def _time_is_up(self, turn: int) -> None:
        if turn == self._turn and not self.is_over:
            self._site.leave_queue(self)
            self.in_vain = True
            self.go_on()

    def hang_up(self, how: str = "released") -> None:
        """The client has closed it. Who makes it wait for a lock does not look at once whether it is still there."""
        if self.is_over or self._site.proxied:
            return
        if self.waits_until is None:
            self.end(how)
            return
        self._is_left = True
        if self._site.looks_for_clients:
            turn = self._turn
            self._site.later(self._site.looks_for_clients, lambda: self.end("released") if turn == self._turn else None)

    def end(self, how: str) -> None:
        """It is over, and its locks are free."""
        if not self.is_over:
            self.is_over = True
            self._turn += 1
            self._site.leave_queue(self)
            self._site.server.unlock_all(self, how)
            # A proxy keeps a connection that is idle; a request that is under way it cannot give to another session.
            if not self.is_mute and (not self._site.proxied or self.waits_until is not None):
                self._answer(GONE)


class SessionSite(Site):
    """One server."""

    opening = SHORTEST_OPENING + SHORTEST_REQUEST
    looks_for_clients = 0.0
    """How soon it finds out that a client is gone whom it makes wait; 0: not at all."""
    has_close_calls = False
    """Whether it may grant a lock to one whom it tells that the time is up."""
    proxied = False

    def __init__(self, network: Network, events: list[Event], rate: float) -> None:
        super().__init__(network, events, rate)
        self.shift = FIRST_SECOND
        self.pids = self.lines = 0
        self.server = self._new_server()
        self.server.granted, self.server.freed = self._granted, self._freed
        self.server.connection_of = self._by_pid
        self._backends: dict[Link, list[SessionBackend]] = {}
        self._queues: dict[Key, list[SessionBackend]] = {}
        self.collides = False

    @abstractmethod
    def _new_server(self) -> Sessions:
        """The locks and the table, with nothing in them."""

    def arrange(self, kinds: tuple[str, ...]) -> None:
        """A proxy stands before it, or two names have the same key."""
        self.proxied, self.collides = "proxy" in kinds, "collision" in kinds

    def clock(self) -> int:
        """The server's wall clock, in microseconds: it makes tokens, and decides about nothing else."""
        return int((self.scheduler.now * self.rate + self.shift) * 1_000_000)

    def set_clock(self, seconds: float) -> None:
        """Set the clock forward, or back."""
        self.shift += seconds

    def later(self, seconds: float, call: Callable[[], object]) -> None:
        """Do something by itself, after so long on its own clock that nobody can set."""
        self.scheduler.call_at(self.scheduler.now + seconds / self.rate, self.when_awake, call)

    def accept(self, link: Link, answer: Callable[[object], object]) -> SessionBackend:
        """Serve a new connection."""
        backend = SessionBackend(self, answer)
        self._backends.setdefault(link, []).append(backend)
        return backend

    def _by_pid(self, pid: int) -> SessionBackend | None:
        every = (one for backends in self._backends.values() for one in backends)
        return next((one for one in every if one.pid == pid and not one.is_over), None)

    # Locks

    def queue(self, key: Key, backend: SessionBackend) -> None:
        """A connection waits for a lock."""
        self._queues.setdefault(key, []).append(backend)

    def leave_queue(self, backend: SessionBackend) -> None:
        """It waits no more."""
        for waiting in self._queues.values():
            if backend in waiting:
                waiting.remove(backend)

    def _granted(self, connection: Any, key: Key, row: Token) -> None:
        connection.names[key] = (row.name, row.about)
        self.events.append(Granted(self.scheduler.now, row.name, row.about, row.token, "exclusive"))

    def _freed(self, connection: Any, key: Key, how: str) -> None:
        if key in connection.names:
            name, holder = connection.names.pop(key)
            self.events.append(Freed(self.scheduler.now, name, holder, how, 0.0))
        waiting = self._queues.get(key, [])
        if not waiting:
            return
        first = waiting.pop(0)
        in_time = first.waits_until is None or first.waits_until - self.scheduler.now > CLOSE_CALL
        if in_time or not self.has_close_calls or self.network.rng.random() < 0.5:
            first.go_on()
        else:
            self.server.lock(first, key)
            first.refuse()

    # What breaks

    def hung_up(self, link: Link) -> None:
        """The other end of a connection is gone, and said so; a proxy keeps its own to the server."""
        for backend in () if self.proxied else self._backends.pop(link, ()):
            backend.hang_up("broken")

    def stop(self, *, wipe: bool) -> None:
        """Stop serving, for a restart. Who is cut off hears of it later."""
        self.down, self.paused = True, False
        self._backlog = [one for one in self._backlog if one[0] == self.when_awake]
        self._queues.clear()
        for backends in self._backends.values():
            for backend in backends:
                backend.end("broken")
        self._backends.clear()
        if wipe:
            self.server.fail_over(lambda: LATEST * self.network.rng.random())
        for link in [] if self.proxied else self.network.links:
            if not link.cut:
                self.network.break_link(link)

    def lose(self, link: Link) -> None:
        """It loses a connection, and the client does not hear of that; a proxy finds another session for the next."""
        for backend in self._backends.get(link, ()):
            if self.proxied:
                backend.end("broken")
                continue
            backend.is_mute = True
            if backend.waits_until is not None and not backend.is_over:
                self.events.append(Deafened(self.scheduler.now, link.process.label, backend.whose))
        self.hung_up(link)

    def leftovers(self) -> list[Left]:
        """Every lock must be free, or will be soon: the dead may have waited in the queue until now."""
        now = self.scheduler.now
        every = (one for backends in self._backends.values() for one in backends if not one.is_over and not one.silence)
        return [Left(now, name, holder, "seat") for one in every for name, holder in one.names.values()]


class PostgresSessionSite(SessionSite):
    """PostgreSQL."""

    looks_for_clients, has_close_calls = CHECK_CLIENT_MS / 1000, True

    def _new_server(self) -> Sessions:
        return PostgresSessions(self.clock)

    def family(self, world: SimWorld) -> SimulatedFamily:
        """The engine's own family over simulated connections."""
        return SimPostgresSessionFamily(world, self)


class MysqlSessionSite(SessionSite):
    """MySQL or MariaDB."""

    opening = SessionSite.opening + EARLY

    def _new_server(self) -> Sessions:
        return MysqlSessions(self.clock)

    def family(self, world: SimWorld) -> SimulatedFamily:
        """The engine's own family over simulated connections."""
        return SimMysqlSessionFamily(world, self)


class SessionLine(SimLine):
    """A connection that may hold a lock."""

    def __init__(self, world: SimWorld, site: SessionSite, link: Link, address: str) -> None:
        super().__init__(world, site, link, address)
        self._sessions = site

    def _arrives(self, requests: object) -> None:
        """A proxy that reaches no server says so."""
        if self._sessions.proxied and self._sessions.down:
            self._back.send(GONE)
        else:
            super()._arrives(requests)

    def _serve_anew(self, requests: Sequence[Request]) -> None:
        """A proxy finds another session for it."""
        if self._sessions.proxied and not self._sessions.down:
            self.backend = self._sessions.accept(self.link, self._back.send)
            self.backend.ask(requests)
        else:
            super()._serve_anew(requests)


class Host:
    """The connections of one process, each over a link of its own."""

    def __init__(self, world: SimWorld, site: SessionSite, address: str, pins: Pins[Any]) -> None:
        self._world, self._site, self._address, self._pins = world, site, address, pins
        label, network = world.inside.label, site.network
        self._door = network.connect(world.inside, f"{label}/door")
        self.links = [self._door]
        self.sockets = SimSockets(world, network, site, self.links)
        self._lines: list[SessionLine] = []
        """Kept: when Python gets round to closing one must make no difference."""

    async def connect(self, until: float) -> SessionLine:
        """A new connection."""
        world, site = self._world, self._site
        until = max(until, world.now() + SHORTEST_OPENING)
        await connected(world, site, self._door, self._address, until)
        site.lines += 1
        link = site.network.connect(world.inside, f"{world.inside.label}/{site.lines}")
        self.links.append(link)
        line = SessionLine(world, site, link, self._address)
        self._lines.append(line)
        line.closed = partial(self.links.remove, link)
        line.news = partial(self._look, line)
        return line

    def _look(self, line: SessionLine) -> None:
        """The connection broke, and the process can see that."""
        now, who = self._site.scheduler.now, self._world.inside.label
        held = [pin for pin in self._pins.all if pin.line is line and pin.token]
        self._site.events.extend(Noticed(now, who, pin.holder, pin.token) for pin in held)

    def look_for_losses(self, losses: Any) -> None:
        """Start what the keeper's engine does by itself."""
        self._world.scheduler.spawn(losses, self._world.inside, "losses")


class SimPostgresSessionEngine(PostgresSessionEngine):
    """The engine's own; its own task is one of the simulated process."""

    def when_lost(self, tell: Callable[[str], object]) -> None:
        """Have `tell` called with each holder whose connection the server has closed."""
        cast(SimPostgresSessionFamily, self._family).host.look_for_losses(self._look_for_losses(tell))


class SimPostgresSessionFamily(PostgresSessionFamily):
    """The engine's own family, with simulated connections."""

    def __init__(self, world: SimWorld, site: SessionSite) -> None:
        same = site.collides
        super().__init__(
            POSTGRES, "", world.inside.label, key_of=lambda space, name: 1 if same else key_of(space, name)
        )
        self.host = Host(world, site, POSTGRES.address, self.pins)
        self.links = self.host.links

    def blocking(self) -> PostgresSessionEngine:
        """Not another world here."""
        return self.asyncio()

    def asyncio(self) -> PostgresSessionEngine:
        """An engine over connections of its own."""
        return SimPostgresSessionEngine(self, cast(Any, self.host.sockets))

    async def _connect(self, sockets: Any, until: float) -> Any:  # noqa: ARG002 -- those of the host
        return await self.host.connect(until)


class SimMysqlSessionEngine(MysqlSessionEngine):
    """The engine's own; its own task is one of the simulated process."""

    host: Host

    def when_lost(self, tell: Callable[[str], object]) -> None:
        """Have `tell` called with each holder whose connection the server has closed."""
        self.host.look_for_losses(self._look_for_losses(tell))


class SimMysqlSessionFamily(MysqlSessionFamily):
    """The engine's own family, with simulated connections."""

    def __init__(self, world: SimWorld, site: SessionSite) -> None:
        super().__init__(MYSQL, "", world.inside.label)
        self.host = Host(world, site, MYSQL.address, self.pins)
        self.links = self.host.links

    def blocking(self) -> MysqlSessionEngine:
        """Not another world here."""
        return self.asyncio()

    def asyncio(self) -> MysqlSessionEngine:
        """An engine over connections of its own."""
        engine = SimMysqlSessionEngine(self, cast(Any, self.host.sockets))
        engine.host = self.host
        return engine

    async def _connect(self, sockets: Any, until: float) -> Any:  # noqa: ARG002 -- those of the host
        return await self.host.connect(until)
