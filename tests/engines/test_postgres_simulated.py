"""The simulator's model of PostgreSQL's statements: the engine on it does what the lease table says, step by step.

A real server is compared with the lease table in the same way, by the same machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from tests.engines import sql_model

from leasehold.engines.postgres import PostgresEngine, PostgresFamily
from leasehold.sim.postgres_model import Database, Rows, Transaction
from leasehold.wires.postgres_target import target_from_url
from leasehold.wires.sql_listen import key_of, new_channel
from leasehold.wires.sql_table import Request, Row
from leasehold.worlds import BlockingWorld

CHANNEL = new_channel("0123456789abcdef")


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.micros = 10**15

    def move(self, micros: int) -> None:
        self.micros += micros


class Line:
    """A connection to the model that needs no network."""

    def __init__(self, database: Database, transaction: Transaction) -> None:
        self._database, self._transaction = database, transaction

    async def ask_all(self, requests: Sequence[Request], until: float, *, commits: bool) -> list[list[Row]]:
        assert until > 0
        assert commits == (not self._transaction.open) or not commits or requests
        return [self._database.carry_out(self._transaction, request) for request in requests]


class Wire:
    """Implements `leasehold.engines.sql_lease.SqlWire`, and what the engines ask for beside it."""

    new_transaction: type[Transaction] = Transaction
    address = CHANNEL

    def __init__(self, database: Database) -> None:
        self.world, self._database = BlockingWorld(), database
        self._awaited: set[str] = set()

    async def lend(self, until: float) -> Line:
        assert until > 0
        return Line(self._database, self.new_transaction())

    def give_back(self, line: Line) -> None:
        assert not line._transaction.open

    def drop(self, line: Line, error: BaseException) -> None:
        raise AssertionError("no statement fails here") from error

    async def ask(self, request: Request, until: float) -> list[Row]:
        return (await (await self.lend(until)).ask_all([request], until, commits=True))[0]

    async def listen(self, holder: str, patience: float, until: float) -> str:
        assert holder
        assert patience > 0
        assert until > 0
        self._awaited.add(holder)
        return self.address

    def awaits(self, holder: str) -> bool:
        return holder in self._awaited

    def ignore(self, holder: str) -> None:
        assert holder
        self._awaited.discard(holder)


class EngineAndTable(sql_model.EngineAndTable):
    clock: Clock

    def fresh_engine(self) -> PostgresEngine:
        family = PostgresFamily(target_from_url("postgresql://worker@one/shop"), "space", "test")
        return PostgresEngine(family, cast(Any, Wire(self.database)))

    def sql(self, text: str) -> list[tuple[object, ...]]:
        if text == "DELETE FROM leasehold_lease":
            self.clock, self.woken = Clock(), list[str]()
            self.database = Database(lambda: self.clock.micros)
            self.database.listening.add(key_of(CHANNEL) or 0)
            self.database.notify = lambda _channel, payload: self.woken.append(payload)
        return [(self.database.base,)]

    def heard(self) -> list[str]:
        woken, self.woken = self.woken, []
        return woken


TestEngineAndTable = EngineAndTable.TestCase
TestEngineAndTable.settings = sql_model.SETTINGS


def test_what_is_not_committed_is_undone() -> None:
    database, transaction = Database(lambda: 10**15), Transaction()
    family = PostgresFamily(target_from_url("postgresql://worker@one/shop"), "space", "test")
    take = Request(family.statements["take_free"], ("space", "a", "h1", 10**6, 0, ""))
    assert database.carry_out(transaction, take) == [(10**15, "h1")]
    database.carry_out(transaction, PostgresEngine.begin)
    database.carry_out(transaction, Request(family.statements["release_alone"], ("space", "a", "h1")))
    lease = database.rows["space", "a"].lease
    assert lease is not None
    assert lease[4] is None
    database.end(transaction, commit=False)
    rows: Rows = database.rows["space", "a"]
    assert rows.lease is not None
    assert rows.lease[4] == "h1"
    assert not database.locks
