"""Connections that many callers share, each lent for one step at a time.

There are never more than a few of them: each is a process or a thread on the server. Who finds them all lent waits for
one, in the order of asking.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, Generic, Protocol, TypeVar

from leasehold.errors import EngineUnavailable
from leasehold.wires.sockets import Bell, Sockets

MOST_LINES: Final = 16
LONGEST_DOZE: Final = 1.0
"""After so long, who waits for a connection looks by itself: a caller that was interrupted may have dropped one."""


class Line(Protocol):
    """A connection, as far as a pool has to know it."""

    def is_usable(self) -> bool:
        """Whether it can carry a request, being idle."""
        ...

    def close(self) -> None:
        """Close it."""
        ...

    def let_go(self) -> None:
        """Close this process's end only: the parent goes on using it."""
        ...


LineT = TypeVar("LineT", bound=Line)


class Pool(Generic[LineT]):
    """The connections of one engine in one world."""

    def __init__(self, sockets: Sockets, connect: Callable[[float], Awaitable[LineT]], address: str) -> None:
        self._sockets, self._connect, self._address = sockets, connect, address
        self._idle: list[LineT] = []
        # A line that an interrupted caller has dropped is not counted any more.
        self._open: weakref.WeakSet[LineT] = weakref.WeakSet()
        self._connecting = 0
        self._waiting: deque[Bell] = deque()
        self._pooling = True

    async def lend(self, until: float) -> LineT:
        """A connection, to be given back in good order, or else dropped."""
        while (line := self.lend_idle()) is None:
            if len(self._open) + self._connecting < MOST_LINES:
                return await self._open_another(until)
            await self._wait_for_one(until)
        return line

    def lend_idle(self) -> LineT | None:
        """One that nobody uses, if there is one; the same as `lend`, for who cannot wait."""
        while True:
            try:
                line = self._idle.pop()
            except IndexError:
                return None
            if line.is_usable():
                return line
            self._discard(line)

    @property
    def idle(self) -> list[LineT]:
        """Those that nobody uses just now."""
        return list(self._idle)

    async def _open_another(self, until: float) -> LineT:
        self._connecting += 1
        try:
            line = await self._connect(until)
        finally:
            self._connecting -= 1
        self._open.add(line)
        return line

    async def _wait_for_one(self, until: float) -> None:
        world = self._sockets.world
        if world.now() >= until:
            raise EngineUnavailable(
                f"all {MOST_LINES} connections of this process to {self._address} were in use all the time"
            )
        bell = self._sockets.bell()
        self._waiting.append(bell)
        heard = False
        try:
            heard = await bell.wait(min(until, world.now() + LONGEST_DOZE))
        finally:
            if not heard:
                self._leave(bell)

    def _leave(self, bell: Bell) -> None:
        try:
            self._waiting.remove(bell)
        except ValueError:  # it was rung for just then, in vain: the next one shall hear it
            self._ring()

    def _ring(self) -> None:
        try:
            self._waiting.popleft().ring()
        except IndexError:
            return

    def give_back(self, line: LineT) -> None:
        """The line is in no transaction, and owes no answer."""
        if self._pooling:
            self._idle.append(line)
            if self._waiting:
                self._ring()
        else:
            self._discard(line)

    def drop(self, line: LineT) -> None:
        """Close a line that may be in a transaction, which undoes it."""
        self._discard(line)
        self._ring()

    def _discard(self, line: LineT) -> None:
        self._open.discard(line)
        line.close()

    def close(self) -> None:
        """Close what is idle. What is in use, or opened from now on, is closed when it is given back.

        A thread that still runs may need another step, after which nobody would close what it left behind.
        """
        self._pooling = False
        self.drop_idle()

    def drop_idle(self) -> None:
        """Close what is idle: what it was connected to is not what it should be any more."""
        while self._idle:
            self._discard(self._idle.pop())

    def forked(self) -> None:
        """In a forked child: let go of every inherited connection without a word to the server."""
        for line in list(self._open):
            line.let_go()
        self._idle, self._open, self._waiting = [], weakref.WeakSet(), deque()
        self._connecting = 0
