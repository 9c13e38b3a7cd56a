"""MariaDB and MySQL against the lease table, step by step: every answer, token and wake-up must be the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import pytest
from tests.engines import sql_model
from tests.engines.mysql_help import MOVABLE_CLOCK, MovableClock, family
from tests.engines.sql_help import soon
from tests.engines.sql_model import BARRIER
from tests.support.mariadb_server import MariadbServer, running_mariadb

from leasehold.core.worlds import run_blocking
from leasehold.engines.mysql import MysqlEngine, MysqlFamily
from leasehold.wires.mysql import MysqlWire
from leasehold.wires.sql_listen import Ear


class EngineAndTable(sql_model.EngineAndTable):
    family: ClassVar[MysqlFamily]
    wire: ClassVar[MysqlWire]
    clock: MovableClock
    ear: ClassVar[Ear]

    @classmethod
    def connect(cls, server: MariadbServer) -> None:
        cls.clock = MovableClock(server)
        cls.family = family(server.url, clock=MOVABLE_CLOCK)
        engine = cls.family.blocking()
        wire = engine._wire
        assert isinstance(wire, MysqlWire)
        cls.wire = wire
        run_blocking(wire.listen("nobody", 100.0, soon(engine)))
        assert wire._listener._ear is not None
        cls.ear = wire._listener._ear

    @classmethod
    def disconnect(cls) -> None:
        run_blocking(cls.wire.close())
        cls.clock.close()

    def fresh_engine(self) -> MysqlEngine:
        return MysqlEngine(self.family, self.wire)

    def sql(self, text: str) -> list[tuple[object, ...]]:
        return self.clock.sql(text)

    def heard(self) -> list[str]:
        """Letters are in no order, but whatever was left before the barrier is there when the barrier is."""
        leave = self.family.post.leave(self.ear.channel, self.engine.world.nonce(), BARRIER)
        assert leave is not None
        requests = [leave, self.family.post.interrupt(self.ear.channel)]
        [[[told, _]], _] = run_blocking(self.engine._ask_all(requests, soon(self.engine), commits=True))
        assert told
        heard: list[str] = []
        assert self.ear.line is not None
        while BARRIER not in heard:
            assert run_blocking(self.wire._sockets.ready(self.ear.socket, to_write=False, until=soon(self.engine)))
            heard += [holder for _, holder in self.ear.line.notifications()]
        heard.remove(BARRIER)
        return heard


class OnMysql(EngineAndTable):
    """The same on MySQL itself."""


@pytest.fixture(autouse=True)
def _connected(request: pytest.FixtureRequest) -> Iterator[None]:
    """Just before it is needed: the server lets go of a listener that is not heard of for a while."""
    machine, engine = (OnMysql, "mysql") if request.cls is TestOnMysql else (EngineAndTable, "mariadb")
    with running_mariadb(engine=engine) as server:
        machine.connect(server)
        yield
        machine.disconnect()


TestEngineAndTable = EngineAndTable.TestCase
TestEngineAndTable.settings = sql_model.SETTINGS
TestOnMysql = OnMysql.TestCase
TestOnMysql.settings = sql_model.SETTINGS
