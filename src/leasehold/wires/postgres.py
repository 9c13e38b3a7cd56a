"""PostgreSQL as one engine uses it in one world: how connections are opened, and which of them listens."""

from __future__ import annotations

import warnings
from typing import Final

from leasehold.errors import GuaranteeWarning
from leasehold.wires.postgres_dial import dial
from leasehold.wires.postgres_line import Line
from leasehold.wires.postgres_tables import Tables
from leasehold.wires.postgres_target import Target
from leasehold.wires.sockets import BlockingSockets, Sockets
from leasehold.wires.sockets_asyncio import AsyncSockets
from leasehold.wires.sql_listen import BlockingListener, Ear, Listener, key_of, new_channel
from leasehold.wires.sql_listen_asyncio import AsyncListener
from leasehold.wires.sql_table import Request, Statement
from leasehold.wires.sql_wire import PooledWire

_LISTEN_KEY: Final = Statement("SELECT pg_advisory_lock($1::bigint)", "")


class PostgresWire(PooledWire[Line]):
    """Our path to the server, in one of the worlds."""

    def __init__(self, target: Target, label: str, sockets: Sockets, listener: type[Listener]) -> None:
        super().__init__(target.address, sockets, listener)
        self._target, self._label, self._tables = target, label, Tables(target)

    async def _connect(self, until: float) -> Line:
        line = await dial(self._target, self._target.endpoints, self._sockets, self._label, until)
        try:
            await self._tables.enter(line, until)
        except BaseException:
            line.close()
            raise
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
