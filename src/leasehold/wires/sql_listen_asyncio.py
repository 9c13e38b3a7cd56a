"""Hearing wake-ups in asyncio: the event loop reads as soon as there is something to read."""

from __future__ import annotations

import asyncio

from leasehold.core.engine import Grant
from leasehold.wires.sql_listen import Ear, Listener, Waiter


class AsyncListener(Listener):
    """Tasks sleep until the loop has heard of them."""

    def _usable(self) -> Ear | None:
        ear = self._ear
        if ear is None or ear.line is None or ear.loop is asyncio.get_running_loop():
            return ear
        self.close()  # its loop has ended, and nobody would read
        return None

    def _opened(self, ear: Ear) -> None:
        ear.loop = asyncio.get_running_loop()
        if ear.line is not None:
            ear.loop.add_reader(ear.socket, self._read, ear)

    async def _wait(self, holder: str, waiter: Waiter, until: float) -> Grant | None:
        while not waiter.woken and await waiter.bell.wait(until):
            continue
        return self._handed(holder, waiter)

    def _lose(self, ear: Ear) -> None:
        if ear.line is not None and ear.loop is not None and not ear.loop.is_closed():
            ear.loop.remove_reader(ear.socket)
        super()._lose(ear)
