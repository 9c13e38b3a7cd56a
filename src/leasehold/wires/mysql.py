"""MySQL or MariaDB as one engine uses it in one world: how connections are opened, and which of them listens."""

from __future__ import annotations

from leasehold.errors import EngineError, EngineUnavailable
from leasehold.wires.mysql_dial import Dialer
from leasehold.wires.mysql_ear import Gate, ListeningLine
from leasehold.wires.mysql_line import Line
from leasehold.wires.mysql_tables import Tables
from leasehold.wires.mysql_target import Target
from leasehold.wires.postgres_errors import unreachable
from leasehold.wires.sockets import BlockingSockets, Sockets
from leasehold.wires.sockets_asyncio import AsyncSockets
from leasehold.wires.sql_listen import BlockingListener, Ear, Listener
from leasehold.wires.sql_listen_asyncio import AsyncListener
from leasehold.wires.sql_wire import PooledWire


async def connected_line(target: Target, dialer: Dialer, tables: Tables, until: float) -> Line:
    """A connection to the first endpoint that can be written to."""
    failure: EngineError = unreachable(target.address, "it has no address")
    for position, endpoint in enumerate(target.endpoints):
        now = dialer.world.now()
        # Leave a share of the time for the others.
        share = now + (until - now) / (len(target.endpoints) - position)
        try:
            line = await dialer.dial(endpoint, share)
            await tables.enter(line, share)
        except EngineUnavailable as error:
            failure = error
        else:
            return line
    raise failure


class MysqlWire(PooledWire[Line]):
    """Our path to the server, in one of the worlds."""

    def __init__(self, target: Target, label: str, sockets: Sockets, listener: type[Listener]) -> None:
        super().__init__(target.address, sockets, listener)
        self._gate = Gate()
        self._target, self._dialer, self._tables = target, Dialer(target, sockets, label), Tables(target.address)

    async def _connect(self, until: float) -> Line:
        return await connected_line(self._target, self._dialer, self._tables, until)

    async def _open_ear(self, until: float) -> Ear:
        while True:
            listener = await self._listening(await self._connect(until), until)
            if listener is not None:
                return Ear(listener, listener.address)

    async def _listening(self, line: Line, until: float) -> ListeningLine | None:
        return await ListeningLine.open(line, self.world.nonce(), self._target.address, self._gate, until)

    async def close(self) -> None:
        """Close connections. Who needs one later gets one for a single step."""
        await super().close()
        self._gate.close()

    def forked(self) -> None:
        """Let go of every inherited connection without a word to the server."""
        super().forked()
        self._gate.let_go()


def blocking_wire(target: Target, label: str) -> MysqlWire:
    """For threads."""
    return MysqlWire(target, label, BlockingSockets(), BlockingListener)


def asyncio_wire(target: Target, label: str) -> MysqlWire:
    """For the tasks of an event loop."""
    return MysqlWire(target, label, AsyncSockets(), AsyncListener)
