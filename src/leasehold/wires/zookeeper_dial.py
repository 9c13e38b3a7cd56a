"""Connecting to a server of an ensemble in time, in either world, and establishing the session there."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from leasehold.errors import EngineError, EngineUnavailable
from leasehold.wires import zookeeper_messages as messages
from leasehold.wires.sockets import Sockets, tune
from leasehold.wires.urls import Endpoint, Hidden
from leasehold.wires.zookeeper_address import Address
from leasehold.wires.zookeeper_errors import nonsense, refusal, unreachable
from leasehold.wires.zookeeper_line import CHUNK, Later, Line
from leasehold.wires.zookeeper_messages import Connected, Malformed
from leasehold.wires.zookeeper_sasl import Exchange

if TYPE_CHECKING:
    import ssl

LONGEST_ANSWER: Final = 4096


class Dialled(NamedTuple):
    """A connection, and what the server said of the session."""

    line: Line
    connected: Connected
    sent_at: float
    """When the session was asked for: from then on the leader knows of it."""
    endpoint: Endpoint


async def dial(
    address: Address, endpoints: Sequence[Endpoint], sockets: Sockets, hello: bytes, until: float
) -> Dialled:
    """Establish the session that `hello` asks for on the first server that lets us, or raise by `until`."""
    failure: EngineError = unreachable(str(address), "its names have no addresses")
    for position, endpoint in enumerate(endpoints):
        # Leave a share of the time for the others.
        share = (until - sockets.world.now()) / (len(endpoints) - position)
        try:
            return await _dial_endpoint(address, endpoint, sockets, hello, sockets.world.now() + share)
        except EngineUnavailable as error:
            failure = error
    raise failure


async def _dial_endpoint(address: Address, endpoint: Endpoint, sockets: Sockets, hello: bytes, until: float) -> Dialled:
    failure: OSError | str = "its name has no address"
    try:
        places = await sockets.look_up(endpoint.host, endpoint.port, until)
    except OSError as error:
        raise unreachable(str(endpoint), error) from None
    for position, (family, place) in enumerate(places):
        share = (until - sockets.world.now()) / (len(places) - position)
        sock = socket.socket(family, socket.SOCK_STREAM)
        dialogue = _Dialogue(sock, sockets, endpoint, sockets.world.now() + share)
        try:
            await dialogue.connect(place, address.tls)
            sent_at = sockets.world.now()
            connected = await dialogue.greet(hello, address)
        except OSError as error:
            dialogue.sock.close()
            failure = error
        except BaseException:
            dialogue.sock.close()
            raise
        else:
            line = Line(dialogue.sock, str(endpoint), sockets.world.now(), dialogue.later)
            return Dialled(line, connected, sent_at, endpoint)
    raise unreachable(str(endpoint), failure)


class _Dialogue:
    """The first words on a new connection, within a deadline."""

    def __init__(self, sock: socket.socket, sockets: Sockets, endpoint: Endpoint, until: float) -> None:
        self.sock, self._sockets, self._endpoint, self._until = sock, sockets, endpoint, until
        self._received = bytearray()
        self.later: Later = (BlockingIOError,)
        """The errors by which the socket says that it is not ready."""

    async def connect(self, place: Any, tls: ssl.SSLContext | None) -> None:
        self.sock.setblocking(False)
        if self.sock.connect_ex(place):
            await self._ready(to_write=True)
            error = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if error:
                raise OSError(error, os.strerror(error))
        tune(self.sock)
        if tls is not None:
            import ssl

            self.later = (ssl.SSLWantReadError, ssl.SSLWantWriteError)
            self.sock = tls.wrap_socket(self.sock, server_hostname=self._endpoint.host, do_handshake_on_connect=False)
            await self._shake_hands(self.sock)

    async def _shake_hands(self, sock: ssl.SSLSocket) -> None:
        while True:
            try:
                sock.do_handshake()
                return
            except self.later:  # what it sends here always fits
                await self._ready(to_write=False)

    async def _ready(self, *, to_write: bool) -> None:
        if not await self._sockets.ready(self.sock.fileno(), to_write=to_write, until=self._until):
            raise TimeoutError

    async def greet(self, hello: bytes, address: Address) -> Connected:
        """Ask for the session, and log in."""
        try:
            await self._send(hello)
            connected = messages.connected_in(await self._receive())
            if address.login is not None and connected.timeout > 0:
                if address.sasl:
                    await self._log_in_by_sasl(address.login)
                else:
                    await self._told(messages.log_in("digest", address.login.encode()))
            return connected
        except Malformed as error:
            raise nonsense(str(self._endpoint), error) from None

    async def _log_in_by_sasl(self, login: Hidden) -> None:
        exchange = Exchange(login)
        challenge = messages.sasl_in(await self._told(messages.sasl(b"")))
        proof = messages.sasl_in(await self._told(messages.sasl(exchange.answer(challenge))))
        if not exchange.accepts(proof):
            raise nonsense(str(self._endpoint), "it does not prove that it knows the user's password")

    async def _told(self, message: bytes) -> bytes:
        """Say who one is, and return what is answered."""
        await self._send(message)
        number, reply = messages.reply_in(await self._receive())
        if number != messages.LET_IN or reply.error != messages.OK:
            raise refusal(reply.error, str(self._endpoint), "while logging in")
        return reply.body

    async def _send(self, message: bytes) -> None:
        while message:
            try:
                message = message[self.sock.send(message) :]
            except self.later:
                await self._ready(to_write=True)

    async def _receive(self) -> bytes:
        while (message := messages.frame_in(self._received, LONGEST_ANSWER)) is None:
            try:
                data = self.sock.recv(CHUNK)
            except self.later:
                await self._ready(to_write=False)
                continue
            if not data:
                raise unreachable(
                    str(self._endpoint),
                    "it closed the connection without an answer, as one does that has lost the majority of its "
                    "ensemble, is behind what this client has seen, or wants TLS",
                )
            self._received += data
        return message
