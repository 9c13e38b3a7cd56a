"""A bell for one task, which keeps as little as possible: thousands may wait, each for its own.

What is awaited is a future, and no coroutine.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading

from leasehold.core.worlds import World


class _OfTimers(threading.local):
    """One context for all timers of a thread, since nothing that they do asks for it, and each would copy its own."""

    def __init__(self) -> None:
        self.context = contextvars.Context()


_OF_TIMERS = _OfTimers()


class TaskBell:
    """Any thread may ring it. Who is cancelled while it waits has a timer left, unless it lets the bell `rest`."""

    __slots__ = ("_hearing", "_rung", "_timer", "_world")

    def __init__(self, world: World) -> None:
        self._world, self._rung = world, False
        self._hearing: asyncio.Future[bool] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def wait(self, until: float) -> asyncio.Future[bool]:
        """To be awaited: returns True when it was rung, since it was made or heard; False at `until`."""
        # First be there to be woken, and then look: another thread may ring in between.
        loop = asyncio.get_running_loop()
        hearing = self._hearing = loop.create_future()
        seconds = max(until - self._world.now(), 0.0)
        self._timer = loop.call_later(seconds, _settle, hearing, False, context=_OF_TIMERS.context)
        if self._rung:
            self._tell(hearing)
        return hearing

    def ring(self) -> None:
        """Wake the task."""
        self._rung = True
        hearing = self._hearing
        if hearing is None:
            return
        loop = hearing.get_loop()
        if asyncio._get_running_loop() is loop:
            self._tell(hearing)
        else:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits there any more
                loop.call_soon_threadsafe(self._tell, hearing)

    def _tell(self, hearing: asyncio.Future[bool]) -> None:
        if not hearing.done():
            self._rung = False
            hearing.set_result(True)
            self.rest()

    def rest(self) -> None:
        """Nobody waits any more."""
        if self._timer is not None:
            self._timer.cancel()


def _settle(future: asyncio.Future[bool], outcome: bool) -> None:
    if not future.done():
        future.set_result(outcome)
