"""The etcd engine in the simulated world: its own code, down to the bytes of its requests, before a model of etcd.

Simulated are gRPC (three endpoints; requests that come late, or never; answers that get lost; a stream of watches that
delivers in order or breaks), the threads of the client (tasks of its process), and the cluster with its leader's clock.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final, cast

from leasehold.core.engine import Grant
from leasehold.engines import key_queue as layout
from leasehold.engines.about import About, about_in
from leasehold.engines.etcd import EtcdEngine, EtcdFamily
from leasehold.engines.etcd_requests import Requests
from leasehold.engines.etcd_vigil import Vigil
from leasehold.sim.bells import SimBell
from leasehold.sim.book import Book, Entry
from leasehold.sim.etcd_model import Etcd, Refusal, Watched
from leasehold.sim.history import Event, Left
from leasehold.sim.network import BROKEN, Channel, Link, Network
from leasehold.sim.scheduler import PARK
from leasehold.sim.site import Site
from leasehold.sim.world import SimAlarm, SimWorld
from leasehold.wires import etcd_messages as messages
from leasehold.wires.etcd import Call, Wire
from leasehold.wires.etcd_address import address_from_url
from leasehold.wires.etcd_lines import Line, Lines, Metadata
from leasehold.wires.etcd_watch import Listener, Watch, WatchHub, _Stream
from leasehold.wires.sockets import Bell

ADDRESS: Final = address_from_url("etcd://one:2379,two:2379,three:2379")
LATE: Final = object()
LOOKS_EVERY: Final = 0.5
"""How often the leader looks for leases that are over, in seconds."""


class EtcdSite(Site):
    """A cluster of three, behind as many endpoints."""

    linger = 12.0

    def __init__(self, network: Network, events: list[Event], rate: float) -> None:
        super().__init__(network, events, rate)
        self.etcd = Etcd()
        self.etcd.deleted = self._deleted
        self.book = Book(self.scheduler, events)
        self.leaderless = False
        self._watching: dict[Link, Watched] = {}
        self._how = "released"
        self._texts: dict[bytes, About] = {}
        self.scheduler.call_at(0.0, self._look)

    def family(self, world: SimWorld) -> SimEtcdFamily:
        """The engine's own family over simulated lines."""
        return SimEtcdFamily(world, self)

    def clock(self) -> float:
        """The leader's clock, which nobody can set."""
        return self.scheduler.now * self.rate

    def serve(self, method: str, request: bytes) -> bytes | Refusal:
        """Answer one request."""
        if self.leaderless:
            return Refusal("UNAVAILABLE", "etcdserver: no leader")
        before = self.etcd.revision
        try:
            return self.etcd.ask(method, request, self.clock())
        except Refusal as refusal:
            return refusal
        finally:
            if self.etcd.revision != before:
                self._follow("released")

    def _follow(self, how: str) -> None:
        lines: dict[str, list[Entry]] = {name: [] for name in self.book.names}
        for one in sorted(self.etcd.keys.values(), key=lambda key: key.created):
            name, mode = layout.name_in(one.key, ""), layout.mode_of(one.key)
            assert name is not None
            assert mode is not None
            about = self._texts.get(one.value)
            if about is None:
                about = self._texts[one.value] = about_in(one.value)
            entry = Entry((one.key, one.created), about.about, mode, about.limit, one.created)
            lines.setdefault(name, []).append(entry)
        for name, line in lines.items():
            self.book.follow(name, line, how)

    # Watches

    def watch(self, link: Link, request: bytes, back: Channel) -> None:
        """A request on a stream of watches."""
        watched = self._watching.get(link)
        if watched is None:
            watched = self._watching[link] = Watched(self.etcd, back.send)
        watched.ask(request)

    def forget_stream(self, link: Link) -> None:
        """A stream is over."""
        self._watching.pop(link, None)

    def _deleted(self, key: bytes) -> None:
        for watched in self._watching.values():
            watched.deleted(key)

    def stopped(self, *, wipe: bool) -> None:  # noqa: ARG002 -- a cluster does not lose what its majority has
        """Streams do not survive."""
        self._watching.clear()

    def hung_up(self, link: Link) -> None:
        """Nor do those of a client that is gone."""
        self._watching.pop(link, None)

    # Time

    def _look(self) -> None:
        """The leader ends leases whose time is over, when it gets round to it."""
        self.scheduler.call_at(self.scheduler.now + LOOKS_EVERY, self._look)
        if not (self.down or self.paused or self.leaderless):
            for lease in self.etcd.overdue(self.clock()):
                self.etcd.revoke(lease)
                self._follow("lapsed")

    def start(self) -> None:
        """Serve again; there is a new leader."""
        self.etcd.new_leader(self.clock())
        super().start()

    def lose_leader(self) -> None:
        """Until another one is elected, nothing is decided."""
        self.leaderless = True

    def elect(self) -> None:
        """There is a new leader."""
        self.leaderless = False
        self.etcd.new_leader(self.clock())

    def force_release(self, name: str) -> object:
        """An operator deletes all keys of the name."""
        self.etcd.ask(messages.DELETE, messages.delete(*layout.keys_of("", name).all), self.clock())
        self._follow("forced")
        return None

    def leftovers(self) -> list[Left]:
        """All sessions must have run out."""
        return self.book.left()


class SimLines(Lines):
    """Endpoints, each behind a simulated connection."""

    def __init__(self, network: Network, links: list[Link]) -> None:
        super().__init__(ADDRESS)
        self._network, self._links = network, links

    def _connect(self) -> Line:
        line = SimpleNamespace(endpoint=ADDRESS.endpoints[self._at], link=self._links[self._at])
        line.calls = {method: (method, line) for method in messages.UNARY}
        self._open[self._at] = cast(Line, line)
        return cast(Line, line)

    def close(self) -> None:
        """The simulation ends without a farewell."""


class SimWire(Wire):
    """Calls of gRPC, as requests through the simulated network."""

    def __init__(self, lines: Lines, world: SimWorld, site: EtcdSite) -> None:
        super().__init__(lines)
        self.world = world
        self._own, self._site, self._network = world, site, site.network

    async def _exchange(self, call: Call, request: bytes, seconds: float, metadata: Metadata) -> bytes:  # noqa: ARG002
        method, line = cast(tuple[str, Any], call)
        link: Link = line.link
        scheduler, site, task = self._network.scheduler, self._site, self._network.scheduler.current
        give_up_at = scheduler.now + self._own.duration(seconds)
        if site.down and not link.cut:
            scheduler.resume_at(min(scheduler.now + self._network.delay(), give_up_at), task)
            await PARK
            raise self._lines.failed("UNAVAILABLE", "failed to connect to all addresses", line)
        self._network.request(link, lambda _link: site.serve(method, request), task)
        scheduler.resume_at(give_up_at, task, LATE)
        try:
            answer = await PARK
        finally:
            link.pending.pop(task, None)
        if answer is LATE:
            raise self._lines.failed("DEADLINE_EXCEEDED", "Deadline Exceeded", line)
        if answer is BROKEN:
            raise self._lines.failed("UNAVAILABLE", "Socket closed", line)
        if isinstance(answer, Refusal):
            raise self._lines.failed(answer.code, answer.details, line)
        assert isinstance(answer, bytes)
        return answer

    def bell(self) -> Bell:
        """A bell for a simulated task."""
        return SimBell(self._own)


class SimStream(_Stream):
    """A stream of watches over a simulated connection."""

    def __init__(self, line: Line, hub: SimHub, site: EtcdSite) -> None:
        self._keep_nothing_yet(line)
        self.answers = cast(Any, SimpleNamespace(cancel=lambda: site.scheduler.call_at(site.scheduler.now, self._end)))
        self._hub, self._site, self._over = hub, site, False
        self._link: Link = cast(Any, line).link
        self._link.listener = self
        epoch = self._link.epoch
        site.forget_stream(self._link)
        self._back = Channel(site.network, self._link, self._heard, to_process=True)
        self._there = Channel(site.network, self._link, self._arrives, to_process=False)
        self._epoch = epoch
        if site.down:
            self.answers.cancel()

    def flush(self) -> None:
        """Send what was asked for."""
        while not self.requests.empty():
            request = self.requests.get()
            if request is not None:
                self._there.send(request)

    def _arrives(self, request: bytes) -> None:
        self._site.receive(self._link, self._epoch, self._site.watch, self._link, request, self._back)

    def _heard(self, answer: bytes) -> None:
        if not self._over:
            self._hub._hear(self, answer)
            self.flush()

    def woken(self, holder: str | None, handed: Grant | None) -> None:  # noqa: ARG002 -- etcd hands nothing over
        """The connection broke."""
        if holder is None:
            self._end()

    def _end(self) -> None:
        if not self._over and not self._link.process.dead:
            self._over = True
            self._site.forget_stream(self._link)
            self._hub._ended(self)


class SimHub(WatchHub):
    """The client's own hub of watches; what its thread does, the arriving messages do."""

    def __init__(self, lines: Lines, site: EtcdSite) -> None:
        super().__init__(lines)
        self._site = site

    def begin(self, watch: Watch, listener: Listener) -> None:
        """Have deletions told to the listener."""
        super().begin(watch, listener)
        if self._stream is not None:
            cast(SimStream, self._stream).flush()

    def _open(self) -> _Stream:
        return SimStream(self._lines.current(), self, self._site)


class SimVigil(Vigil):
    """The client's own vigil, as a task of its process instead of a thread."""

    def __init__(self, world: SimWorld, wire: SimWire, family: EtcdFamily) -> None:
        super().__init__(lambda: Requests(wire, family.sessions, family.facts.address))
        self._world, self._bell = world, SimAlarm(world)
        self._running = False

    def _see_to_it(self) -> None:
        if not self._running:
            self._running = True
            self._world.scheduler.spawn(self._watch_over(), self._world.inside, "vigil")

    def _call(self) -> None:
        self._bell.ring()

    async def _watch_over(self) -> None:
        requests = self._requests()
        while self._kept:
            look_at = await self._look_after_all(requests)
            await self._bell.sleep(max(look_at - self._world.now(), 0.0))
        self._running = False


class SimEtcdFamily(EtcdFamily):
    """The engine's own family, with simulated parts where it would have threads and sockets."""

    def __init__(self, world: SimWorld, site: EtcdSite) -> None:
        super().__init__(ADDRESS, "")
        label = world.inside.label
        self.links = [site.network.connect(world.inside, f"{label}/{one.host}") for one in ADDRESS.endpoints]
        for link in self.links:
            link.latest = 0.0
        self._lines = SimLines(site.network, self.links)
        self._sim_wire = SimWire(self._lines, world, site)
        self.hub, self.vigil = SimHub(self._lines, site), SimVigil(world, self._sim_wire, self)

    def blocking(self) -> EtcdEngine:
        """Not another world here."""
        return self.asyncio()

    def asyncio(self) -> EtcdEngine:
        """An engine over the lines of this process."""
        return self._joined(EtcdEngine(self, self._sim_wire))
