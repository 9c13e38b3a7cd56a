"""Redis for asyncio: one connection for everybody.

Requests of all tasks are pipelined on it, and the server's wake-ups come on it too, between the replies. A request
that is not answered in time fails alone; the connection is given up when the server has been silent as well.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import socket
import weakref
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from leasehold.core.engine import Grant
from leasehold.core.worlds import World
from leasehold.errors import EngineError
from leasehold.wires.redis_dial import connect_asyncio
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
from leasehold.worlds import AsyncWorld

SILENCE = 1.0
"""A server that owes an answer and has said nothing for so long is given up when a request runs out of time."""
LONGEST_CONNECT = 5.0
PAUSE_AFTER_FAILURE = 0.05
"""After a failed attempt to connect, everybody fails for so long: thousands of waiters must not dial in turn."""
LONGEST_FAREWELL = 0.5


class Asked:
    """A request, or a pipeline of them, whose replies are under way."""

    __slots__ = ("future", "left", "replies", "until")

    def __init__(self, future: asyncio.Future[Any], until: float, left: int, replies: list[Any] | None) -> None:
        self.future, self.until, self.left, self.replies = future, until, left, replies


class AsyncLine(asyncio.Protocol):
    """The connection. Replies come in the order of the requests; wake-ups in between."""

    def __init__(self, sock: socket.socket, world: World, address: str) -> None:
        self.loop = asyncio.get_running_loop()
        self.address_argument = b""
        """Where wake-ups for this connection go, as the last argument of a request that queues."""
        self.woken: Callable[[bytes], object] = lambda _holder: None
        self.lost: Callable[[], object] = lambda: None
        self.closed = self.loop.create_future()
        self._sock, self._world, self._address = sock, world, address
        self._transport: asyncio.Transport | None = None
        self._reader = new_reader()
        self._asked: deque[Asked] = deque()
        self._heard_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._failure: EngineError | None = None

    def send(self, request: bytes, until: float) -> asyncio.Future[Any]:
        """Send one request; the future is its reply."""
        return self._send(request, until, 1, None)

    def send_all(self, request: bytes, count: int, until: float) -> asyncio.Future[Any]:
        """Send a pipeline; the future is the list of its replies."""
        return self._send(request, until, count, [])

    async def exchange(self, request: bytes, count: int, until: float) -> list[Any]:
        """`send_all`, for setting up."""
        replies: list[Any] = await self.send_all(request, count, until)
        return replies

    def _send(self, request: bytes, until: float, left: int, replies: list[Any] | None) -> asyncio.Future[Any]:
        future = self.loop.create_future()
        transport = self._transport
        if transport is None or transport.is_closing():
            future.set_exception(unreachable(self._address, "the connection was closed"))
            return future
        if not self._asked:
            self._heard_at = self._world.now()
        self._asked.append(Asked(future, until, left, replies))
        transport.write(request)
        if self._timer is None or until < self._timer_at:
            self._watch(until)
        return future

    def _watch(self, until: float) -> None:
        """Look at what is overdue at `until`; one timer serves every request."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = until
        self._timer = self.loop.call_later(max(until - self._world.now(), 0.0), self._fail_overdue)

    def _fail_overdue(self) -> None:
        self._timer = None
        now = self._world.now()
        overdue, earliest = False, None
        for asked in self._asked:
            if asked.future.done():
                continue
            if asked.until <= now:
                overdue = True
                asked.future.set_exception(unanswered(self._address))
            elif earliest is None or asked.until < earliest:
                earliest = asked.until
        if overdue and now - self._heard_at >= SILENCE:
            self.abort()
        elif earliest is not None:
            self._watch(earliest)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Hand out replies and wake-ups."""
        reader = self._reader
        self._heard_at = self._world.now()
        try:
            reader.feed(data)
            while (reply := reader.gets()) is not MISSING:
                if type(reply) is not Push or is_confirmation(reply):
                    self._answer(reply)
                elif len(reply) == 3:
                    self.woken(reply[2])
            if reader.len() > LARGEST_REPLY:
                raise OverflowError
        except EngineError as error:
            self._failure = error
            self.abort()
        except Exception as error:  # noqa: BLE001 -- hostile bytes make the parser raise anything
            self._failure = no_protocol(self._address, error)
            self.abort()

    def _answer(self, reply: Any) -> None:
        if not self._asked:
            raise nonsense(reply, self._address)
        asked = self._asked[0]
        if asked.replies is not None:
            asked.replies.append(reply)
            reply = asked.replies
            asked.left -= 1
            if asked.left:
                return
        self._asked.popleft()
        if not asked.future.done():
            asked.future.set_result(reply)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 -- why it ended changes nothing
        """Tell everybody who is owed an answer, and everybody who waits."""
        if self._timer is not None:
            self._timer.cancel()
        failure = self._failure or cut_off(self._address)
        for asked in self._asked:
            if not asked.future.done():
                asked.future.set_exception(type(failure)(*failure.args))
        self._asked.clear()
        self.lost()
        if not self.closed.done():
            self.closed.set_result(None)

    def abort(self) -> None:
        """End the connection now."""
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """End the connection in good order."""
        if self._transport is not None:
            self._transport.close()

    def let_go(self) -> None:
        """Close this process's end only. The transport is left alone: it would touch the loop that the parent runs."""
        number = self._sock.detach()
        if number >= 0:
            os.close(number)


class AsyncWire:
    """One line to one server, shared by the tasks of an event loop."""

    suspends = True

    def __init__(self, target: Target, label: str) -> None:
        self.world = AsyncWorld()
        self.hello: Hello | None = None
        self.read_grant: Callable[[bytes], Grant | None] = lambda _token: None
        self._target, self._label, self._address = target, label, target.address
        self._line: AsyncLine | None = None
        self._wakes: dict[str, asyncio.Future[bytes] | bytes | None] = {}
        """For each queued holder: the wake-up that has come; else who waits for it; None while nobody does."""
        self._connecting: asyncio.Task[AsyncLine | EngineError] | None = None
        self._failure: EngineError | None = None
        self._failed_at = float("-inf")
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._left_behind: list[Any] = []
        self._context = contextvars.copy_context()  # one for all timers, of which there are as many as tasks that wait

    def ask(self, request: bytes, until: float) -> Awaitable[Any]:
        """Send one request."""
        line = self._line
        if line is None or line.loop is not asyncio.get_running_loop():
            return self._connect_and_ask(request, until)
        return line.send(request, until)

    async def _connect_and_ask(self, request: bytes, until: float) -> Any:
        line = await self._connected(until)
        return await line.send(request, until)

    async def ask_all(self, request: bytes, count: int, until: float) -> list[Any]:
        """Send a pipeline."""
        line = await self._connected(until)
        replies: list[Any] = await line.send_all(request, count, until)
        return replies

    async def ask_to_queue(self, holder: str, request: bytes, until: float) -> Any:
        """Send a request that lacks its last argument, the address for wake-ups. Refused by a list, expect one."""
        line = self._line
        if line is None or line.loop is not asyncio.get_running_loop():
            line = await self._connected(until)
        self._wakes[holder] = reply = None
        try:
            answer = line.send(request + line.address_argument, until)
            del request  # on its way: not to be kept by everyone of thousands who come to wait at once
            reply = await answer
        finally:
            if type(reply) is not list:
                self._wakes.pop(holder, None)
        return reply

    def ask_to_leave(self, holder: str, request: bytes, until: float) -> Awaitable[Any]:
        """Send the last request of a holder."""
        self._wakes.pop(holder, None)
        return self.ask(request, until)

    async def wait(self, holder: str, until: float) -> Grant | None:
        """Wait for this holder's wake-up; without one to expect, it is time to ask."""
        token = self._wakes.get(holder, b"")
        try:
            if not isinstance(token, bytes):
                loop = asyncio.get_running_loop()
                woken = self._wakes[holder] = loop.create_future()
                timer = loop.call_later(max(until - self.world.now(), 0.0), _settle, woken, context=self._context)
                try:
                    token = await woken
                finally:
                    timer.cancel()
        finally:
            self._wakes.pop(holder, None)
        return self.read_grant(token) if token else None

    async def close(self) -> None:
        """Close the connection; tasks that still use it find it broken."""
        connecting, line = self._connecting, self._line
        self._connecting = self._line = None
        if connecting is not None:
            connecting.cancel()
        if line is not None and line.loop is asyncio.get_running_loop():
            line.close()
            await asyncio.wait({line.closed}, timeout=LONGEST_FAREWELL)
            line.abort()

    def forked(self) -> None:
        """Let go of the inherited connection without a word to the server, nor to the parent's event loop."""
        for sock in list(self._sockets):
            number = sock.detach()
            if number >= 0:
                os.close(number)
        self._forget()

    def _forget(self) -> None:
        # A transport that is collected would close itself through its loop; it is kept, and never touched again.
        self._left_behind.append((self._line, self._connecting, self._wakes))
        self._line, self._connecting, self._wakes, self._failure = None, None, {}, None

    async def _connected(self, until: float) -> AsyncLine:
        loop = asyncio.get_running_loop()
        if self._line is not None:
            if self._line.loop is loop:
                return self._line
            self._line.let_go()  # its loop has ended
            self._forget()
        if self._failure is not None and self.world.now() < self._failed_at + PAUSE_AFTER_FAILURE:
            raise type(self._failure)(*self._failure.args)
        if self._connecting is None or self._connecting.get_loop() is not loop:
            self._connecting = loop.create_task(self._connect())
        connecting = self._connecting
        await asyncio.wait({connecting}, timeout=max(until - self.world.now(), 0.0))
        if not connecting.done():
            raise unreachable(self._address, TimeoutError())
        outcome = unreachable(self._address, "closed") if connecting.cancelled() else connecting.result()
        if isinstance(outcome, EngineError):
            raise type(outcome)(*outcome.args)
        return outcome

    async def _connect(self) -> AsyncLine | EngineError:
        """One attempt, for all who wait for it. Its failure is a value, so that each of them can raise its own."""
        line = None
        try:
            until = self.world.now() + LONGEST_CONNECT
            endpoint = await locate(self._target, self._dial, self.world, until)
            line = await self._dial(endpoint, until)
            await self._enter(line, until)
        except EngineError as error:
            if line is not None:
                line.abort()
            self._failure, self._failed_at = error, self.world.now()
            return error
        except BaseException:
            if line is not None:
                line.abort()
            raise
        else:
            line.woken, line.lost = self._wake, self._lost
            self._line, self._failure = line, None
            return line
        finally:
            self._connecting = None

    async def _enter(self, line: AsyncLine, until: float) -> None:
        channel = CHANNEL_PREFIX + self.world.nonce()
        self.hello = await enter(line, self._target, channel, self._label, until)
        line.address_argument = bulk(channel.encode())

    async def _dial(self, endpoint: Endpoint, until: float) -> AsyncLine:
        def make(sock: socket.socket) -> AsyncLine:
            self._sockets.add(sock)
            return AsyncLine(sock, self.world, self._address)

        return await connect_asyncio(endpoint, self._target.tls, self.world, until, make)

    def _wake(self, message: bytes) -> None:
        holder, token = parts_of_wake_up(message)
        if holder in self._wakes:
            self._settle(holder, token)

    def _lost(self) -> None:
        """Wake everybody: they ask again, on a new connection."""
        self._line = None
        for holder in self._wakes:
            self._settle(holder)

    def _settle(self, holder: str, token: bytes = b"") -> None:
        """The first wake-up counts, whether or not anybody waits for it yet."""
        woken = self._wakes[holder]
        if woken is None:
            self._wakes[holder] = token
        elif not isinstance(woken, bytes):
            _settle(woken, token)


def _settle(future: asyncio.Future[bytes], token: bytes = b"") -> None:
    if not future.done():
        future.set_result(token)
