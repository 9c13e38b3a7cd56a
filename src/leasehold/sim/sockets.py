"""Sockets of the simulated world: bytes that arrive in order, late perhaps, or not at all once the connection broke."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Protocol

from leasehold.sim.bells import SimBell
from leasehold.sim.network import Channel, Link, Network
from leasehold.sim.scheduler import PARK
from leasehold.sim.world import SimWorld

CONNECTED = object()


class Server(Protocol):
    """Who takes connections at the other end."""

    down: bool

    def receive(self, link: Link, epoch: int, call: Callable[..., object], *arguments: object) -> None:
        """Something has come over a connection."""
        ...


class SimSocket:
    """The client's end of one connection; used as a socket that does not block."""

    family = socket.AF_UNIX
    """Of a kind that has nothing to be tuned."""

    def __init__(self, network: Network, server: Server, link: Link, number: int) -> None:
        self._network, self._server, self._link, self._number = network, server, link, number
        self._received = bytearray()
        self._over = self._closed = False
        self.wake: list[Callable[[], object]] = []
        """Called when there is something to read."""
        self.heard: Callable[[bytes], object] = lambda _data: None
        """The server's side of it takes what was sent."""
        self.hung_up: Callable[[], object] = lambda: None
        """The server's side of it hears that the client has closed it."""
        self._epoch = link.epoch
        self._there = Channel(network, link, self._arrives, to_process=False)
        self._back = Channel(network, link, self._comes_back, to_process=True)
        link.sockets.append(self)

    # The client

    def fileno(self) -> int:
        """Its number; -1 when it is closed."""
        return -1 if self._closed else self._number

    def send(self, data: bytes | bytearray | memoryview) -> int:
        """Send all of it."""
        if self._over or self._closed:
            raise BrokenPipeError("the connection is over")
        self._there.send(bytes(data))
        return len(data)

    def recv(self, most: int) -> bytes:
        """What has come; nothing when the other end has closed it."""
        if self._received:
            data = bytes(self._received[:most])
            del self._received[:most]
            return data
        if self._over or self._closed:
            return b""
        raise BlockingIOError

    def shutdown(self, _how: int) -> None:
        """Say that nothing more will come."""
        if not self._over and not self._closed:
            self._over = True
            self._there.send(None)
        self._ring()

    def close(self) -> None:
        """Let go of it."""
        self.shutdown(socket.SHUT_RDWR)
        self._closed = True
        if self in self._link.sockets:
            self._link.sockets.remove(self)

    @property
    def is_readable(self) -> bool:
        """Whether there is something to read, or to know."""
        return bool(self._received) or self._over or self._closed

    def broke(self) -> None:
        """The connection broke, and its client hears of it."""
        self._over = True
        self._ring()

    def _ring(self) -> None:
        for wake in list(self.wake):
            wake()

    def _comes_back(self, data: bytes | None) -> None:
        if data is None:
            self._over = True
        else:
            self._received += data
        self._ring()

    # The server

    def _arrives(self, data: bytes | None) -> None:
        self._server.receive(self._link, self._epoch, self._taken, data)

    def _taken(self, data: bytes | None) -> None:
        if data is None:
            self.hung_up()
        else:
            self.heard(data)

    def answer(self, data: bytes) -> None:
        """The server sends something."""
        self._back.send(data)

    def hang_up(self) -> None:
        """The server closes it, after all that it has sent."""
        self._back.send(None)


class SimSockets:
    """Implements `leasehold.wires.sockets.Sockets` for one process."""

    def __init__(self, world: SimWorld, network: Network, server: Server, links: list[Link]) -> None:
        self.world = world
        self._network, self._server, self._links = network, server, links
        self._numbers = 0
        self._open: dict[int, SimSocket] = {}

    async def connect(self, link: Link, until: float) -> SimSocket:
        """A new connection; raises `OSError`."""
        scheduler = self.world.scheduler
        task, give_up_at = scheduler.current, self.world.true_time(until)
        if not link.cut:
            scheduler.resume_at(min(scheduler.now + 2 * self._network.delay(), give_up_at), task, CONNECTED)
        scheduler.resume_at(give_up_at, task)
        if await PARK is not CONNECTED or link.cut:
            raise TimeoutError
        if self._server.down:
            raise ConnectionRefusedError("nobody listens there")
        self._numbers += 1
        made = self._open[self._numbers] = SimSocket(self._network, self._server, link, self._numbers)
        return made

    def by_number(self, number: int) -> SimSocket:
        """An open socket."""
        return self._open[number]

    async def ready(self, number: int, *, to_write: bool, until: float) -> bool:
        """Return True when the socket can be read from (or written to), or has failed; False at `until`."""
        sock = self._open[number]
        if to_write or sock.is_readable:
            return True
        bell = SimBell(self.world)
        sock.wake.append(bell.ring)
        try:
            return await bell.wait(until)
        finally:
            sock.wake.remove(bell.ring)

    def bell(self) -> SimBell:
        """A new bell."""
        return SimBell(self.world)
