"""Bells for tasks that wait for Consul. Thousands may wait for one name: each keeps only what it cannot do without."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
from collections.abc import Awaitable
from typing import Protocol

from leasehold.core.worlds import World


class Bell(Protocol):
    """Rung once, heard once, by one caller, who waits for a few seconds at most."""

    def wait(self, until: float) -> Awaitable[bool]:
        """To be awaited: True when it was rung, since it was made or heard; False at `until`."""
        ...

    def ring(self) -> None:
        """Wake who waits, or will wait."""
        ...


class LightBells:
    """Makes bells for the tasks of one event loop."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.context = contextvars.copy_context()
        """One for all timers, of which there are as many as tasks that wait."""

    def bell(self) -> LightBell:
        """A new bell."""
        return LightBell(self)


class LightBell:
    """A bell for one task, which waits for it without a coroutine. Any thread may ring it."""

    __slots__ = ("_bells", "_hearing", "_rung")

    def __init__(self, bells: LightBells) -> None:
        self._bells, self._rung = bells, False
        self._hearing: asyncio.Future[bool] | None = None

    def wait(self, until: float) -> asyncio.Future[bool]:
        """Suspend the task. After it was rung for one who waited, the next one may return at once, too."""
        # First be there to be woken, and then look: another thread may ring in between.
        loop = asyncio.get_running_loop()
        hearing = self._hearing = loop.create_future()
        if self._rung:
            self._rung = False
            hearing.set_result(True)
        else:
            # Nobody cancels the timer of a wait that ends sooner: it would not be long.
            left = max(until - self._bells.world.now(), 0.0)
            loop.call_later(left, _settle, hearing, context=self._bells.context)
        return hearing

    def ring(self) -> None:
        """Wake the task."""
        self._rung = True
        hearing = self._hearing
        if hearing is None:
            return
        loop = hearing.get_loop()
        if asyncio._get_running_loop() is loop:
            _settle(hearing, rung=True)
        else:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits there any more
                loop.call_soon_threadsafe(functools.partial(_settle, hearing, rung=True))


def _settle(hearing: asyncio.Future[bool], *, rung: bool = False) -> None:
    if not hearing.done():
        hearing.set_result(rung)
