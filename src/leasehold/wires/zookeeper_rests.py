"""Rests of the tasks of one event loop, with one timer for all of them.

Each of thousands who wait would else keep a timer of its own, which is as large as all else that it keeps here; and
asyncio keeps as many that were cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
from typing import Final

from leasehold.core.worlds import World

SPARE: Final = 100
"""Of those that are over, so many may be kept, and one for every four others: to sort them out takes time."""


class Rest(asyncio.Future[None]):
    """To be awaited, by one task: returns when it was rung, by any thread, or at `until`."""

    __slots__ = ("until",)

    def __init__(self, until: float, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self.until = until

    def __lt__(self, other: Rest) -> bool:
        """Whether it ends earlier."""
        return self.until < other.until

    def ring(self) -> None:
        """Wake the task."""
        loop = self.get_loop()
        if asyncio._get_running_loop() is loop:
            self._end()
        else:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits there any more
                loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        if not self.done():
            self.set_result(None)


class Rests:
    """Those of one event loop, in the order in which they end."""

    def __init__(self, loop: asyncio.AbstractEventLoop, world: World) -> None:
        self.loop, self._world = loop, world
        self._rests: list[Rest] = []
        self._most = SPARE
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, until: float) -> Rest:
        """A new one."""
        if len(self._rests) >= self._most:
            rests = [one for one in self._rests if not one.done()]
            heapq.heapify(rests)
            self._rests, self._most = rests, len(rests) + len(rests) // 4 + SPARE
        rest = Rest(until, self.loop)
        heapq.heappush(self._rests, rest)
        if self._rests[0] is rest:
            self._wind()
        return rest

    def look(self) -> None:
        """Whoever reads sees to it that the timer runs: an interruption may have struck it."""
        if self._rests and (self._timer is None or self._timer.when() < self.loop.time()):
            self._wind()

    def _wind(self) -> None:
        """Have the timer run until the next one ends."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        ends_in = max(self._rests[0].until - self._world.now(), 0.0)
        self._timer = self.loop.call_later(ends_in, self._ring)

    def _ring(self) -> None:
        self._timer, now = None, self._world.now()
        while self._rests and (self._rests[0].until <= now or self._rests[0].done()):
            self._rests[0].ring()  # first: an interruption may lose the one that is taken out
            _ = heapq.heappop(self._rests)
        if self._rests:
            self._wind()
