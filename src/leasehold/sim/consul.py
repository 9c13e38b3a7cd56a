"""The Consul engine in the simulated world: its own code, down to HTTP, before a model of a Consul datacenter.

Simulated are three agents behind connections that deliver in order or break, blocking queries, and the leader's clock.
How a host is looked up and a connection is secured is not simulated; see `SimDialling`.
"""

from __future__ import annotations

import base64
import json
from typing import Any, Final, NamedTuple, cast
from urllib.parse import parse_qs, unquote

from leasehold.engines import consul_keys
from leasehold.engines import key_queue as layout
from leasehold.engines.about import about_in
from leasehold.engines.consul import ConsulEngine, ConsulFamily
from leasehold.errors import EngineError
from leasehold.sim.book import CLOSURE, Book, Entry
from leasehold.sim.consul_model import Answer, Consul
from leasehold.sim.history import Event, Left
from leasehold.sim.network import Link, Network
from leasehold.sim.site import Site
from leasehold.sim.sockets import SimSocket, SimSockets
from leasehold.sim.world import SimWorld
from leasehold.wires.consul import ConsulWire
from leasehold.wires.consul_address import address_from_url
from leasehold.wires.consul_errors import unreachable
from leasehold.wires.consul_line import Dialling, Line
from leasehold.wires.http_stream import Stream
from leasehold.wires.sql_pool import Pool

ADDRESS: Final = address_from_url("consul://one,two,three/?least_ttl=1")
LOOKS_EVERY: Final = 0.25
REASONS: Final = {200: "OK", 404: "Not Found", 409: "Conflict", 500: "Internal Server Error"}


class Waiting(NamedTuple):
    """A query that waits for news."""

    sock: SimSocket
    key: str
    recurse: bool
    after: int
    until: float


class ConsulSite(Site):
    """A datacenter with an agent on each of three hosts."""

    linger = 14.0

    def __init__(self, network: Network, events: list[Event], rate: float) -> None:
        super().__init__(network, events, rate)
        self.consul = Consul()
        self.book = Book(self.scheduler, events)
        self.leaderless = False
        self._waiting: list[Waiting] = []
        self.scheduler.call_at(0.0, self._look)

    def family(self, world: SimWorld) -> SimConsulFamily:
        """The engine's own family over simulated connections."""
        return SimConsulFamily(world, self)

    def clock(self) -> float:
        """The leader's clock, which nobody can set."""
        return self.scheduler.now * self.rate

    # Requests

    def accept(self, sock: SimSocket) -> None:
        """Serve a new connection; each request comes in one piece."""
        sock.heard = lambda data: self._serve(sock, data)
        sock.hung_up = lambda: self._forget(sock)

    def _forget(self, sock: SimSocket) -> None:
        self._waiting = [one for one in self._waiting if one.sock is not sock]

    def _serve(self, sock: SimSocket, data: bytes) -> None:
        head, _, body = data.partition(b"\r\n\r\n")
        method, target, _ = head.split(b"\r\n", 1)[0].decode().split(" ")
        if self.leaderless:
            self._answer(sock, Answer(500, "No cluster leader"))
            return
        query = parse_qs(target.partition("?")[2])
        before, closes = self.consul.index, self._lasting_sessions()
        answer = self.consul.ask(method, target, body, self.clock())
        if "index" in query and answer.as_of <= int(query["index"][0]):
            wait = float(query["wait"][0].removesuffix("ms")) / 1000
            key = unquote(target.partition("?")[0].removeprefix("/v1/kv/"))
            until = self.scheduler.now + wait * (1 + self.network.rng.random() / 16) / self.rate
            waiting = Waiting(sock, key, "recurse" in target, int(query["index"][0]), until)
            self._waiting.append(waiting)
            self.scheduler.call_at(until, self.when_awake, lambda: self._time_is_up(waiting))
            return
        self._answer(sock, answer)
        if self.consul.index != before:
            # Who ends a session that still holds a key begins its lock-delay.
            delay = max((delay for number, delay in closes.items() if number not in self.consul.sessions), default=0.0)
            self._changed("released", self.scheduler.now + delay / self.rate if delay else 0.0)

    def _lasting_sessions(self) -> dict[str, float]:
        """The sessions that hold a key and have a lock-delay."""
        sessions = self.consul.sessions
        holding = {one.session for one in self.consul.keys.values() if one.session}
        return {number: sessions[number].delay for number in holding if sessions[number].delay}

    def _answer(self, sock: SimSocket, answer: Answer) -> None:
        body = answer.body.encode() if isinstance(answer.body, str) else json.dumps(answer.body).encode()
        head = f"HTTP/1.1 {answer.status} {REASONS[answer.status]}\r\nContent-Length: {len(body)}\r\n"
        sock.answer((head + (f"X-Consul-Index: {answer.as_of}\r\n" if answer.as_of else "") + "\r\n").encode() + body)

    def _time_is_up(self, waiting: Waiting) -> None:
        if waiting in self._waiting:
            self._waiting.remove(waiting)
            self._answer(waiting.sock, self.consul.look(waiting.key, recurse=waiting.recurse))

    def _changed(self, how: str, closed_until: float = 0.0) -> None:
        for one in list(self._waiting):
            answer = self.consul.look(one.key, recurse=one.recurse)
            if answer.as_of > one.after:
                self._waiting.remove(one)
                self._answer(one.sock, answer)
        self._follow(how, closed_until)

    def _follow(self, how: str, closed_until: float) -> None:
        lines: dict[str, list[Entry]] = {name: [] for name in self.book.names}
        for one in sorted(self.consul.keys.values(), key=lambda stored: stored.created):
            key = one.key.encode()
            mode = layout.mode_of(key)
            name = consul_keys.name_in(key.rsplit(b"/", 2)[0] + b"/", "")
            if mode is None or name is None:
                continue
            about = about_in(base64.b64decode(one.value or ""))
            holder = about.about if one.session else CLOSURE
            lines.setdefault(name, []).append(Entry((key, one.created), holder, mode, about.limit, one.created))
        for name, line in lines.items():
            self.book.follow(name, line, how, closed_until)

    # Time, and what breaks

    def _look(self) -> None:
        """The leader ends sessions whose time is over."""
        self.scheduler.call_at(self.scheduler.now + LOOKS_EVERY, self._look)
        if self.down or self.paused or self.leaderless:
            return
        for number in self.consul.overdue(self.clock()):
            self.end_session(number)

    def end_session(self, number: str) -> None:
        """The leader ends a session; a lock-delay begins."""
        delay = self.consul.sessions[number].delay
        self.consul.end(number, self.clock())
        self._changed("lapsed", self.scheduler.now + delay / self.rate if delay else 0.0)

    def stopped(self, *, wipe: bool) -> None:  # noqa: ARG002 -- a cluster does not lose what its majority has
        """Connections do not survive."""
        self._waiting.clear()

    def start(self) -> None:
        """Serve again; there is a new leader."""
        self.consul.new_leader(self.clock())
        super().start()

    def lose_leader(self) -> None:
        """Without a leader nothing is answered; also those who wait are told so."""
        self.leaderless = True
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            self._answer(one.sock, Answer(500, "No cluster leader"))

    def elect(self) -> None:
        """There is a new leader."""
        self.leaderless = False
        self.consul.new_leader(self.clock())

    def leftovers(self) -> list[Left]:
        """All sessions must have run out."""
        return self.book.left()


class SimStream(Stream):
    """A connection of the engine's own kind, on a simulated socket."""

    def is_quiet(self) -> bool:
        """Whether it is open, and the other end has neither said anything nor hung up."""
        sock = cast(SimSocket, self._sock)
        return sock.fileno() >= 0 and not sock.is_readable


class SimDialling(Dialling):
    """The engine's own choice among the agents; only how a connection is opened is simulated."""

    def __init__(self, sockets: SimSockets, site: ConsulSite, links: dict[str, Link]) -> None:
        super().__init__(ADDRESS, cast(Any, sockets))
        self._own, self._site, self._links = sockets, site, links
        self._lines: list[Line] = []
        """Kept: when Python gets round to closing one must make no difference."""

    async def connect(self, until: float) -> Line:
        """A connection to the endpoint in use, or to the next that can be reached."""
        failure: EngineError | None = None
        world, endpoints = self._own.world, ADDRESS.endpoints
        for position in range(len(endpoints)):
            endpoint = self.current
            share = (until - world.now()) / (len(endpoints) - position)
            try:
                sock = await self._own.connect(self._links[endpoint.host], world.now() + share)
            except OSError as error:
                failure = unreachable(f"consul at {endpoint}", error)
                self.move_on(endpoint)
                continue
            self._site.accept(sock)
            line = Line(SimStream(cast(Any, sock), cast(Any, self._own)), endpoint, ADDRESS)
            self._lines.append(line)
            return line
        assert failure is not None
        raise failure


class SimConsulWire(ConsulWire):
    """The engine's own wire, over simulated connections."""

    def __init__(self, sockets: SimSockets, site: ConsulSite, links: dict[str, Link]) -> None:
        super().__init__(ADDRESS, cast(Any, sockets))
        self._dialling = SimDialling(sockets, site, links)
        self._pool: Pool[Line] = Pool(cast(Any, sockets), self._dialling.connect, self._address)


class SimConsulFamily(ConsulFamily):
    """The engine's own family, with simulated connections."""

    def __init__(self, world: SimWorld, site: ConsulSite) -> None:
        super().__init__(ADDRESS, "", world.inside.label)
        network, label = site.network, world.inside.label
        self._by_host = {one.host: network.connect(world.inside, f"{label}/{one.host}") for one in ADDRESS.endpoints}
        self.links = list(self._by_host.values())
        self._sockets, self._site = SimSockets(world, network, site, self.links), site

    def blocking(self) -> ConsulEngine:
        """Not another world here."""
        return self.asyncio()

    def asyncio(self) -> ConsulEngine:
        """An engine over connections of its own."""
        return ConsulEngine(self, SimConsulWire(self._sockets, self._site, self._by_host))
