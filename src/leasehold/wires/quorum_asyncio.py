"""Several servers at once for asyncio: one connection to each, shared by all tasks of an event loop."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from leasehold.core.quorum import AskGrant, Outcome, Request, majority_of
from leasehold.errors import EngineError
from leasehold.wires.quorum import (
    AFTER_FIRST_WAKE,
    GRACE,
    Codec,
    Message,
    Quorum,
    entered,
    entry,
    is_a_farewell,
    message_for,
    message_for_all,
    plain_message,
)
from leasehold.wires.redis_asyncio import AsyncLine, AsyncWire
from leasehold.wires.redis_replies import unreachable
from leasehold.wires.redis_setup import CHANNEL_PREFIX
from leasehold.worlds import AsyncWorld

Enough = Callable[[list[Any]], bool]
NONE_OF_THEM: Final[frozenset[int]] = frozenset()
"""Of the servers. One for all: an empty set takes as much memory as one that has something in it."""


class AsyncMember(AsyncWire):
    """The connection to one server."""

    def __init__(self, quorum: Quorum, server: int, woken: Callable[[int, bytes | None], object]) -> None:
        super().__init__(quorum.targets[server], quorum.label)
        self._quorum, self._server, self._woken = quorum, server, woken

    @property
    def address(self) -> str:
        """Where the server is."""
        return self._address

    @property
    def line(self) -> AsyncLine | None:
        """The connection, if there is one in the running loop."""
        line = self._line
        return line if line is not None and line.loop is asyncio.get_running_loop() else None

    def post(self, message: Message, until: float) -> asyncio.Future[list[Any]]:
        """Send a request, connecting first if need be; the future is the list of its replies."""
        line = self.line
        if line is None:
            return asyncio.ensure_future(self._connect_and_post(message, until))
        return self._post(line, message, until)

    async def _connect_and_post(self, message: Message, until: float) -> list[Any]:
        line = await self._connected(until)
        return await self._post(line, message, until)

    def _post(self, line: AsyncLine, message: Message, until: float) -> asyncio.Future[list[Any]]:
        suffix = b"" if message.plain else line.address_argument
        data = b"".join([part + suffix for part in message.parts])
        return line.send_all(data, len(message.parts), until)

    def give_up(self) -> None:
        """End the connection; the next request opens another one."""
        if self._line is not None:
            self._line.abort()

    async def _enter(self, line: AsyncLine, until: float) -> None:
        channel = CHANNEL_PREFIX + self.world.nonce()
        request, count = entry(self._quorum, self._server, channel)
        replies = await line.exchange(request, count, until)
        line.address_argument = entered(self._quorum, self._server, channel, replies).suffix

    def _wake(self, holder: bytes) -> None:
        self._woken(self._server, holder)

    def _lost(self) -> None:
        self._line = None
        self._woken(self._server, None)


class Waiter:
    """One who waits, and the servers that woke it since it asked last."""

    __slots__ = ("hearing", "servers")

    def __init__(self) -> None:
        self.servers = NONE_OF_THEM
        self.hearing: asyncio.Future[bool] | None = None

    def wake(self, server: int) -> None:
        """This server woke it, or may have."""
        self.servers |= {server}
        if self.hearing is not None:
            _settle(self.hearing, heard=True)


class Scattered:
    """One request on its way to several servers, and what is known so far."""

    def __init__(self, members: list[AsyncMember], message: Message, enough: Enough, world: AsyncWorld) -> None:
        self.outcomes: list[Any] = [None] * len(members)
        self._members, self._message, self._enough, self._world = members, message, enough, world
        self._loop = asyncio.get_running_loop()
        self._done: asyncio.Future[None] = self._loop.create_future()
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._answered, self._failed, self._needed = 0, 0, majority_of(len(members))
        self._timers: list[asyncio.TimerHandle] = []

    async def run(self, to: Sequence[int], until: float) -> list[Any]:
        """Send, and wait until it is enough, or until nothing more can come in time."""
        posted = {server: self._members[server].post(self._message, until) for server in to}
        self._pending = dict(posted)
        for server, future in posted.items():
            future.add_done_callback(lambda done, server=server: self._arrived(server, done))  # type: ignore[misc]
        self._timers.append(self._loop.call_later(max(until - self._world.now(), 0.0), self._finish))
        try:
            await self._done
        finally:
            self._finish()
            for timer in self._timers:
                timer.cancel()
            for future in posted.values():
                if isinstance(future, asyncio.Task):  # it is still connecting, and was not sent
                    future.cancel()
        return self.outcomes

    def _arrived(self, server: int, future: asyncio.Future[Any]) -> None:
        # A slow server's failure is nobody's business any more, but asyncio wants it to be looked at.
        error = None if future.cancelled() else future.exception()
        if self._done.done():
            return
        if isinstance(error, EngineError):
            self.outcomes[server] = error
            self._failed += 1
        elif error is not None:
            self._done.set_exception(error)
            return
        elif not future.cancelled():
            replies = future.result()
            self.outcomes[server] = self._message.decode(server, replies)
            self._answered += 1
            if any(map(is_a_farewell, replies)):
                self._members[server].give_up()
        self._pending.pop(server, None)
        if not self._pending or self._enough(self.outcomes):
            self._finish()
        elif self._answered == self._needed or len(self._members) - self._failed < self._needed:
            self._timers.append(self._loop.call_later(GRACE, self._finish))

    def _finish(self) -> None:
        if not self._done.done():
            self._done.set_result(None)


class AsyncQuorumWire:
    """The servers, as the tasks of an event loop see them."""

    def __init__(self, quorum: Quorum, codec: Codec) -> None:
        self.world = AsyncWorld()
        self._codec, self._needed = codec, majority_of(len(quorum.targets))
        self._members = [AsyncMember(quorum, server, self._wake) for server in range(len(quorum.targets))]
        self._everybody = range(len(self._members))
        self._waiters: dict[str, Waiter] = {}
        self._context = contextvars.copy_context()  # one for all timers, of which there are as many as tasks that wait

    def wall(self) -> int:
        """The time of day in microseconds."""
        return time.time_ns() // 1000

    async def scatter(self, request: Request, to: Sequence[int], until: float, enough: Enough) -> list[Outcome]:
        """Ask servers at once; returns what is known of each when it is enough, or when time is up."""
        if type(request) is AskGrant and request.patience is not None:
            self._waiters[request.holder] = Waiter()
        return await self._scatter(message_for(self._codec, request), to, until, enough)

    async def scatter_all(self, requests: Sequence[Request], until: float, enough: Enough) -> list[Any]:
        """Ask all servers all of this; the outcome of a server that answered is a list."""
        return await self._scatter(message_for_all(self._codec, requests), self._everybody, until, enough)

    async def collect(
        self, part: bytes, to: Sequence[int], until: float, enough: Enough, *, plain: bool = False
    ) -> list[Any]:
        """Ask servers in the protocol's own form; each outcome is the reply as it came."""
        return await self._scatter(plain_message(part, plain=plain), to, until, enough)

    async def _scatter(self, message: Message, to: Sequence[int], until: float, enough: Enough) -> list[Any]:
        outcomes = await Scattered(self._members, message, enough, self.world).run(to, until)
        for server in to:
            if outcomes[server] is None and self._members[server].line is None:  # it was not even sent
                outcomes[server] = unreachable(self._members[server].address, TimeoutError())
        return outcomes

    def cast(self, request: Request, to: Sequence[int]) -> None:
        """Tell servers, without waiting for what they say; those that cannot be reached now are not told."""
        message = message_for(self._codec, request)
        for server in to:
            if self._members[server].line is not None:
                future = self._members[server].post(message, self.world.now() + 1.0)
                future.add_done_callback(lambda done: done.cancelled() or done.exception())

    def settled(self, holder: str) -> None:
        """This holder waits no longer."""
        self._waiters.pop(holder, None)

    async def wait(self, holder: str, until: float) -> None:
        """Return once a majority has woken the holder, or soon after the first one did, or at `until`."""
        waiter, loop = self._waiters.get(holder), asyncio.get_running_loop()
        try:
            while waiter is not None and len(waiter.servers) < self._needed:
                wakes_at = min(until, self.world.now() + AFTER_FIRST_WAKE) if waiter.servers else until
                # Without a coroutine for that: each of thousands of waiting tasks would keep one.
                waiter.hearing = loop.create_future()
                left = max(wakes_at - self.world.now(), 0.0)
                timer = loop.call_later(left, _settle, waiter.hearing, context=self._context)
                try:
                    if not await waiter.hearing:
                        return
                finally:
                    timer.cancel()
        except BaseException:
            self.settled(holder)
            raise

    async def close(self) -> None:
        """Close the connections."""
        await asyncio.gather(*(member.close() for member in self._members))

    def forked(self) -> None:
        """Let go of the inherited connections without a word to the servers, nor to the parent's event loop."""
        for member in self._members:
            member.forked()
        self._waiters = {}

    def _wake(self, server: int, holder: bytes | None) -> None:
        """A server woke a holder; or its connection was lost, which is a reason for everybody to ask."""
        if holder is None:
            for waiter in list(self._waiters.values()):
                waiter.wake(server)
        elif (woken := self._waiters.get(holder.decode(errors="replace"))) is not None:
            woken.wake(server)


def _settle(hearing: asyncio.Future[bool], *, heard: bool = False) -> None:
    if not hearing.done():
        hearing.set_result(heard)
