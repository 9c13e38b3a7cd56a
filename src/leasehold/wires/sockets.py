"""How each world waits for a socket that somebody else's library has opened, and for a bell that another caller rings.

With these two, a protocol that is driven by "tell me when the socket is ready" is written once for both worlds.
"""

from __future__ import annotations

import math
import select
import socket
import threading
from collections.abc import Awaitable
from typing import Protocol

from leasehold.core.worlds import World
from leasehold.wires.lookup import Places, look_up
from leasehold.worlds import BlockingWorld

LONGEST_POLL = 3600.0
KEEPALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPALIVE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""A peer that vanished is noticed within half a minute."""


def tune(sock: socket.socket) -> None:
    """No delay for small requests, and short keep-alives."""
    if sock.family == socket.AF_UNIX:
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class Bell(Protocol):
    """Rung once, heard once, by one caller."""

    def wait(self, until: float) -> Awaitable[bool]:
        """To be awaited: returns True when it was rung, since it was made or heard; False at `until`."""
        ...

    def ring(self) -> None:
        """Wake who waits, or will wait."""
        ...


class Sockets(Protocol):
    """Waiting, in one of the worlds. Every `until` is a time on the world's clock."""

    @property
    def world(self) -> World:
        """The world that it blocks or suspends in."""
        ...

    async def ready(self, socket: int, *, to_write: bool, until: float) -> bool:
        """Return True when the socket can be read from (or written to), or has failed; False at `until`."""
        ...

    async def look_up(self, host: str, port: int, until: float) -> Places:
        """Where a host is; raises `OSError`."""
        ...

    def bell(self) -> Bell:
        """A new bell."""
        ...


def has_something(socket: int) -> bool:
    """Whether there is something to read right now, or the other end has hung up."""
    poll = select.poll()
    poll.register(socket, select.POLLIN)
    return bool(poll.poll(0))


class BlockingBell:
    """A bell for threads."""

    __slots__ = ("_event", "_world")

    def __init__(self, world: World) -> None:
        self._event, self._world = threading.Event(), world

    async def wait(self, until: float) -> bool:
        """Block the thread."""
        rung = self._event.wait(max(until - self._world.now(), 0.0))
        self._event.clear()
        return rung

    def ring(self) -> None:
        """Wake the thread."""
        self._event.set()


class BlockingSockets:
    """For threads: nothing ever suspends."""

    def __init__(self) -> None:
        self.world = BlockingWorld()

    async def ready(self, socket: int, *, to_write: bool, until: float) -> bool:
        """Block the thread."""
        poll = select.poll()
        poll.register(socket, select.POLLIN | (select.POLLOUT if to_write else 0))
        while True:
            left = until - self.world.now()
            if poll.poll(math.ceil(min(max(left, 0.0), LONGEST_POLL) * 1000)):
                return True
            if left <= LONGEST_POLL:
                return False

    async def look_up(self, host: str, port: int, until: float) -> Places:
        """Block the thread."""
        return look_up(host, port, until - self.world.now())

    def bell(self) -> BlockingBell:
        """A bell for threads."""
        return BlockingBell(self.world)
