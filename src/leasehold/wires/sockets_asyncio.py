"""Waiting for a socket, or for a bell, in asyncio; see `leasehold.wires.sockets`."""

from __future__ import annotations

import asyncio

from leasehold.wires.lookup import Places, look_up_asyncio
from leasehold.wires.task_bell import TaskBell
from leasehold.worlds import AsyncWorld


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

    def bell(self) -> TaskBell:
        """A bell for tasks."""
        return TaskBell(self.world)


def _settle(future: asyncio.Future[bool], outcome: bool = True) -> None:
    if not future.done():
        future.set_result(outcome)
