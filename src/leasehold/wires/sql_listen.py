"""Hearing wake-ups: one connection of an engine listens, on a channel that only it has, for all who wait.

On PostgreSQL it keeps, while it is open, an advisory lock whose key is in the channel's name: whoever is about to wake
somebody here finds out, by the same lock, whether anybody hears it. MySQL's way is in `leasehold.wires.mysql_ear`.

What is said is the holder that is to ask again; with a token behind it, the name was handed to this holder.
"""

from __future__ import annotations

import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, Protocol

from leasehold.core.engine import Grant
from leasehold.names import HIGHEST_TOKEN
from leasehold.wires.sockets import Bell, Sockets

LONGEST_LEAD: Final = 5.0
"""A thread that reads for the others does so for no longer; if it was interrupted, another takes over then."""
LONGEST_OPENING: Final = 1.0
SHORT_PATIENCE: Final = 0.5
"""Who waits for no longer than this, in seconds, is not worth another connection, which takes a part of that itself."""
LONGEST_DOZE, LONGEST_SHORT_DOZE = 0.5, 0.05
"""After how long one who cannot be woken asks again, in seconds: well within a turn of the queue."""
LONGEST_TOKEN: Final = 19
_CHANNEL: Final = re.compile(r"leasehold_([0-9a-f]{16})", re.ASCII)


def new_channel(nonce: str) -> str:
    """A channel that nobody else has."""
    return f"leasehold_{nonce[:16]}"


def key_of(channel: str) -> int | None:
    """The key of the lock that the listener on this channel holds, a signed number of 64 bits; None if it is none."""
    match = _CHANNEL.fullmatch(channel)
    return None if match is None else (int(match[1], 16) ^ 2**63) - 2**63


class Line(Protocol):
    """A connection that news comes in on."""

    @property
    def socket(self) -> int:
        """The number of its socket."""
        ...

    def notifications(self) -> list[tuple[str, str]]:
        """Read what the socket has, and return channels and payloads; raises `ConnectionError` when it broke."""
        ...

    def close(self) -> None:
        """Close it."""
        ...

    def let_go(self) -> None:
        """Close this process's end only: the parent goes on using it."""
        ...


class Ear:
    """A connection that listens on a channel; or none, and then who waits asks again every now and then."""

    __slots__ = ("channel", "doze", "line", "loop", "socket")

    def __init__(self, line: Line | None, channel: str = "", *, doze: float = LONGEST_DOZE) -> None:
        self.line, self.channel, self.doze = line, channel, doze
        self.socket = -1 if line is None else line.socket
        self.loop: Any = None
        """The event loop that reads from it."""


_NOT_WORTH_IT: Final = Ear(None, doze=LONGEST_SHORT_DOZE)


class Waiter:
    """One holder that waits to be woken, through the ear that it was queued with."""

    __slots__ = ("bell", "ear", "handed", "woken")

    def __init__(self, ear: Ear, bell: Bell) -> None:
        self.ear, self.bell, self.woken = ear, bell, False
        self.handed: Grant | None = None

    def wake(self, handed: Grant | None = None) -> None:
        """Let it return from its wait, now or when it comes to wait."""
        self.woken, self.handed = True, handed or self.handed
        self.bell.ring()


class Listener(ABC):
    """Who waits, and the connection that is opened when somebody does."""

    def __init__(self, sockets: Sockets, open_ear: Callable[[float], Awaitable[Ear]]) -> None:
        self._sockets, self._world, self._open_ear = sockets, sockets.world, open_ear
        self._waiters: dict[str, Waiter] = {}
        self._ear: Ear | None = None
        self._opened_by = 0.0
        """Until when somebody is about to open the connection."""

    async def listen(self, holder: str, patience: float, until: float) -> str:
        """Be ready for the wake-ups of a holder; returns the channel that they come on, or nothing."""
        while (ear := self._usable()) is None:
            if patience <= SHORT_PATIENCE:
                ear = _NOT_WORTH_IT
                break
            await self._open(until)
        self._waiters[holder] = Waiter(ear, self._sockets.bell())
        return ear.channel

    def _usable(self) -> Ear | None:
        return self._ear

    async def _open(self, until: float) -> None:
        """Open the connection, or give another who does a little time for it."""
        now = self._world.now()
        if now < min(self._opened_by, until):  # who has no time left to wait for another meets the error by itself
            await self._world.sleep(min(0.005, self._opened_by - now))
            return
        # Should two do so at the same time, the waiters of the one that is replaced ask again at once.
        self._opened_by = min(until, now + LONGEST_OPENING)
        try:
            ear = await self._open_ear(until)
            replaced, self._ear = self._ear, ear
            self._opened(ear)
        finally:
            self._opened_by = 0.0
        if replaced is not None:
            self._lose(replaced)

    @abstractmethod
    def _opened(self, ear: Ear) -> None:
        """Begin to read from it, where nobody has to wait for that."""

    def awaits(self, holder: str) -> bool:
        """Whether this holder listens, and was not handed the name."""
        return holder in self._waiters

    def wait(self, holder: str, until: float) -> Coroutine[Any, Any, Grant | None]:
        """To be awaited: returns when this holder is woken or cannot be, or at `until`; with what it was handed.

        It is no coroutine of its own: each of thousands of waiting tasks would keep one.
        """
        waiter = self._waiters.get(holder)
        if waiter is not None and waiter.ear is self._ear and waiter.ear.line is not None:
            return self._wait(holder, waiter, until)
        return self._pass_time(holder, waiter, until)

    @abstractmethod
    async def _wait(self, holder: str, waiter: Waiter, until: float) -> Grant | None:
        """Wait for it to be woken; returns what it was `_handed`."""

    async def _pass_time(self, holder: str, waiter: Waiter | None, until: float) -> Grant | None:
        """What one does who cannot be woken: it asks again after a while, or at once when it could be until now."""
        if waiter is None:
            return None
        if waiter.ear.line is None:
            doze = waiter.ear.doze * (0.5 + 0.5 * self._world.chance())
            await self._world.sleep(max(min(doze, until - self._world.now()), 0.0))
        return self._handed(holder, waiter)

    def _handed(self, holder: str, waiter: Waiter) -> Grant | None:
        if waiter.handed is not None:
            self.ignore(holder)
        return waiter.handed

    def ignore(self, holder: str) -> None:
        """No more wake-ups for this holder."""
        self._waiters.pop(holder, None)

    def _read(self, ear: Ear) -> None:
        """Hand out the wake-ups that have come; all of them, when the connection broke."""
        try:
            heard = ear.line.notifications() if ear.line is not None else []
        except ConnectionError:
            self._lose(ear)
            return
        for _, said in heard:
            holder, _, token = said.partition(" ")
            waiter = self._waiters.get(holder)
            if waiter is not None:
                waiter.wake(_granted(token))

    def _lose(self, ear: Ear) -> None:
        """Everybody asks again, and queues with another connection."""
        if self._ear is ear:
            self._ear = None
        if ear.line is not None:
            ear.line.close()
        for waiter in list(self._waiters.values()):
            if waiter.ear is ear:
                waiter.wake()

    def close(self) -> None:
        """Close the connection; it is opened again when somebody waits."""
        if self._ear is not None:
            self._lose(self._ear)

    def forked(self) -> None:
        """In a forked child: let go of the inherited connection without a word to the server."""
        ear, self._ear, self._waiters, self._opened_by = self._ear, None, {}, 0.0
        if ear is not None and ear.line is not None:
            ear.line.let_go()


def _granted(token: str) -> Grant | None:
    """What was handed over; where that cannot be understood, its holder asks, and is told."""
    number = int(token) if token.isascii() and token.isdigit() and len(token) <= LONGEST_TOKEN else 0
    return Grant(number) if 0 < number <= HIGHEST_TOKEN else None


class BlockingListener(Listener):
    """Of the threads that wait, one at a time reads for all of them; when it leaves, another one goes on."""

    def __init__(self, sockets: Sockets, open_ear: Callable[[float], Awaitable[Ear]]) -> None:
        super().__init__(sockets, open_ear)
        self._guard = threading.Lock()
        self._read_until = 0.0
        """Until when somebody reads for the others."""
        self._dozing: dict[str, Waiter] = {}

    def _opened(self, ear: Ear) -> None:
        """Who waits reads."""

    async def _wait(self, holder: str, waiter: Waiter, until: float) -> Grant | None:
        try:
            while not waiter.woken and waiter.ear is self._ear and self._world.now() < until:
                # Before looking whether somebody reads: who stops to read looks here afterwards.
                self._dozing[holder] = waiter
                reads_until = self._takes_over(until)
                if reads_until is None:
                    await waiter.bell.wait(min(until, self._read_until))
                else:
                    self._dozing.pop(holder, None)
                    await self._read_for_all(waiter, reads_until)
        finally:
            self._dozing.pop(holder, None)
            if self._world.now() >= self._read_until:
                self._hand_over()
        return self._handed(holder, waiter)

    def _takes_over(self, until: float) -> float | None:
        """Until when this caller reads for the others, or None if somebody else does."""
        now = self._world.now()
        with self._guard:
            if now < self._read_until:
                return None
            self._read_until = min(until, now + LONGEST_LEAD)
            return self._read_until

    async def _read_for_all(self, waiter: Waiter, until: float) -> None:
        try:
            while not waiter.woken and self._world.now() < until:
                if await self._sockets.ready(waiter.ear.socket, to_write=False, until=until):
                    with self._guard:
                        self._read(waiter.ear)
        finally:
            if self._read_until == until:  # nobody has taken over yet
                self._read_until = 0.0

    def _hand_over(self) -> None:
        """Let one of those who doze read from now on."""
        for waiter in list(self._dozing.values()):
            waiter.bell.ring()
            return

    def forked(self) -> None:
        """In a forked child there are no such threads."""
        super().forked()
        self._guard, self._read_until, self._dozing = threading.Lock(), 0.0, {}
