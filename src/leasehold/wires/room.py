"""A few tasks at a time: ten thousand that ask at once would have a server fall so far behind that none is served."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

from leasehold.core.worlds import World
from leasehold.errors import EngineUnavailable

AT_ONCE: Final = 64
"""So many tasks of one client take names at the same time; the others wait until one of these is answered."""


class Room:
    """For the tasks of one event loop."""

    def __init__(self, world: World, server: str) -> None:
        self._world, self._server, self._places = world, server, asyncio.Semaphore(AT_ONCE)

    @contextlib.asynccontextmanager
    async def entered(self, until: float) -> AsyncIterator[None]:
        """For as long as it is entered, the caller is among the few who ask the server at the same time."""
        try:
            full = self._places.locked()
            async with asyncio.timeout(max(until - self._world.now(), 0.0)) if full else contextlib.nullcontext():
                await self._places.acquire()
        except TimeoutError:
            raise EngineUnavailable(
                f"there was no time left to ask {self._server}: others of this client came first"
            ) from None
        try:
            yield
        finally:
            self._places.release()
