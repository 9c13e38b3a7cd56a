"""Redis for threads: a socket, hiredis and nothing in between.

A request takes two system calls here, as on a bare socket: the socket gives up by itself after a few milliseconds, and
only then does anyone look at the clock.

A waiter keeps the line on which it was queued: its wake-up comes on that very connection, behind the answer, so
there is no moment in which it could be missed.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import socket
import struct
import threading
import weakref
from collections.abc import Callable
from time import monotonic
from typing import Any

from leasehold.core.engine import Grant
from leasehold.core.worlds import World, run_blocking
from leasehold.errors import EngineError
from leasehold.wires.lookout import Lookout
from leasehold.wires.redis_dial import connect_blocking
from leasehold.wires.redis_replies import (
    LARGEST_REPLY,
    MISSING,
    Push,
    bulk,
    cut_off,
    is_confirmation,
    new_reader,
    no_protocol,
    nonsense,
    parts_of_wake_up,
    unanswered,
    unreachable,
)
from leasehold.wires.redis_setup import CHANNEL_PREFIX, Hello, enter, locate
from leasehold.wires.redis_target import Target
from leasehold.wires.urls import Endpoint
from leasehold.worlds import BlockingWorld

OWN_PATIENCE = struct.pack("ll", 0, 4000)
"""How long the socket itself waits before the clock is looked at: a `timeval` of 4 ms."""
USUAL_REPLY = 4096
"""Bytes to make room for at first: room for the largest would cost more than reading does."""
MOST_IDLE_LINES = 32
TRUSTED = 0.005
"""For how long after its last use an idle line is believed to be open."""
LONGEST_POLL = 3600.0


class Line:
    """One connection. It carries one request at a time, and is closed by whatever leaves a reply unread."""

    def __init__(self, sock: socket.socket, world: World, address: str) -> None:
        self.address_argument = b""
        """Where wake-ups for this connection go, as the last argument of a request that queues."""
        self.used_at = float("-inf")
        self._sock, self._world, self._address = sock, world, address
        self._not_yet = _give_up_early(sock)
        self._send, self._receive = sock.send, sock.recv
        self._reader = new_reader()
        self._feed, self._gets = self._reader.feed, self._reader.gets
        readable, self._writable = select.poll(), select.poll()
        readable.register(sock, select.POLLIN)
        self._writable.register(sock, select.POLLOUT)
        self.poll = readable.poll
        """Whether there is something to read; called with milliseconds."""
        self._look_out = Lookout(readable.poll).look

    def ask(self, request: bytes, until: float) -> Any:
        """Send one request and return its reply. Wake-ups in front of the reply are older than it, and dropped."""
        sent = 0
        try:
            began = monotonic()
            sent = self._send(request)
            self._look_out(began)
            self._feed(self._receive(USUAL_REPLY))
            reply = self._gets()
        except self._not_yet:
            reply = MISSING
        except Exception as error:
            raise self._broken(error, sent) from error
        except BaseException:
            self.close()
            raise
        if reply is not MISSING and type(reply) is not Push:
            return reply
        return self._finish(request, 1, until, sent)[0]

    def ask_all(self, request: bytes, count: int, until: float) -> list[Any]:
        """Send a pipeline and return its replies; a subscription's confirmation is one."""
        return self._finish(request, count, until, 0)

    async def exchange(self, request: bytes, count: int, until: float) -> list[Any]:
        """`ask_all`, for setting up."""
        return self._finish(request, count, until, 0)

    def _finish(self, request: bytes, count: int, until: float, sent: int) -> list[Any]:
        """The patient way: send what is not sent yet, and read until all is there or time is up."""
        replies: list[Any] = []
        try:
            while sent < len(request):
                sent += self._send_some(request, sent, until)
            while len(replies) < count:
                reply = self._gets()
                if reply is MISSING:
                    if not self._fill(until):
                        raise TimeoutError
                elif type(reply) is not Push or is_confirmation(reply):
                    replies.append(reply)
        except Exception as error:
            raise self._broken(error, sent) from error
        except BaseException:
            self.close()
            raise
        return replies

    def _send_some(self, request: bytes, sent: int, until: float) -> int:
        with contextlib.suppress(*self._not_yet):
            return self._send(memoryview(request)[sent:])
        if not self._writable.poll(self._milliseconds_to(until)) and self._world.now() >= until:
            raise TimeoutError
        return 0

    def _fill(self, until: float) -> bool:
        """Read what there is; False when nothing came by `until`."""
        while True:
            with contextlib.suppress(*self._not_yet):
                self._read_some()
                return True
            if not self.poll(self._milliseconds_to(until)) and self._world.now() >= until:
                return False

    def _read_some(self) -> None:
        received = self._receive(65536)
        if not received:
            raise ConnectionResetError
        self._feed(received)
        if self._reader.len() > LARGEST_REPLY:
            raise OverflowError

    def _milliseconds_to(self, until: float) -> int:
        return math.ceil(min(max(until - self._world.now(), 0.0), LONGEST_POLL) * 1000)

    def listen(self, holder: str, until: float) -> bytes | None:
        """Return when this holder is woken, or at `until`: the token that it was handed, or nothing.

        None when the connection broke: it is time to ask.
        """
        try:
            while True:
                reply = self._gets()
                if reply is MISSING:
                    if not self._fill(until):
                        return b""
                elif type(reply) is not Push:
                    raise nonsense(reply, self._address)
                elif len(reply) == 3:
                    woken, token = parts_of_wake_up(reply[2])
                    if woken == holder:
                        return token
        except Exception:  # noqa: BLE001 -- whatever it is, asking again finds out
            self.close()
            return None
        except BaseException:
            self.close()
            raise

    def is_usable(self) -> bool:
        """Whether an idle line can carry a request: the server has not hung up, and said nothing but wake-ups."""
        try:
            while self.poll(0):
                self._read_some()
                while (reply := self._gets()) is not MISSING:
                    if type(reply) is not Push:
                        raise nonsense(reply, self._address)
        except self._not_yet:
            return True
        except Exception:  # noqa: BLE001 -- whatever it is, another line is needed
            self.close()
            return False
        return True

    def _broken(self, error: Exception, sent: int) -> EngineError:
        """Close the connection, and say what its end means for a request."""
        self.close()
        if not isinstance(error, OSError):
            return no_protocol(self._address, error)
        if not sent:
            return unreachable(self._address, error)
        return unanswered(self._address) if isinstance(error, TimeoutError) else cut_off(self._address)

    def close(self) -> None:
        """Close the connection."""
        self._sock.close()

    def let_go(self) -> None:
        """Close this process's end only: after a fork the parent goes on using the connection."""
        number = self._sock.detach()
        if number >= 0:
            os.close(number)

    def __del__(self) -> None:
        if hasattr(self, "_sock"):  # or it was interrupted while it was being made
            self.close()


def _give_up_early(sock: socket.socket) -> tuple[type[OSError], ...]:
    """Let the socket give up by itself, soon; returns the errors by which it says so."""
    if hasattr(sock, "pending"):  # TLS: what the socket has read may not be a whole record
        import ssl

        sock.setblocking(False)
        return (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
    sock.setblocking(True)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, OWN_PATIENCE)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, OWN_PATIENCE)
    return (BlockingIOError,)


class BlockingWire:
    """Lines to one server, shared by threads."""

    suspends = False

    def __init__(self, target: Target, label: str) -> None:
        self.world = BlockingWorld()
        self.hello: Hello | None = None
        self.read_grant: Callable[[bytes], Grant | None] = lambda _token: None
        self._now = self.world.now
        self._target, self._label, self._address = target, label, target.address
        self._idle: list[Line] = []
        self._kept: dict[int, tuple[str, Line]] = {}
        """By thread, since a thread waits for one thing at a time: its holder, and the line it was queued on."""
        self._lines: weakref.WeakSet[Line] = weakref.WeakSet()

    def ask(self, request: bytes, until: float) -> Any:
        """Send one request on any line."""
        line = self._line(until)
        reply = line.ask(request, until)
        if len(self._idle) < MOST_IDLE_LINES:  # `_put_back`, without a call: every lease comes by here twice
            self._idle.append(line)
        else:
            line.close()
        return reply

    def ask_all(self, request: bytes, count: int, until: float) -> list[Any]:
        """Send a pipeline on any line."""
        line = self._line(until)
        replies = line.ask_all(request, count, until)
        self._put_back(line)
        return replies

    def ask_to_queue(self, holder: str, request: bytes, until: float) -> Any:
        """Send a request that lacks its last argument, the address for wake-ups. Refused by a list, keep the line."""
        line = (self._kept and self._usable_kept_line(holder)) or self._line(until)
        reply = line.ask(request + line.address_argument, until)
        if type(reply) is list:
            self._kept[threading.get_ident()] = (holder, line)
        else:
            self._put_back(line)
        return reply

    def ask_to_leave(self, holder: str, request: bytes, until: float) -> Any:
        """Send the last request of a holder."""
        if not self._kept:
            return self.ask(request, until)
        line = self._usable_kept_line(holder) or self._line(until)
        reply = line.ask(request, until)
        self._put_back(line)
        return reply

    def wait(self, holder: str, until: float) -> Grant | None:
        """Wait for this holder's wake-up on the line that it was queued on; without one, it is time to ask."""
        line = self._kept_line(holder)
        token = line.listen(holder, until) if line is not None else None
        if line is None or token is None:
            return None
        if token:
            line.used_at = self._now()
            self._put_back(line)
            return self.read_grant(token)
        self._kept[threading.get_ident()] = (holder, line)
        return None

    def close(self) -> None:
        """Close what is idle. What is in use goes on, and is closed when it is forgotten."""
        while self._idle:
            self._idle.pop().close()

    def forked(self) -> None:
        """Let go of every inherited line without a word to the server."""
        for line in list(self._lines):
            line.let_go()
        self._idle, self._kept, self._lines = [], {}, weakref.WeakSet()

    def _line(self, until: float) -> Line:
        """An idle line that can carry a request, or a new one."""
        now = self._now()
        while True:
            try:
                line = self._idle.pop()
            except IndexError:
                return run_blocking(self._connect(until))
            # One that was in use a moment ago is trusted: looking costs a system call.
            if now - line.used_at < TRUSTED or not line.poll(0) or line.is_usable():
                line.used_at = now
                return line

    def _kept_line(self, holder: str) -> Line | None:
        """The line that this thread's waiter was queued on. One of an earlier, interrupted waiter is closed."""
        kept = self._kept.pop(threading.get_ident(), None)
        if kept is None:
            return None
        keeper, line = kept
        if keeper != holder:
            line.close()
            return None
        return line

    def _usable_kept_line(self, holder: str) -> Line | None:
        line = self._kept_line(holder)
        return line if line is not None and (not line.poll(0) or line.is_usable()) else None

    def _put_back(self, line: Line) -> None:
        if len(self._idle) < MOST_IDLE_LINES:
            self._idle.append(line)
        else:
            line.close()

    async def _connect(self, until: float) -> Line:
        endpoint = await locate(self._target, self._dial, self.world, until)
        line = await self._dial(endpoint, until)
        channel = CHANNEL_PREFIX + self.world.nonce()
        try:
            self.hello = await enter(line, self._target, channel, self._label, until)
        except BaseException:
            line.close()
            raise
        line.address_argument = bulk(channel.encode())
        self._lines.add(line)
        return line

    async def _dial(self, endpoint: Endpoint, until: float) -> Line:
        return Line(connect_blocking(endpoint, self._target.tls, self.world, until), self.world, self._address)
