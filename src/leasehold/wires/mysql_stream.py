"""A connected socket, plain or in TLS, that is never waited for longer than told, in either world."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
from collections.abc import Sequence
from math import ceil
from time import monotonic
from typing import TYPE_CHECKING, Final

from leasehold.wires.lookout import Lookout
from leasehold.wires.mysql_packets import QUIT, SHORTEST_ERROR, Answers, Inbox, framed
from leasehold.wires.sockets import LONGEST_POLL, BlockingSockets, Sockets, tune

if TYPE_CHECKING:
    import ssl

USUAL: Final = 4096
"""Bytes to make room for where the answer is short: room for the largest costs more than reading does."""


LONGEST_SLEEP: Final = 0.02
"""For how long one sleeps over the first of several answers, in seconds: then something is wrong, or takes long."""


class Stream:
    """Packets over a socket. All waiting is done by the sockets of a world."""

    def __init__(self, sock: socket.socket, sockets: Sockets) -> None:
        self._sock = sock
        readable = select.poll()
        readable.register(sock, select.POLLIN)
        self._has_something = readable.poll
        lookout = Lookout(readable.poll)
        self._look, self.doze = lookout.look, lookout.doze
        self._sent_at = 0.0
        self.has_sent = False
        """Whether all of the last packet has left."""
        self.heard = 0
        """How many bytes have come since then."""
        self.use(sockets)
        self._shows_all = True
        """Whether all that has come shows at the socket."""
        self._wants_read: tuple[type[Exception], ...] = (BlockingIOError,)
        self._wants_write: tuple[type[Exception], ...] = (BlockingIOError,)
        self.inbox = Inbox()

    def use(self, sockets: Sockets) -> None:
        """Wait like these from now on. A thread looks for what answers it; an event loop has other work to do."""
        self.sockets, self._looks = sockets, isinstance(sockets, BlockingSockets)

    @property
    def number(self) -> int:
        """The number of the socket; -1 when it is closed."""
        return self._sock.fileno()

    async def start_tls(self, context: ssl.SSLContext, host: str, until: float) -> None:
        """Go on in TLS; raises `ssl.SSLError` where the server is not who it should be."""
        import ssl

        if not self.inbox.is_empty:
            raise ConnectionError("the server went on before TLS began")
        secured = context.wrap_socket(self._sock, server_hostname=host or None, do_handshake_on_connect=False)
        self._sock, self._shows_all = secured, False
        self._wants_read = (BlockingIOError, ssl.SSLWantReadError)
        self._wants_write = (BlockingIOError, ssl.SSLWantWriteError)
        while True:
            try:
                secured.do_handshake()
            except ssl.SSLWantReadError:
                await self._ready(until, to_write=False)
            except ssl.SSLWantWriteError:
                await self._ready(until, to_write=True)
            else:
                return

    async def send(self, payload: bytes, until: float, number: int = 0, *, behind: bytes = b"") -> None:
        """Send a packet; what answers it is numbered on from it. Another packet may go with it, ready-made."""
        rest = framed(payload, number) + behind
        self.inbox.expect(number + 1 & 0xFF)
        self.has_sent, self.heard, self._sent_at = False, 0, monotonic()
        while rest:
            try:
                rest = rest[self._sock.send(rest) :]
            except self._wants_write:
                await self._ready(until, to_write=True)
        self.has_sent = True

    async def send_each(self, payloads: Sequence[bytes], until: float) -> None:
        """Send several packets together; each is answered by itself."""
        await self.send(payloads[0], until, behind=b"".join(map(framed, payloads[1:])))
        self.inbox.expect(1, several=True)

    def send_now(self, *payloads: bytes) -> None:
        """Send packets that are so small that they always fit; each is answered by itself."""
        packets = b"".join(map(framed, payloads))
        self.inbox.expect(1, several=True)
        if self._sock.send(packets) != len(packets):
            raise ConnectionError("the socket is full")

    async def answers(
        self, until: float, answers: Answers | None = None, *, enough: int | None = None, least: int = 1
    ) -> Answers:
        """The answers to the packet of requests that was sent, or `enough` of them, added to those that came before.

        They are at least so many bytes, unless something goes wrong.
        """
        if least > 1:
            await self.arrival(until, least)
        elif answers is None:
            await self._first(until)
        answers, inbox = Answers() if answers is None else answers, self.inbox
        while not answers.is_complete and (enough is None or len(answers.results) < enough):
            if self.receive():
                answers.feed(inbox.packets())
            else:
                await self._ready(until, to_write=False)
        return answers

    async def _first(self, until: float) -> None:
        """Be there when something comes, for what was just sent is rarely answered yet."""
        if self._looks and self._look(self._sent_at):
            return
        if self._shows_all:
            await self._ready(until, to_write=False)

    async def arrival(self, until: float, least: int) -> None:
        """Be there when so many bytes have come, where a server sends each of several answers by itself.

        So nobody is woken for every one of them. What goes wrong may be told in fewer words, and is heard a little
        later. Systems that cannot do so wake who waits.
        """
        if least > SHORTEST_ERROR:
            until = min(until, self.sockets.world.now() + LONGEST_SLEEP)
        self._wake_at(least)
        try:
            if not (self._looks and self._look(self._sent_at)):
                await self._arrived(until)
        finally:
            self._wake_at(1)

    def _wake_at(self, size: int) -> None:
        with contextlib.suppress(OSError):
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)

    async def packet(self, until: float) -> bytes:
        """The next packet."""
        while (packet := self.inbox.packet()) is None:
            while not self.receive():
                await self._ready(until, to_write=False)
        return packet

    async def exchange(self, payload: bytes, until: float) -> bytes:
        """Send a packet, and return the first packet that answers it: most often it is the only one."""
        await self.send(payload, until)
        await self._first(until)
        while True:
            try:
                received = self._sock.recv(USUAL)
            except self._wants_read:
                await self._ready(until, to_write=False)
            else:
                return self.inbox.only_packet(_some(received)) or await self.packet(until)

    async def exchange_both(self, payload: bytes, other: bytes, until: float, *, least: int) -> tuple[bytes, bytes]:
        """Send two packets together, and return the packet that answers each; both are at least so many bytes."""
        await self.send_each((payload, other), until)
        await self.arrival(until, least)
        return await self.packet(until), await self.packet(until)

    def receive(self) -> bool:
        """Take in what is there, without waiting; raises `ConnectionError` at the end of the connection."""
        try:
            received = self._sock.recv(USUAL)
        except self._wants_read:
            return False
        self.inbox.add(_some(received))
        self.heard += len(received)
        return True

    async def _ready(self, until: float, *, to_write: bool) -> None:
        if to_write:
            ready = await self.sockets.ready(self._sock.fileno(), to_write=True, until=until)
        else:
            ready = await self._arrived(until)
        if not ready:
            raise TimeoutError

    async def _arrived(self, until: float) -> bool:
        """Whether there is something to read by then."""
        if not self._looks:
            return await self.sockets.ready(self._sock.fileno(), to_write=False, until=until)
        while True:
            left = until - self.sockets.world.now()
            if self._has_something(ceil(min(max(left, 0.0), LONGEST_POLL) * 1000)):
                return True
            if left <= LONGEST_POLL:
                return False

    def is_quiet(self) -> bool:
        """Whether an idle connection is open, and the server has said nothing that nobody asked for."""
        if self._sock.fileno() < 0 or not self.inbox.is_empty:
            return False
        try:
            # In TLS there may be something to read that says nothing.
            return not self._has_something(0) or not self.receive()
        except OSError:
            return False

    def close(self) -> None:
        """Close it at once. The server notes in its log who leaves without a word, so there is one if it fits."""
        with contextlib.suppress(OSError):
            if self._sock.fileno() >= 0:
                self._sock.send(QUIT)
        self._sock.close()

    def let_go(self) -> None:
        """Close this process's end only, without a word: after a fork the parent goes on using the connection."""
        if self._sock.fileno() >= 0:
            os.close(self._sock.detach())


def _some(received: bytes) -> bytes:
    if not received:
        raise ConnectionError("the server closed the connection")
    return received


async def connected(family: int, place: object, sockets: Sockets, until: float) -> Stream:
    """Connect to one address; raises `OSError`, which `TimeoutError` is too."""
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        problem = sock.connect_ex(place)  # type: ignore[arg-type]
        if problem == errno.EINPROGRESS:
            if not await sockets.ready(sock.fileno(), to_write=True, until=until):
                raise TimeoutError("no answer in time")
            problem = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if problem:
            raise OSError(problem, os.strerror(problem))
        tune(sock)
    except BaseException:
        sock.close()
        raise
    return Stream(sock, sockets)
