"""The ZooKeeper engine in the simulated world: its own code, down to the bytes, before a model of an ensemble.

Simulated are three servers behind connections that deliver in order or break, the leader's clock, and that servers tell
the leader of whom they have heard only once in a tick. Every server sees every change at once: that a follower may lag
behind the leader is not simulated. Neither is how a host is looked up and a log-in is made; see `SimZooKeeperWire`.
"""

from __future__ import annotations

from typing import Any, Final, cast

from leasehold.engines import zookeeper_queue as layout
from leasehold.engines.about import about_in
from leasehold.engines.zookeeper import ZooKeeperEngine, ZooKeeperFamily
from leasehold.errors import EngineError
from leasehold.sim.bells import SimBell
from leasehold.sim.book import Book, Entry
from leasehold.sim.history import Event, Left
from leasehold.sim.network import Link, Network
from leasehold.sim.site import Site
from leasehold.sim.sockets import SimSocket, SimSockets
from leasehold.sim.world import SimWorld
from leasehold.sim.zookeeper_model import Connection, ZooKeeper
from leasehold.wires import zookeeper_messages as messages
from leasehold.wires.sockets import Bell
from leasehold.wires.urls import Endpoint
from leasehold.wires.zookeeper import AnyWire, Endpoints, Wire
from leasehold.wires.zookeeper_address import address_from_url
from leasehold.wires.zookeeper_dial import Dialled
from leasehold.wires.zookeeper_errors import unreachable
from leasehold.wires.zookeeper_line import Line, Station

TICK: Final = 0.5
ADDRESS: Final = address_from_url(f"zookeeper://one,two,three?tick={TICK}")
FOLDER: Final = f"/{layout.FOLDER}/{layout.encoded('')}"
LONGEST_MESSAGE: Final = 1 << 20


class ZooKeeperSite(Site):
    """An ensemble of three."""

    linger = 12.0

    def __init__(self, network: Network, events: list[Event], rate: float) -> None:
        super().__init__(network, events, rate)
        self.zookeeper = ZooKeeper(TICK)
        self.book = Book(self.scheduler, events)
        self._connections: dict[Link, list[Connection]] = {}
        self.scheduler.call_at(0.0, self._tick)

    def family(self, world: SimWorld) -> SimZooKeeperFamily:
        """The engine's own family over simulated connections."""
        return SimZooKeeperFamily(world, self)

    def clock(self) -> float:
        """The leader's clock, which nobody can set."""
        return self.scheduler.now * self.rate

    def accept(self, sock: SimSocket, link: Link) -> None:
        """Serve a new connection."""
        connection, received = Connection(sock.answer, sock.hang_up), bytearray()
        self._connections.setdefault(link, []).append(connection)

        def heard(data: bytes) -> None:
            received.extend(data)
            while (message := messages.frame_in(received, LONGEST_MESSAGE)) is not None:
                before = self.zookeeper.zxid
                if connection.session:
                    self.zookeeper.ask(connection, message, self.clock())
                else:
                    self.zookeeper.connect(connection, message, self.clock())
                if self.zookeeper.zxid != before:
                    self._follow("released")

        sock.heard = heard
        sock.hung_up = lambda: self.zookeeper.lost(connection)

    def _follow(self, how: str) -> None:
        lines: dict[str, list[Entry]] = {name: [] for name in self.book.names}
        nodes = self.zookeeper.nodes
        space = nodes.get(FOLDER)
        for part in space.children if space is not None else ():
            name = layout.decoded(part)
            assert name is not None
            line = lines.setdefault(name, [])
            for one in layout.queue_in(nodes[f"{FOLDER}/{part}"].children):
                stored = nodes[f"{FOLDER}/{part}/{one.name}"]
                about, token = about_in(stored.data), one.token or stored.created
                # Not the attempt's id: its ghost on a session that it gave up has the same, and another token.
                line.append(Entry(token, about.about, one.mode, about.limit, token))
        for name, line in lines.items():
            self.book.follow(name, line, how)

    # Time, and what breaks

    def _tick(self) -> None:
        """Servers report whom they have heard of, and the leader ends sessions whose time is over."""
        self.scheduler.call_at(self.scheduler.now + TICK / self.rate, self._tick)
        if self.down or self.paused:
            return
        self.zookeeper.tell_leader(self.clock())
        for session in self.zookeeper.overdue(self.clock()):
            self.zookeeper.end(session)
            self._follow("lapsed")

    def hung_up(self, link: Link) -> None:
        """A connection is gone, and perhaps its server was, with what it had not told the leader."""
        for connection in self._connections.pop(link, ()):
            if connection.touched is not None and self.network.rng.random() < 0.5:
                self.zookeeper.tell_leader(self.clock())
            self.zookeeper.lost(connection)

    def stopped(self, *, wipe: bool) -> None:  # noqa: ARG002 -- an ensemble does not lose what its majority has
        """Connections do not survive, nor does what servers had not told the leader."""
        for connections in self._connections.values():
            for connection in connections:
                self.zookeeper.lost(connection)
        self._connections.clear()

    def start(self) -> None:
        """Serve again; there is a new leader."""
        self.zookeeper.new_leader(self.clock())
        super().start()

    def lose_leader(self) -> None:
        """Without a leader, servers hang up on everybody and let nobody in."""
        if not self.down:
            self.stop(wipe=False)

    def elect(self) -> None:
        """There is a new leader."""
        if self.down:
            self.start()

    def force_release(self, name: str) -> object:
        """An operator deletes all nodes of the name."""
        folder = f"{FOLDER}/{layout.encoded(name)}"
        parent = self.zookeeper.nodes.get(folder)
        if parent is not None:
            self.zookeeper.zxid += 1
            for child in list(parent.children):
                self.zookeeper._remove(f"{folder}/{child}")
            self.zookeeper._settle()
            self._follow("forced")
        return None

    def leftovers(self) -> list[Left]:
        """All sessions must have run out."""
        return self.book.left()


class _Here:
    """One station for the tasks of one engine."""

    def is_closed(self) -> bool:
        """Never."""
        return False


class SimZooKeeperWire(Wire[Bell]):
    """The engine's own wire. Only how a connection is opened, and how one waits for it, is simulated."""

    def __init__(self, endpoints: Endpoints, sockets: SimSockets, site: ZooKeeperSite, links: dict[str, Link]) -> None:
        super().__init__(cast(Any, sockets), endpoints)
        self._own, self._site, self._links = sockets, site, links
        self._here = _Here()
        self._lines: list[Line] = []
        """Kept, since a line closes its socket when Python gets round to it."""

    def _station(self) -> Station:
        return self._here

    def _caller(self) -> object:
        return self._own.world.scheduler.current

    def _reading_bell(self, line: Line) -> Bell:  # noqa: ARG002 -- tasks need no pipe
        return SimBell(self._own.world)

    async def _ready(self, line: Line, bell: Bell, until: float) -> bool:
        if line.socket < 0:
            return True
        sock = self._own.by_number(line.socket)
        if sock.is_readable:
            return True
        sock.wake.append(bell.ring)
        try:
            return await bell.wait(until)
        finally:
            sock.wake.remove(bell.ring)

    async def _connect(self, hello: bytes, until: float) -> Dialled:
        failure: EngineError = unreachable(str(ADDRESS), "there is no server")
        endpoints = self._endpoints.order
        for position, endpoint in enumerate(endpoints):
            share = (until - self.world.now()) / (len(endpoints) - position)
            try:
                return await self._greet(endpoint, hello, self.world.now() + share)
            except OSError as error:
                failure = unreachable(str(endpoint), error)
        raise failure

    async def _greet(self, endpoint: Endpoint, hello: bytes, until: float) -> Dialled:
        link = self._links[endpoint.host]
        sock = await self._own.connect(link, until)
        self._site.accept(sock, link)
        received, sent_at = bytearray(), self.world.now()
        try:
            sock.send(hello)
            while (message := messages.frame_in(received, LONGEST_MESSAGE)) is None:
                if not await self._own.ready(sock.fileno(), to_write=False, until=until):
                    raise TimeoutError
                data = sock.recv(65536)
                if not data:
                    raise ConnectionResetError("it was closed without an answer")
                received += data
        except BaseException:
            sock.close()
            raise
        line = Line(cast(Any, sock), str(endpoint), self.world.now(), (BlockingIOError,))
        self._lines.append(line)
        return Dialled(line, messages.connected_in(message), sent_at, endpoint)


class SimZooKeeperFamily(ZooKeeperFamily):
    """The engine's own family, with simulated connections."""

    def __init__(self, world: SimWorld, site: ZooKeeperSite) -> None:
        super().__init__(ADDRESS, "")
        self._endpoints = Endpoints(ADDRESS)
        self._endpoints._order = ADDRESS.endpoints  # not anywhere: the same seed is the same history
        label = world.inside.label
        self._by_host = {
            one.host: site.network.connect(world.inside, f"{label}/{one.host}") for one in ADDRESS.endpoints
        }
        self.links = list(self._by_host.values())
        self._sockets, self._site = SimSockets(world, site.network, site, self.links), site

    def blocking(self) -> ZooKeeperEngine:
        """Not another world here."""
        return self.asyncio()

    def asyncio(self) -> ZooKeeperEngine:
        """An engine over the connections of this process."""
        wire = SimZooKeeperWire(self._endpoints, self._sockets, self._site, self._by_host)
        return self._joined(ZooKeeperEngine(self, cast(AnyWire, wire)))
