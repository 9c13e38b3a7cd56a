"""A SQL server as one engine uses it in one world: a pool of connections, and one that listens for wake-ups.

How a connection is opened, and how one listens, each server has words of its own for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import Any, Generic, Protocol, TypeVar

from leasehold.core.engine import Grant
from leasehold.core.worlds import World
from leasehold.errors import EngineUnavailable
from leasehold.wires import sql_pool
from leasehold.wires.sockets import Sockets
from leasehold.wires.sql_listen import Ear, Listener
from leasehold.wires.sql_table import Request, Row


class Line(sql_pool.Line, Protocol):
    """A connection that carries requests."""

    async def ask(self, request: Request, until: float) -> list[Row]:
        """Send one request, a transaction of its own, and return its rows."""
        ...

    def doze(self) -> None:
        """Somebody waits for a turn: do not look for answers for a while, and leave the processor to others."""
        ...


LineT = TypeVar("LineT", bound=Line)


class PooledWire(ABC, Generic[LineT]):
    """Our path to the server, in one of the worlds."""

    def __init__(self, address: str, sockets: Sockets, listener: type[Listener]) -> None:
        self.world: World = sockets.world
        self._sockets = sockets
        self._pool: sql_pool.Pool[LineT] = sql_pool.Pool(sockets, self._connect, address)
        self._listener = listener(sockets, self._open_ear)
        self.lend, self.give_back = self._pool.lend, self._pool.give_back

    @abstractmethod
    async def _connect(self, until: float) -> LineT:
        """A connection to a server that can be written to, with the tables in place."""

    @abstractmethod
    async def _open_ear(self, until: float) -> Ear:
        """A connection that listens for wake-ups."""

    def drop(self, line: LineT, error: BaseException) -> None:
        """Close one that may be in a transaction, which undoes it."""
        self._pool.drop(line)
        if isinstance(error, EngineUnavailable):
            # The tables may be gone, or the server be a replica by now: connections are made, and looked at, anew.
            self._pool.drop_idle()

    def distrust(self) -> None:
        """An answer made no sense: who knows which request it belongs to, and what else is under way."""
        self._pool.drop_idle()

    async def ask(self, request: Request, until: float) -> list[Row]:
        """Send one request, a transaction of its own, on any connection."""
        line = self._pool.lend_idle() or await self._pool.lend(until)
        try:
            rows = await line.ask(request, until)
        except BaseException as error:
            self.drop(line, error)
            raise
        self._pool.give_back(line)
        return rows

    async def listen(self, holder: str, patience: float, until: float) -> str:
        """Be ready for the wake-ups of a holder, before it is queued; returns the address to queue it with."""
        return await self._listener.listen(holder, patience, until)

    def awaits(self, holder: str) -> bool:
        """Whether this holder listens, and was not handed the name."""
        return self._listener.awaits(holder)

    def wait(self, holder: str, until: float) -> Coroutine[Any, Any, Grant | None]:
        """Return when this holder is woken or cannot be woken any more, or at `until`; with what it was handed."""
        for line in self._pool.idle:
            line.doze()
        return self._listener.wait(holder, until)

    def ignore(self, holder: str) -> None:
        """No more wake-ups for this holder."""
        self._listener.ignore(holder)

    async def close(self) -> None:
        """Close connections. Who needs one later gets one for a single step."""
        self._listener.close()
        self._pool.close()

    def forked(self) -> None:
        """Let go of every inherited connection without a word to the server."""
        self._listener.forked()
        self._pool.forked()
