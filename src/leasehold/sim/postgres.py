"""The lease mode of PostgreSQL in the simulated world: the engine's own code before a model of its tables.

Simulated are connections that deliver in order or break, transactions that stay open when their client is gone (and are
ended by the server after a while), rows that others have locked, NOTIFY, and a wall clock that can be set. The bytes of
PostgreSQL's protocol are not: a statement travels as it is, known by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from leasehold.engines.postgres import PostgresEngine, PostgresFamily
from leasehold.sim.network import Link
from leasehold.sim.postgres_model import Database
from leasehold.sim.sockets import SimSockets
from leasehold.sim.sql_lines import SimLine, SimListener, connected
from leasehold.sim.sql_rows import Backend, RowsSite, with_little_room
from leasehold.sim.world import SimWorld
from leasehold.wires.postgres import PostgresWire
from leasehold.wires.postgres_tables import LOCK_TIMEOUT_MS, STALL_MS, dialect_of
from leasehold.wires.postgres_target import target_from_url
from leasehold.wires.sql_listen import Ear, key_of, new_channel
from leasehold.wires.sql_pool import Pool
from leasehold.wires.sql_table import LeaseTable, Request, Statement

TARGET: Final = target_from_url("postgresql://worker@one/shop")
LISTEN: Final = Statement("LISTEN", "listen")


class PostgresBackend(Backend):
    """One that may listen."""

    channel = ""
    _together = False
    """Whether what it is asked for is one transaction, though nobody has begun one."""

    def ask(self, requests: Sequence[Request]) -> None:
        """Carry out statements, which are one transaction; to listen is one that is known here only."""
        if requests[0].statement is LISTEN:
            self.channel = str(requests[0].values[0])
            self._database.listening.add(key_of(self.channel) or 0)
            self._answer([[]])
        else:
            begins = requests[0].statement in (PostgresEngine.begin.statement, PostgresEngine.read.statement)
            self._together = len(requests) > 1 and not begins and not self.transaction.open
            self.transaction.open = self.transaction.open or self._together
            super().ask(requests)

    def _rest(self) -> None:
        if self._together:
            self._together = False
            self._database.end(self.transaction, commit=True)
        super()._rest()

    def hear(self, channel: str, payload: str) -> None:
        """Tell the client, if it listens there."""
        if self.channel == channel and not self.is_over:
            self._answer((channel, payload))


class PostgresSite(RowsSite):
    """One server."""

    lock_timeout, stall = LOCK_TIMEOUT_MS / 1000, STALL_MS / 1000

    def family(self, world: SimWorld) -> SimPostgresFamily:
        """The engine's own family over simulated connections."""
        return SimPostgresFamily(world, self)

    def _new_database(self) -> Database:
        database = Database(self.clock)
        database.notify = self._notify
        return database

    def _new_backend(self, answer: Callable[[object], object]) -> PostgresBackend:
        return PostgresBackend(self, answer)

    def deaf(self, backend: PostgresBackend) -> None:
        """A backend that may have listened for wake-ups is over."""
        self.database.listening.discard(key_of(backend.channel) or 0)

    def _notify(self, channel: str, payload: str) -> None:
        for backends in self._backends.values():
            for backend in backends:
                cast(PostgresBackend, backend).hear(channel, payload)


class SimPostgresWire(PostgresWire):
    """The engine's own wire, over simulated connections."""

    def __init__(self, sockets: SimSockets, site: PostgresSite, link: Link) -> None:
        self.world = sockets.world
        self._own, self._site, self._link = sockets, site, link
        self._pool = cast(Any, Pool(cast(Any, sockets), self._connected, TARGET.address))
        self._listener = SimListener(cast(Any, sockets), self._open_ear)
        self.lend, self.give_back = self._pool.lend, self._pool.give_back
        self._lines: list[SimLine] = []

    async def _connected(self, until: float) -> SimLine:
        await connected(self._own.world, self._site, self._link, TARGET.address, until)
        line = SimLine(self._own.world, self._site, self._link, TARGET.address)
        self._lines.append(line)
        return line

    async def _open_ear(self, until: float) -> Ear:
        line = await self._connected(until)
        self._site.listeners += 1
        channel = new_channel(f"{self._site.listeners:016x}")
        await line.ask(Request(LISTEN, (channel,)), until, commits=False)
        return Ear(cast(Any, line), channel)


class SimPostgresFamily(PostgresFamily):
    """The engine's own family, with simulated connections."""

    def __init__(self, world: SimWorld, site: PostgresSite) -> None:
        super().__init__(TARGET, "", world.inside.label)
        self.leases = LeaseTable(with_little_room(dialect_of(TARGET.schema)), "")
        self._world, self._site = world, site
        self.links: list[Link] = []

    def blocking(self) -> PostgresEngine:
        """Not another world here."""
        return self.asyncio()

    def asyncio(self) -> PostgresEngine:
        """An engine with connections of its own."""
        process = self._world.inside
        link = self._site.network.connect(process, f"{process.label}/{len(self.links) + 1}")
        self.links.append(link)
        sockets = SimSockets(self._world, self._site.network, self._site, self.links)
        return self._engine(SimPostgresWire(sockets, self._site, link))
