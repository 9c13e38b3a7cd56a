"""One connection that never blocks, to one server of a quorum: connecting, getting in, asking, listening.

Whoever drives it waits until its socket is ready and calls `advance`. Replies that nobody waits for any more (a slow
server's, after the others were enough) are counted, and skipped when they come.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
from enum import Enum, auto
from typing import Any

from leasehold.core.worlds import World
from leasehold.errors import EngineError
from leasehold.wires.lookup import Places, literal_place, look_up
from leasehold.wires.quorum import Message, Quorum, entered, entry
from leasehold.wires.redis_replies import (
    LARGEST_REPLY,
    MISSING,
    Push,
    cut_off,
    is_confirmation,
    new_reader,
    no_protocol,
    unanswered,
    unreachable,
)
from leasehold.wires.redis_setup import CHANNEL_PREFIX
from leasehold.wires.sockets import tune

LONGEST_CONNECT = 5.0
SILENCE = 1.0
"""A server that owes replies and has said nothing for so long is given up."""
PAUSE_AFTER_FAILURE = 0.1
USUAL_REPLY = 4096
"""Bytes to make room for: room for the largest would cost more than to read a large one in pieces."""


class State(Enum):
    """How far a connection is."""

    CLOSED = auto()
    LOOKING_UP = auto()
    CONNECTING = auto()
    SECURING = auto()
    ENTERING = auto()
    READY = auto()


CLOSED, LOOKING_UP, READY = State.CLOSED, State.LOOKING_UP, State.READY
"""By names of their own: every request asks for them several times, and to look into an enumeration takes its time."""


class Member:
    """The connection. `poll` is told which of its sockets to watch, and for what."""

    def __init__(self, quorum: Quorum, server: int, world: World, poll: Any, members: dict[int, Member]) -> None:
        self.server, self.address = server, quorum.targets[server].address
        self.state = State.CLOSED
        self.failure: EngineError | None = None
        self.suffix = b""
        self.replies: list[Any] = []
        self.awaited = 0
        """How many replies the current request has."""
        self.outbox: Message | None = None
        """What to send once the connection is ready."""
        self.woken: list[bytes] = []
        self.owed = 0
        self.heard_at = 0.0
        self._quorum, self._world, self._poll, self._members = quorum, world, poll, members
        self._has_tls = quorum.targets[server].tls is not None
        self._not_yet = _not_yet_errors(self._has_tls)
        self._sock: Any = None
        self._number = -1
        self._reader = new_reader()
        self._since = self._owed_since = 0.0
        self._retry_at = float("-inf")
        self._found: list[Places | OSError] = []
        self._attempt = 0
        self._channel = ""
        self._unsent = b""

    # The life of a connection

    def refresh(self, now: float) -> None:
        """Begin to connect when it is time to, and give up a server that does not answer."""
        state = self.state
        if state is State.READY:
            if self.owed and now - max(self._owed_since, self.heard_at) > SILENCE:
                self.fail(unanswered(self.address))
        elif state is State.CLOSED:
            if now >= self._retry_at:
                self._begin(now)
        elif now - self._since > LONGEST_CONNECT:
            self.fail(unreachable(self.address, TimeoutError()))
        elif state is State.LOOKING_UP and self._found:
            self._connect(self._found[0])

    def _begin(self, now: float) -> None:
        self._since, self.state, self._found = now, State.LOOKING_UP, []
        (endpoint,) = self._quorum.targets[self.server].endpoints
        if endpoint.path:
            self._connect([(socket.AF_UNIX, endpoint.path)])
            return
        literal = literal_place(endpoint.host, endpoint.port)
        if literal is not None:
            self._connect(literal)
            return
        found = self._found

        def ask() -> None:
            try:
                found.append(look_up(endpoint.host, endpoint.port, LONGEST_CONNECT))
            except OSError as error:
                found.append(error)

        threading.Thread(target=ask, name="leasehold-lookup", daemon=True).start()

    def _connect(self, places: Places | OSError) -> None:
        if isinstance(places, OSError):
            self.fail(unreachable(self.address, places))
            return
        family, place = places[self._attempt % len(places)]
        try:
            self._sock = sock = socket.socket(family, socket.SOCK_STREAM)
            sock.setblocking(False)
            self.state = State.CONNECTING
            self._watch(select.POLLOUT)
            with contextlib.suppress(BlockingIOError):
                sock.connect(place)
                self._connected()  # a Unix socket connects at once
        except OSError as error:
            self.fail(unreachable(self.address, error))

    def _watch(self, events: int) -> None:
        self._number = self._sock.fileno()
        self._members[self._number] = self
        self._poll.register(self._number, events)

    def advance(self) -> None:
        """Do what can be done now that the socket is ready."""
        try:
            if self.state is READY:
                self.read()
            elif self.state is State.CONNECTING:
                error = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if error:
                    raise OSError(error, os.strerror(error))
                self._connected()
            elif self.state is State.SECURING:
                self._secure()
            elif self.state is State.ENTERING:
                self._enter()
        except self._not_yet:
            return
        except EngineError as error:
            self.fail(error)
        except OSError as error:
            self.fail(cut_off(self.address) if self.state is State.READY else unreachable(self.address, error))
        except Exception as error:  # noqa: BLE001 -- hostile bytes make the parser raise anything
            self.fail(no_protocol(self.address, error))

    def _connected(self) -> None:
        tune(self._sock)
        target = self._quorum.targets[self.server]
        if target.tls is None:
            self._say_hello()
            return
        host = target.endpoints[0].host
        self._poll.unregister(self._number)
        self._sock = target.tls.wrap_socket(self._sock, server_hostname=host, do_handshake_on_connect=False)
        self.state = State.SECURING
        self._watch(select.POLLIN | select.POLLOUT)
        self._secure()

    def _secure(self) -> None:
        import ssl

        try:
            self._sock.do_handshake()
        except ssl.SSLWantReadError:
            self._poll.modify(self._number, select.POLLIN)
        except ssl.SSLWantWriteError:
            self._poll.modify(self._number, select.POLLIN | select.POLLOUT)
        else:
            self._say_hello()

    def _say_hello(self) -> None:
        self._channel = CHANNEL_PREFIX + self._world.nonce()
        self._reader = new_reader()
        self.replies, self.awaited, self.owed = [], 0, 0
        self._unsent, self._entry_replies = entry(self._quorum, self.server, self._channel)
        self.state = State.ENTERING
        self._enter()

    def _enter(self) -> None:
        if self._unsent:
            with contextlib.suppress(*self._not_yet):
                self._unsent = self._unsent[self._sock.send(self._unsent) :]
            self._poll.modify(self._number, select.POLLIN | (select.POLLOUT if self._unsent else 0))
        with contextlib.suppress(*self._not_yet):
            self.read()
        if len(self.replies) < self._entry_replies:
            return
        replies, self.replies = self.replies, []
        self.suffix = entered(self._quorum, self.server, self._channel, replies).suffix
        self.state, self.failure = State.READY, None
        if self.outbox is not None:
            outbox, self.outbox = self.outbox, None
            self.send(outbox)

    # Asking and listening

    def send(self, message: Message) -> None:
        """Send a request, with what this connection adds.

        A connection that cannot take it all at once leads to a server that does not read, and is given up.
        """
        parts, _, plain = message
        suffix = b"" if plain else self.suffix
        data = parts[0] + suffix if len(parts) == 1 else b"".join([part + suffix for part in parts])
        self.replies, self.awaited = [], 0  # whatever came unasked is no answer to this
        try:
            sent = self._sock.send(data)
        except self._not_yet:
            sent = 0
        except OSError as error:
            self.fail(unreachable(self.address, error))
            return
        self.awaited = len(parts)
        if sent < len(data):
            self.fail(unanswered(self.address))

    def disown(self) -> None:
        """Nobody waits for the replies of the current request any more."""
        self.outbox = None
        if self.awaited:
            if not self.owed:
                self._owed_since = self._world.now()
            self.owed += self.awaited - len(self.replies)
            self.awaited, self.replies = 0, []

    def read(self) -> None:
        """Take in what came."""
        reader, receive = self._reader, self._sock.recv
        while True:
            received = receive(USUAL_REPLY)
            if not received:
                raise ConnectionResetError
            reader.feed(received)
            while (reply := reader.gets()) is not MISSING:
                if type(reply) is Push and not is_confirmation(reply):
                    self.woken.append(reply[2] if len(reply) == 3 else b"")
                elif self.owed:
                    self.owed -= 1
                else:
                    self.replies.append(reply)
            if reader.len() > LARGEST_REPLY:
                raise OverflowError
            if len(received) < USUAL_REPLY and not (self._has_tls and self._sock.pending()):
                if self.owed:
                    self.heard_at = self._world.now()
                return

    def fail(self, error: EngineError) -> None:
        """Close the connection and remember why; it is opened again after a pause."""
        self.close()
        self.failure, self._retry_at = error, self._world.now() + PAUSE_AFTER_FAILURE
        self._attempt += 1

    def close(self) -> None:
        """Close the connection."""
        if self._sock is not None:
            self._forget_socket().close()

    def let_go(self) -> None:
        """Close this process's end only: after a fork the parent goes on using the connection."""
        if self._sock is not None:
            number = self._forget_socket().detach()
            if number >= 0:
                os.close(number)

    def _forget_socket(self) -> Any:
        sock, self._sock = self._sock, None
        self._members.pop(self._number, None)
        with contextlib.suppress(KeyError, ValueError):  # it may have been interrupted before it was watched
            self._poll.unregister(self._number)
        self._number = -1
        self.state, self.replies, self.owed, self._unsent = State.CLOSED, [], 0, b""
        return sock


def _not_yet_errors(secure: bool) -> tuple[type[OSError], ...]:
    """The errors by which a socket says that it would have to wait."""
    if not secure:
        return (BlockingIOError,)
    import ssl

    return (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
