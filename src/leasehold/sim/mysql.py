"""The lease mode of MySQL and MariaDB in the simulated world: the engine's own code before a model of its tables.

As for PostgreSQL, but for what differs: a failed statement ends no transaction, a statement's clock stands still, and
who waits is woken by a letter and by the interruption of a connection that sleeps in the server.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, cast

from leasehold.engines.mysql import MysqlEngine, MysqlFamily
from leasehold.sim.mysql_model import MysqlDatabase, MysqlTransaction, Sleeping
from leasehold.sim.network import Link
from leasehold.sim.postgres import SimListener
from leasehold.sim.sockets import SimSockets
from leasehold.sim.sql_lines import SimLine, connected
from leasehold.sim.sql_rows import Backend, RowsSite
from leasehold.sim.world import SimWorld
from leasehold.wires.mysql import MysqlWire
from leasehold.wires.mysql_ear import SILENCE, ListeningLine
from leasehold.wires.mysql_errors import INTERRUPTED
from leasehold.wires.mysql_packets import Answers, SqlError
from leasehold.wires.mysql_tables import LOCK_TIMEOUT, STALL
from leasehold.wires.mysql_target import target_from_url
from leasehold.wires.sql_listen import Ear
from leasehold.wires.sql_pool import Pool
from leasehold.wires.sql_table import Request, Row

TARGET: Final = target_from_url("mysql://worker@one/shop")


class MysqlBackend(Backend):
    """One that may listen: its client then reads each answer as it comes."""

    keeps_locks_after_error = True

    def __init__(self, site: RowsSite, answer: Callable[[object], object]) -> None:
        super().__init__(site, answer)
        self.transaction = MysqlTransaction()
        self.address = ""
        self._asleep = False

    def ask(self, requests: Sequence[Request]) -> None:
        """Carry out statements."""
        if requests[0].statement.name == "listen":
            self.address = str(requests[0].values[0])
            cast(MysqlDatabase, self._database).ears[self.address] = self
            self._rest()
            self._answer([[(1,)]])
        elif self.address:
            self._turn += 1
            self._asked = list(requests)
            self._listen_on()
        else:
            super().ask(requests)

    def _listen_on(self) -> None:
        while self._asked:
            request = self._asked.pop(0)
            try:
                rows = self._database.carry_out(self.transaction, request)
            except Sleeping as sleeping:
                self.transaction.began = None  # type: ignore[attr-defined]
                self._asleep = True
                self._site.later(sleeping.seconds, partial(self._wake_up, self._turn, None))
                return
            self._piece(rows, None)

    def _wake_up(self, turn: int, error: SqlError | None) -> None:
        if self._asleep and turn == self._turn and not self.is_over:
            self._asleep = False
            self._piece([(0,)], error)

    def _piece(self, rows: list[Row], error: SqlError | None) -> None:
        """Send one answer of several."""
        is_last = not self._asked
        if is_last:
            self._rest()
            turn = self._turn
            self._site.later(SILENCE, lambda: self.end() if turn == self._turn else None)
        self._answer((rows, error, is_last))

    def interrupt(self) -> None:
        """KILL QUERY: ends what it does, if it does anything."""
        self._wake_up(self._turn, SqlError(INTERRUPTED, "Query execution was interrupted"))


class MysqlSite(RowsSite):
    """One server."""

    lock_timeout, stall = float(LOCK_TIMEOUT), float(STALL)

    def family(self, world: SimWorld) -> SimMysqlFamily:
        """The engine's own family over simulated connections."""
        return SimMysqlFamily(world, self)

    def _new_database(self) -> MysqlDatabase:
        database = MysqlDatabase(self.clock)
        database.notify = database.leave
        return database

    def _new_backend(self, answer: Callable[[object], object]) -> MysqlBackend:
        return MysqlBackend(self, answer)

    def deaf(self, backend: MysqlBackend) -> None:
        """Its lock is free."""
        cast(MysqlDatabase, self.database).ears.pop(backend.address, None)


class SimMysqlLine(SimLine):
    """One that can also listen: implements what `ListeningLine` asks of its line."""

    closes_on_error = False

    def send_now(self, requests: Sequence[Request]) -> None:
        """Send without waiting."""
        if not self.is_open:
            raise ConnectionError
        self._sends(requests)

    def take_in(self, answers: Answers) -> bool:
        """The next piece that has come."""
        if not self._heard:
            if not self.is_open:
                raise ConnectionError
            return False
        rows, error, is_last = cast(tuple[list[Row], SqlError | None, bool], self._heard.pop(0))
        if error is None:
            answers.results.append(rows)
        answers.error, answers.is_complete = error, is_last
        return True


class SimMysqlListener(SimListener):
    """Tasks sleep until the simulated connection has heard of them."""

    def _opened(self, ear: Ear) -> None:
        listening = cast(SimListeningLine, ear.line)
        listening.line.news = partial(self._read, ear)
        self._read(ear)


class SimListeningLine(ListeningLine):
    """The engine's own, over a simulated connection."""

    socket = 1

    @property
    def line(self) -> SimMysqlLine:
        """The connection."""
        return cast(SimMysqlLine, self._line)


class SimMysqlWire(MysqlWire):
    """The engine's own wire, over simulated connections."""

    def __init__(self, sockets: SimSockets, site: MysqlSite, link: Link) -> None:
        self.world = sockets.world
        self._own, self._site, self._link = sockets, site, link
        self._pool = cast(Any, Pool(cast(Any, sockets), self._connected, TARGET.address))
        self._listener = SimMysqlListener(cast(Any, sockets), self._open_ear)
        self.lend, self.give_back = self._pool.lend, self._pool.give_back
        self._lines: list[SimMysqlLine] = []

    async def _connected(self, until: float) -> SimMysqlLine:
        await connected(self._own.world, self._site, self._link, TARGET.address, until)
        line = SimMysqlLine(self._own.world, self._site, self._link, TARGET.address)
        self._lines.append(line)
        return line

    async def _open_ear(self, until: float) -> Ear:
        line = await self._connected(until)
        self._site.listeners += 1
        nonce = f"{self._site.listeners:032x}"
        listener = await SimListeningLine.open(cast(Any, line), nonce, TARGET.address, until)
        return Ear(cast(Any, listener), listener.address)


class SimMysqlFamily(MysqlFamily):
    """The engine's own family, with simulated connections."""

    def __init__(self, world: SimWorld, site: MysqlSite) -> None:
        super().__init__(TARGET, "", world.inside.label)
        self._world, self._site = world, site
        self.links: list[Link] = []

    def blocking(self) -> MysqlEngine:
        """Not another world here."""
        return self.asyncio()

    def asyncio(self) -> MysqlEngine:
        """An engine with connections of its own."""
        process = self._world.inside
        link = self._site.network.connect(process, f"{process.label}/{len(self.links) + 1}")
        self.links.append(link)
        sockets = SimSockets(self._world, self._site.network, self._site, self.links)
        return self._engine(SimMysqlWire(sockets, self._site, link))
