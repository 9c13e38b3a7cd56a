"""The simulator's model of the statements of MySQL and MariaDB: the engine on it does what the lease table says.

A real server is compared with the lease table in the same way, by the same machine.
"""

from __future__ import annotations

from typing import Any, cast

import pytest
from tests.engines import sql_model
from tests.engines.test_postgres_simulated import Clock, Wire

from leasehold.engines.mysql import MysqlEngine, MysqlFamily
from leasehold.sim.mysql_model import NONE_CHANGED, MysqlDatabase, MysqlTransaction
from leasehold.sim.postgres_model import EXPIRES, HOLDER, Blocked, Transaction
from leasehold.wires.mysql_ear import ADDRESS_DIGITS
from leasehold.wires.mysql_target import target_from_url
from leasehold.wires.sql_table import Request

ADDRESS = f"lh:{'0' * ADDRESS_DIGITS}"


class MysqlWire(Wire):
    """Of MySQL: with transactions that know when their statement began, and an address that somebody hears at."""

    new_transaction: type[Transaction] = MysqlTransaction
    address = ADDRESS


class Ear:
    """Somebody who hears."""

    def interrupt(self) -> None:
        """It looks anyway."""


class EngineAndTable(sql_model.EngineAndTable):
    clock: Clock

    def fresh_engine(self) -> MysqlEngine:
        family = MysqlFamily(target_from_url("mysql://worker@one/shop"), "space", "test")
        return MysqlEngine(family, cast(Any, MysqlWire(self.database)))

    def sql(self, text: str) -> list[tuple[object, ...]]:
        if text == "DELETE FROM leasehold_lease":
            self.clock = Clock()
            self.database = MysqlDatabase(lambda: self.clock.micros)
            self.database.notify = self.database.leave
            self.database.ears[ADDRESS] = Ear()
        return [(self.database.base,)]

    def heard(self) -> list[str]:
        letters, self.database.letters = self.database.letters, {}
        return [holder for holder, _ in letters.values()]


TestEngineAndTable = EngineAndTable.TestCase
TestEngineAndTable.settings = sql_model.SETTINGS


def test_the_clock_stands_still_while_a_statement_waits_for_a_row() -> None:
    times = iter([10**15, 10**15 + 1, 10**15 + 2])
    database, first, second = MysqlDatabase(lambda: next(times)), MysqlTransaction(), MysqlTransaction()
    family = MysqlFamily(target_from_url("mysql://worker@one/shop"), "space", "test")
    first.open = True
    take = family.statements["take_free"]
    assert database.carry_out(first, Request(take, ("space", "a", "h1", 10**6, 0, ""))) == [(1, 10**15)]
    for _ in range(3):
        with pytest.raises(Blocked):
            database.carry_out(second, Request(take, ("space", "a", "h2", 10**6, 0, "")))
    database.end(first, commit=False)
    assert database.carry_out(second, Request(take, ("space", "a", "h2", 10**6, 0, ""))) == [(1, 10**15 + 1)]


@pytest.mark.parametrize("step", ["take_turn", "take_known", "take_free"])
def test_who_waited_for_the_row_takes_no_lease_for_over_that_was_granted_since(step: str) -> None:
    """Its time is from before the wait, and the clock may have been set back meanwhile."""
    clock = Clock()
    database, granting, waiting = MysqlDatabase(lambda: clock.micros), MysqlTransaction(), MysqlTransaction()
    statements = MysqlFamily(target_from_url("mysql://worker@one/shop"), "space", "test").statements
    key, second = ("space", "a"), 10**6
    take = Request(statements["take_free"], (*key, "h1", second, 0, ""))
    queue = Request(statements["queue"], (*key, "h2", "exclusive", 1, 10 * second, ADDRESS, "", second, 0))
    turn = Request(statements[step], (*key, "h2", second, 0, ""))
    assert database.carry_out(waiting, take) == [(1, clock.micros)]
    if step == "take_turn":
        assert database.carry_out(waiting, queue) == [(1, second)]
    clock.move(3 * second // 2)
    rows = database.lock(granting, key)
    with pytest.raises(Blocked):
        database.carry_out(waiting, turn)
    clock.move(-second)
    assert rows.lease is not None
    rows.lease[HOLDER], rows.lease[EXPIRES] = "h3", clock.micros + second // 2
    database.end(granting, commit=True)
    assert database.carry_out(waiting, turn) == NONE_CHANGED
