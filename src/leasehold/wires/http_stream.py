"""A TCP connection, plain or with TLS, that is waited for in whichever world its sockets are."""

from __future__ import annotations

import errno
import select
import socket
import ssl
from typing import Any, Final

from leasehold.wires.lookout import AGREED, Lookout
from leasehold.wires.sockets import BlockingSockets, Sockets, tune
from leasehold.wires.urls import Endpoint

_MOST_AT_ONCE: Final = 65536
_UNDER_WAY: Final = frozenset({0, errno.EINPROGRESS, errno.EWOULDBLOCK})


class Stream:
    """One connection. Every method that waits raises `TimeoutError` at `until`, and `OSError` when it broke."""

    def __init__(self, sock: socket.socket, sockets: Sockets) -> None:
        self._sock, self._sockets = sock, sockets
        self._readable = select.poll()  # not shared: a connection carries one request at a time
        self._readable.register(sock, select.POLLIN)
        self._lookout: Lookout | None = None
        if isinstance(sockets, BlockingSockets):  # an event loop has other work to do
            self._lookout = Lookout(self._readable.poll, AGREED)

    async def write(self, data: bytes, until: float) -> None:
        """Send all of it."""
        while data:
            try:
                data = data[self._sock.send(data) :]
            except (BlockingIOError, ssl.SSLWantWriteError):
                await self._ready(to_write=True, until=until)
            except ssl.SSLWantReadError:
                await self._ready(to_write=False, until=until)

    def look_out(self, since: float) -> None:
        """Look for an answer, for a moment, before anybody waits for it; `since`: when the request was to be sent."""
        if self._lookout is not None:
            self._lookout.look(since)

    async def read(self, until: float) -> bytes:
        """Some bytes, as soon as there are any; none when the other end has closed it."""
        while True:
            try:
                return self._sock.recv(_MOST_AT_ONCE)
            except (BlockingIOError, ssl.SSLWantReadError):
                await self._ready(to_write=False, until=until)
            except ssl.SSLWantWriteError:
                await self._ready(to_write=True, until=until)

    async def shake_hands(self, until: float) -> None:
        """Let TLS begin."""
        assert isinstance(self._sock, ssl.SSLSocket)
        while True:
            try:
                return self._sock.do_handshake()
            except ssl.SSLWantReadError:
                await self._ready(to_write=False, until=until)
            except ssl.SSLWantWriteError:
                await self._ready(to_write=True, until=until)

    async def _ready(self, *, to_write: bool, until: float) -> None:
        if not await self._sockets.ready(self._sock.fileno(), to_write=to_write, until=until):
            raise TimeoutError

    def is_quiet(self) -> bool:
        """Whether it is open, and the other end has neither said anything nor hung up."""
        return self._sock.fileno() >= 0 and not self._readable.poll(0)

    def close(self) -> None:
        """Close this process's end, without a word: after a fork the parent may go on using the connection."""
        self._sock.close()


async def dial(endpoint: Endpoint, tls: ssl.SSLContext | None, sockets: Sockets, until: float) -> Stream:
    """A connection to an endpoint; raises `OSError`, of which `TimeoutError` is one."""
    places = await sockets.look_up(endpoint.host, endpoint.port, until)
    failure: OSError = socket.gaierror(socket.EAI_NONAME, "its name has no address")
    for position, (family, place) in enumerate(places):
        now = sockets.world.now()
        by = now + (until - now) / (len(places) - position)
        try:
            return await _secured(await _connected(family, place, sockets, by), endpoint.host, tls, sockets, by)
        except OSError as error:
            failure = error
    raise failure


async def _connected(family: int, place: Any, sockets: Sockets, until: float) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        if (code := sock.connect_ex(place)) not in _UNDER_WAY:
            raise OSError(code, "")
        if not await sockets.ready(sock.fileno(), to_write=True, until=until):
            raise TimeoutError
        if code := sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise OSError(code, "")
        tune(sock)
    except BaseException:
        sock.close()
        raise
    return sock


async def _secured(
    sock: socket.socket, host: str, tls: ssl.SSLContext | None, sockets: Sockets, until: float
) -> Stream:
    if tls is None:
        return Stream(sock, sockets)
    try:
        secured = tls.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)
    except BaseException:
        sock.close()
        raise
    stream = Stream(secured, sockets)
    try:
        await stream.shake_hands(until)
    except BaseException:
        stream.close()
        raise
    return stream
