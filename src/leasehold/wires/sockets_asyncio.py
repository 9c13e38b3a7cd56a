"""Waiting for a socket, or for a bell, in asyncio; see `leasehold.wires.sockets`."""

from __future__ import annotations

import asyncio
import contextlib

from leasehold.core.worlds import World
from leasehold.wires.lookup import Places, look_up_asyncio
from leasehold.worlds import AsyncWorld


class AsyncBell:
    """A bell for the tasks of one event loop. Any thread may ring it."""

    __slots__ = ("_hearing", "_rung", "_world")

    def __init__(self, world: World) -> None:
        self._world, self._rung = world, False
        self._hearing: asyncio.Future[bool] | None = None

    async def wait(self, until: float) -> bool:
        """Suspend the task."""
        # First be there to be woken, and then look: another thread may ring in between.
        loop = asyncio.get_running_loop()
        hearing = self._hearing = loop.create_future()
        if not self._rung:
            # Without a coroutine for that: each of thousands of waiting tasks would keep one.
            timer = loop.call_later(max(until - self._world.now(), 0.0), _settle, hearing, False)
            try:
                await hearing
            finally:
                timer.cancel()
        self._hearing = None
        rung, self._rung = self._rung, False
        return rung

    def ring(self) -> None:
        """Wake the task."""
        self._rung = True
        hearing = self._hearing
        if hearing is None:
            return
        loop = hearing.get_loop()
        if asyncio._get_running_loop() is loop:
            _settle(hearing)
        else:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits there any more
                loop.call_soon_threadsafe(_settle, hearing)


class AsyncSockets:
    """For the tasks of whichever event loop runs."""

    def __init__(self) -> None:
        self.world = AsyncWorld()

    async def ready(self, socket: int, *, to_write: bool, until: float) -> bool:
        """Suspend the task."""
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[bool] = loop.create_future()
        loop.add_reader(socket, _settle, ready)
        if to_write:
            loop.add_writer(socket, _settle, ready)
        timer = loop.call_later(max(until - self.world.now(), 0.0), _settle, ready, False)
        try:
            return await ready
        finally:
            timer.cancel()
            loop.remove_reader(socket)
            if to_write:
                loop.remove_writer(socket)

    async def look_up(self, host: str, port: int, until: float) -> Places:
        """Suspend the task."""
        async with asyncio.timeout(max(until - self.world.now(), 0.0)):
            return await look_up_asyncio(host, port)

    def bell(self) -> AsyncBell:
        """A bell for tasks."""
        return AsyncBell(self.world)


def _settle(future: asyncio.Future[bool], outcome: bool = True) -> None:
    if not future.done():
        future.set_result(outcome)
