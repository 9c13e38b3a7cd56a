"""Connections that a lease lives and dies with, outside of every pool. All engines of a family know all of them.

A connection that may still hold a lock is never used for another lease: only an unlock that was confirmed makes it free
again, and whatever else happens to it closes it, which is the one sure way to give a lock back.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Awaitable, Callable, Sequence
from math import inf
from types import TracebackType
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from leasehold.wires.sockets import Sockets
from leasehold.wires.sql_table import Request, Row

MOST_IDLE: Final = 4
"""Connections that are kept for the next lease, so that taking one is one round trip."""


class Line(Protocol):
    """A connection to a SQL server, as leases that live in one use it."""

    sockets: Sockets
    is_set_for: Any
    """What its session was last set for, as far as its user wants to remember; None: that is not known."""

    async def ask(self, request: Request, until: float, *, commits: bool = True) -> list[Row]:
        """Send one request, a transaction of its own, and return its rows."""
        ...

    async def ask_all(self, requests: Sequence[Request], until: float, *, commits: bool) -> list[list[Row]]:
        """Send requests together and return the rows of each."""
        ...

    def doze(self) -> None:
        """Do not look for answers for a while, and leave the processor to others."""
        ...

    def post(self, request: Request) -> None:
        """Send a request whose answer is fetched later; raises `ConnectionError` when the connection broke."""
        ...

    async def answer(self, until: float) -> list[Row] | None:
        """The answer to what was posted; None when it has not come by `until`, and then it may still come."""
        ...

    def is_usable(self) -> bool:
        """Whether an idle line can carry a request: it is open, and the server has not hung up."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...

    def let_go(self) -> None:
        """Close this process's end only: after a fork the parent goes on using the connection."""
        ...


KeyT = TypeVar("KeyT", bound=int | str)


class Heartbeat(NamedTuple):
    """What was sent to keep a connection."""

    sent_at: float
    ttl: float
    """For how long the server keeps the connection from then on without another word."""


class Pin(Generic[KeyT]):
    """A connection that holds a lock for one holder, or waits for it."""

    __slots__ = ("_mutex", "holder", "key", "line", "pid", "posted", "proved", "token", "ttl")

    def __init__(self, holder: str, key: KeyT, line: Line) -> None:
        self.holder, self.key, self.line = holder, key, line
        self.token = self.pid = 0
        """The token, once the lock is held; and the server's process that holds it."""
        self.ttl = 0.0
        self.posted: Heartbeat | None = None
        """One that is not answered yet."""
        self.proved = Heartbeat(-inf, 0.0)
        """The latest one whose answer has told that the lock is held."""
        self._mutex = threading.Lock()

    async def claim(self, sockets: Sockets, until: float) -> bool:
        """Have it to oneself, for the keeper and the holder may both want it; False when that takes too long."""
        pause = 0.000_2
        while not self._mutex.acquire(blocking=False):
            if sockets.world.now() >= until:
                return False
            await sockets.world.sleep(pause)
            pause = min(pause * 2, 0.01)
        self.line.sockets = sockets
        return True

    def free(self) -> None:
        """Let others use the connection."""
        self._mutex.release()


class Pins(Generic[KeyT]):
    """All pinned connections of a family, by their holders."""

    def __init__(
        self, connect: Callable[[Sockets, float], Awaitable[Line]], is_fit: Callable[[Line, float], bool]
    ) -> None:
        """`is_fit` tells whether a line that was idle can be used now."""
        self._connect, self._is_fit = connect, is_fit
        self._pins: dict[str, Pin[KeyT]] = {}
        self._idle: list[Line] = []
        self.ended = 0
        """How many connections were given up, or found to be over: behind the next one may be another server."""
        self._open: weakref.WeakSet[Line] = weakref.WeakSet()

    def get(self, holder: str) -> Pin[KeyT] | None:
        """The connection of a holder."""
        return self._pins.get(holder)

    @property
    def all(self) -> list[Pin[KeyT]]:
        """Those of all holders."""
        return list(self._pins.values())

    async def pin(self, holder: str, key: KeyT, sockets: Sockets, until: float) -> Pin[KeyT]:
        """A connection that holds nothing, for a holder. It is known from here on, whatever interrupts its user."""
        line = await self._line(sockets, until)
        pin = self._pins[holder] = Pin(holder, key, line)
        return pin

    async def _line(self, sockets: Sockets, until: float) -> Line:
        while self._idle:
            try:
                line = self._idle.pop()
            except IndexError:  # another thread was quicker
                break
            if self._is_fit(line, sockets.world.now()):
                line.sockets = sockets
                return line
            self.ended += 1
            line.close()
        line = await self._connect(sockets, until)
        self._open.add(line)
        return line

    async def ask(self, request: Request, sockets: Sockets, until: float) -> list[Row]:
        """Send one statement on a connection that nobody holds anything by."""
        line = await self._line(sockets, until)
        try:
            rows = await line.ask(request, until)
        except BaseException:
            line.close()
            raise
        self._keep(line)
        return rows

    async def ask_all(self, requests: Sequence[Request], sockets: Sockets, until: float) -> None:
        """Send statements together on a connection that nobody holds anything by."""
        line = await self._line(sockets, until)
        try:
            await line.ask_all(requests, until, commits=True)
        except BaseException:
            line.close()
            raise
        self._keep(line)

    def _keep(self, line: Line) -> None:
        if len(self._idle) < MOST_IDLE:
            self._idle.append(line)
        else:
            line.close()

    def unpin(self, pin: Pin[KeyT], *, clean: bool) -> None:
        """The holder does not need it any more; unless it is `clean`, and surely holds nothing, it is closed."""
        self._pins.pop(pin.holder, None)
        if clean:
            self._keep(pin.line)
        else:
            self.ended += 1
            pin.line.close()

    def closed_on_error(self, pin: Pin[KeyT]) -> _ClosedOnError[KeyT]:
        """After any failure nobody knows what the connection holds."""
        return _ClosedOnError(self, pin)

    def __del__(self) -> None:
        # Leases that were never given back end with the last who knew of them.
        for pin in self._pins.values():
            pin.line.close()
        self.close_idle()

    def close_idle(self) -> None:
        """Close what is kept for later."""
        while self._idle:
            self._idle.pop().close()

    def forked(self) -> None:
        """In a forked child: let go of every inherited connection without a word to the server."""
        for line in list(self._open):
            line.let_go()
        self._pins, self._idle, self._open = {}, [], weakref.WeakSet()


class _ClosedOnError(Generic[KeyT]):
    """Around what is asked of a pinned connection. A class: each hand-over comes by here twice."""

    __slots__ = ("_pin", "_pins")

    def __init__(self, pins: Pins[KeyT], pin: Pin[KeyT]) -> None:
        self._pins, self._pin = pins, pin

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._pins.unpin(self._pin, clean=False)
