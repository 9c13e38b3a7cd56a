"""PostgreSQL against the lease table, step by step: every answer, token and wake-up must be the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import pytest
from tests.engines import sql_model
from tests.engines.postgres_help import MOVABLE_CLOCK, MovableClock, family
from tests.engines.sql_help import soon
from tests.engines.sql_model import BARRIER
from tests.support.postgres_server import PostgresServer

from leasehold.core.worlds import run_blocking
from leasehold.engines.postgres import PostgresEngine, PostgresFamily
from leasehold.wires.postgres import PostgresWire
from leasehold.wires.sql_listen import Ear
from leasehold.wires.sql_table import Request, Statement

NOTIFY = Statement("SELECT pg_notify($1, $2)", "test_notify")


class EngineAndTable(sql_model.EngineAndTable):
    family: ClassVar[PostgresFamily]
    wire: ClassVar[PostgresWire]
    clock: MovableClock
    ear: ClassVar[Ear]

    @classmethod
    def connect(cls, server: PostgresServer) -> None:
        cls.clock = MovableClock(server)
        cls.family = family(server.url, clock=MOVABLE_CLOCK)
        engine = cls.family.blocking()
        wire = engine._wire
        assert isinstance(wire, PostgresWire)
        cls.wire = wire
        run_blocking(engine.status("a", until=soon(engine)))  # makes the tables
        run_blocking(wire.listen("nobody", 100.0, soon(engine)))
        assert wire._listener._ear is not None
        cls.ear = wire._listener._ear

    @classmethod
    def disconnect(cls) -> None:
        run_blocking(cls.wire.close())
        cls.clock.close()

    def fresh_engine(self) -> PostgresEngine:
        return PostgresEngine(self.family, self.wire)

    def sql(self, text: str) -> list[tuple[object, ...]]:
        cursor = self.clock._connection.execute(text)
        return cursor.fetchall() if cursor.description else []

    def heard(self) -> list[str]:
        run_blocking(self.wire.ask(Request(NOTIFY, (self.ear.channel, BARRIER)), soon(self.engine)))
        heard: list[str] = []
        assert self.ear.line is not None
        while BARRIER not in heard:
            assert run_blocking(self.wire._sockets.ready(self.ear.socket, to_write=False, until=soon(self.engine)))
            heard += [holder for _, holder in self.ear.line.notifications()]
        assert heard.pop() == BARRIER
        return heard


@pytest.fixture(autouse=True, scope="module")
def _connected(postgres_server: PostgresServer) -> Iterator[None]:
    EngineAndTable.connect(postgres_server)
    yield
    EngineAndTable.disconnect()


TestEngineAndTable = EngineAndTable.TestCase
TestEngineAndTable.settings = sql_model.SETTINGS
