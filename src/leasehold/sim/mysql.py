"""The lease mode of MySQL and MariaDB in the simulated world: the engine's own code before a model of its tables.

As for PostgreSQL, but for what differs: a failed statement ends no transaction, a statement's clock stands still, and
who waits is woken by a letter and by the interruption of a connection that waits for a lock which another one keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, cast

from leasehold.engines.mysql import MysqlEngine, MysqlFamily
from leasehold.sim.mysql_model import AtGate, MysqlDatabase, MysqlTransaction
from leasehold.sim.network import Link
from leasehold.sim.sockets import SimSockets
from leasehold.sim.sql_lines import SimLine, SimListener, connected
from leasehold.sim.sql_rows import Backend, RowsSite, with_little_room
from leasehold.sim.world import SimWorld
from leasehold.wires.mysql import MysqlWire
from leasehold.wires.mysql_ear import SILENCE, Gate, ListeningLine
from leasehold.wires.mysql_errors import INTERRUPTED
from leasehold.wires.mysql_packets import Answers, EachAnswer, SqlError
from leasehold.wires.mysql_tables import LOCK_TIMEOUT, STALL, dialect_of
from leasehold.wires.mysql_target import target_from_url
from leasehold.wires.sql_listen import Ear
from leasehold.wires.sql_pool import Pool
from leasehold.wires.sql_table import LeaseTable, Request, Row

TARGET: Final = target_from_url("mysql://worker@one/shop")
GATE: Final = ("", "")
"""Where connections wait that wait for the gate: no row has this key."""


class MysqlBackend(Backend):
    """One that may listen: its client then reads each answer as it comes."""

    keeps_locks_after_error = True

    def __init__(self, site: RowsSite, answer: Callable[[object], object]) -> None:
        super().__init__(site, answer)
        self.transaction = MysqlTransaction()
        self.address = ""
        self._is_at_gate, self._interruptions, self._silence = False, 0, SILENCE

    @property
    def _own(self) -> MysqlDatabase:
        return cast(MysqlDatabase, self._database)

    def ask(self, requests: Sequence[Request]) -> None:
        """Carry out statements."""
        name, values = requests[0].statement.name, requests[0].values
        if name == "listen":
            self._begin_to_listen(str(values[0]))
        elif self.address:
            if name == "keep_gate":
                self._silence = cast(int, values[0])
            self._turn += 1
            self._asked = list(requests)
            self._listen_on()
        else:
            super().ask(requests)

    def _begin_to_listen(self, address: str) -> None:
        self.address, self._own.ears[address] = address, self
        keeps_gate = self._own.keeper is None
        if keeps_gate:
            self._own.keeper = self
        self._rest()
        self._answer([[(1, int(keeps_gate))]])

    def _listen_on(self) -> None:
        while self._asked:
            request = self._asked.pop(0)
            try:
                rows = self._database.carry_out(self.transaction, request)
            except AtGate as waits:
                self.transaction.began = None  # type: ignore[attr-defined]
                self._is_at_gate = True
                self._site.wait_for(GATE, self)
                self._site.later(waits.seconds, partial(self._leave_gate, self._turn, [(0,)]))
                return
            self._piece(rows, None)

    def _leave_gate(self, turn: int, rows: list[Row], error: SqlError | None = None) -> None:
        if self._is_at_gate and turn == self._turn and not self.is_over:
            self._is_at_gate = False
            self._site.stop_waiting(self)
            self._piece(rows, error)
            self._listen_on()

    def go_on(self) -> None:
        """What it waited for may be had: a row, or the gate, which goes to the first that comes."""
        if not self.address:
            super().go_on()
        elif self._is_at_gate and not self.is_over:
            if self._own.keeper is None:
                self._own.keeper = self
                self._leave_gate(self._turn, [(1,)])
            else:
                self._site.wait_for(GATE, self)

    def _piece(self, rows: list[Row], error: SqlError | None) -> None:
        """Send one answer of several."""
        is_last = not self._asked
        if is_last:
            self._rest()
            turn = self._turn
            self._site.later(self._silence, lambda: self.end() if turn == self._turn else None)
        self._answer((rows if error is None else [], error, is_last))

    def interrupt(self) -> None:
        """KILL QUERY: ends what it does, if it does anything. The client sees an error, or a lock of NULL."""
        self._interruptions += 1
        error = SqlError(INTERRUPTED, "Query execution was interrupted") if self._interruptions % 2 else None
        self._leave_gate(self._turn, [(None,)], error)


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
        """Its locks are free."""
        database = cast(MysqlDatabase, self.database)
        database.ears.pop(backend.address, None)
        if database.keeper is backend:
            database.keeper = None
            self._freed(GATE)


class SimMysqlLine(SimLine):
    """One that can also listen: implements what `ListeningLine` asks of its line."""

    closes_on_error = False

    async def prepare(self, _requests: Sequence[Request], _until: float) -> None:
        """A statement travels as it is."""

    def send_now(self, *requests: Request) -> Answers:
        """Send without waiting."""
        if not self.is_open:
            raise ConnectionError
        self._sends(requests)
        return EachAnswer([False] * len(requests))

    def take_in(self, answers: Answers) -> bool:
        """The next piece that has come."""
        if not self._heard:
            if not self.is_open:
                raise ConnectionError
            return False
        rows, error, is_last = cast(tuple[list[Row], SqlError | None, bool], self._heard.pop(0))
        answers.results.append(rows)
        answers.error, answers.is_complete = answers.error or error, is_last
        return True


class SimMysqlListener(SimListener):
    """Tasks sleep until the simulated connection has heard of them."""

    def _opened(self, ear: Ear) -> None:
        listening = cast(SimListeningLine, ear.line)
        listening.line.news = partial(self._read, ear)
        self._read(ear)

    def _lose(self, ear: Ear) -> None:
        cast(SimListeningLine, ear.line).line.news = lambda: None
        super()._lose(ear)


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
        self._target, self._gate = TARGET, Gate()
        self._pool = cast(Any, Pool(cast(Any, sockets), self._connect, TARGET.address))
        self._listener = SimMysqlListener(cast(Any, sockets), self._open_ear)
        self.lend, self.give_back = self._pool.lend, self._pool.give_back

    async def _connect(self, until: float) -> Any:
        await connected(self._own.world, self._site, self._link, TARGET.address, until)
        return SimMysqlLine(self._own.world, self._site, self._link, TARGET.address)

    async def _listening(self, line: Any, until: float) -> ListeningLine | None:
        self._site.listeners += 1
        nonce = f"{self._site.listeners:032x}"
        return await SimListeningLine.open(line, nonce, TARGET.address, self._gate, until)


class SimMysqlFamily(MysqlFamily):
    """The engine's own family, with simulated connections."""

    def __init__(self, world: SimWorld, site: MysqlSite) -> None:
        super().__init__(TARGET, "", world.inside.label)
        self.leases = LeaseTable(with_little_room(dialect_of()), "")
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
