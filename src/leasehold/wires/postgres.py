"""PostgreSQL as one engine uses it in one world: a pool of connections, and one that listens for wake-ups."""

from __future__ import annotations

import warnings
from typing import Final

from leasehold.core.worlds import World
from leasehold.errors import EngineUnavailable, GuaranteeWarning
from leasehold.wires.postgres_dial import dial
from leasehold.wires.postgres_line import Line
from leasehold.wires.postgres_tables import Tables
from leasehold.wires.postgres_target import Target
from leasehold.wires.sockets import BlockingSockets, Sockets
from leasehold.wires.sockets_asyncio import AsyncSockets
from leasehold.wires.sql_listen import BlockingListener, Ear, Listener, key_of, new_channel
from leasehold.wires.sql_listen_asyncio import AsyncListener
from leasehold.wires.sql_pool import Pool
from leasehold.wires.sql_table import Request, Row, Statement

_LISTEN_KEY: Final = Statement("SELECT pg_advisory_lock($1::bigint)", "")


class PostgresWire:
    """Our path to the server, in one of the worlds."""

    def __init__(self, target: Target, label: str, sockets: Sockets, listener: type[Listener]) -> None:
        self.world: World = sockets.world
        self._target, self._label, self._sockets = target, label, sockets
        self._tables = Tables(target)
        self._pool = Pool(sockets, self._connect, target.address)
        self._listener = listener(sockets, self._open_ear)
        self.lend, self.give_back = self._pool.lend, self._pool.give_back

    async def _connect(self, until: float) -> Line:
        line = await dial(self._target, self._target.endpoints, self._sockets, self._label, until)
        await self._tables.enter(line, until)
        return line

    async def _open_ear(self, until: float) -> Ear:
        """A connection that listens, unless a pooler would listen in its place, to nobody's use."""
        endpoints = self._target.listen or self._target.endpoints
        line = await dial(self._target, endpoints, self._sockets, self._label, until)
        if not await self._tables.enter(line, until):
            line.close()
            _warn_of_pooler(self._target.address)
            return Ear(None)
        channel = new_channel(self.world.nonce())
        try:
            await line.ask(Request(_LISTEN_KEY, (key_of(channel),)), until)
            await line.ask(Request(Statement(f"LISTEN {channel}", "")), until)
        except BaseException:
            line.close()
            raise
        return Ear(line, channel)

    def drop(self, line: Line, error: BaseException) -> None:
        """Close one that may be in a transaction, which undoes it."""
        self._pool.drop(line)
        if isinstance(error, EngineUnavailable):
            # The tables may be gone, or the server be a standby by now: connections are made, and looked at, anew.
            self._pool.drop_idle()

    async def ask(self, request: Request, until: float) -> list[Row]:
        """Send one statement, a transaction of its own, on any connection."""
        line = await self._pool.lend(until)
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

    async def wait(self, holder: str, until: float) -> None:
        """Return when this holder is woken or cannot be woken any more, or at `until`."""
        await self._listener.wait(holder, until)

    def ignore(self, holder: str) -> None:
        """No more wake-ups for this holder."""
        self._listener.ignore(holder)

    async def close(self) -> None:
        """Close connections; they are opened again when needed."""
        self._listener.close()
        self._pool.close()

    def forked(self) -> None:
        """Let go of every inherited connection without a word to the server."""
        self._listener.forked()
        self._pool.forked()


def blocking_wire(target: Target, label: str) -> PostgresWire:
    """For threads."""
    return PostgresWire(target, label, BlockingSockets(), BlockingListener)


def asyncio_wire(target: Target, label: str) -> PostgresWire:
    """For the tasks of an event loop."""
    return PostgresWire(target, label, AsyncSockets(), AsyncListener)


_warned: set[str] = set()


def _warn_of_pooler(address: str) -> None:
    if address not in _warned:
        _warned.add(address)
        warnings.warn(
            f"a pooler stands before {address}, through which nobody can be woken: waiters ask twice a second instead; "
            "give the server's own address as ?listen=host:port, or say ?pooler=session if it keeps one session for "
            "each connection",
            GuaranteeWarning,
            stacklevel=2,
        )
