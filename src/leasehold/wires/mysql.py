"""MySQL or MariaDB as one engine uses it in one world: a pool of connections, and one that listens for wake-ups."""

from __future__ import annotations

from leasehold.core.worlds import World
from leasehold.errors import EngineError, EngineUnavailable
from leasehold.wires.mysql_dial import Dialer
from leasehold.wires.mysql_ear import ListeningLine
from leasehold.wires.mysql_line import Line
from leasehold.wires.mysql_tables import Tables
from leasehold.wires.mysql_target import Target
from leasehold.wires.postgres_errors import unreachable
from leasehold.wires.sockets import BlockingSockets, Sockets
from leasehold.wires.sockets_asyncio import AsyncSockets
from leasehold.wires.sql_listen import BlockingListener, Ear, Listener
from leasehold.wires.sql_listen_asyncio import AsyncListener
from leasehold.wires.sql_pool import Pool
from leasehold.wires.sql_table import Request, Row


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


class MysqlWire:
    """Our path to the server, in one of the worlds."""

    def __init__(self, target: Target, label: str, sockets: Sockets, listener: type[Listener]) -> None:
        self.world: World = sockets.world
        self._target, self._sockets, self._dialer = target, sockets, Dialer(target, sockets, label)
        self._tables = Tables(target.address)
        self._pool = Pool(sockets, self._connect, target.address)
        self._listener = listener(sockets, self._open_ear)
        self.lend, self.give_back = self._pool.lend, self._pool.give_back

    async def _connect(self, until: float) -> Line:
        return await connected_line(self._target, self._dialer, self._tables, until)

    async def _open_ear(self, until: float) -> Ear:
        line = await self._connect(until)
        listener = await ListeningLine.open(line, self.world.nonce(), self._target.address, until)
        return Ear(listener, listener.address)

    def drop(self, line: Line, error: BaseException) -> None:
        """Close one that may be in a transaction, which undoes it."""
        self._pool.drop(line)
        if isinstance(error, EngineUnavailable):
            # The tables may be gone, or the server be a replica by now: connections are made, and looked at, anew.
            self._pool.drop_idle()

    async def ask(self, request: Request, until: float) -> list[Row]:
        """Send one request, a transaction of its own, on any connection."""
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


def blocking_wire(target: Target, label: str) -> MysqlWire:
    """For threads."""
    return MysqlWire(target, label, BlockingSockets(), BlockingListener)


def asyncio_wire(target: Target, label: str) -> MysqlWire:
    """For the tasks of an event loop."""
    return MysqlWire(target, label, AsyncSockets(), AsyncListener)
