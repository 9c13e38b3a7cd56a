"""Who asks for a name that is just being given back gets it without asking again, on a real server."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.engines.driving import eventually
from tests.engines.mysql_help import Run, calling, opened
from tests.engines.sql_help import once_the_row_is_free, soon, want
from tests.support.mariadb_server import MariadbServer

from leasehold.core.engine import Busy, Grant, Want
from leasehold.core.table import PROMPT
from leasehold.core.worlds import run_blocking
from leasehold.engines.mysql import MysqlEngine
from leasehold.errors import EngineError
from leasehold.wires.mysql_tables import text_at
from leasehold.wires.sql_table import FIELDS, FRONT

TRIES = 50
"""On a machine that stands still for a moment the waiter has to come for the name instead."""
LATE = PROMPT / 1e6 + 0.01
ANY_TEXT = "who \0'\u00e9\U0001f511 \x1f\\ "
FIRST, SECOND, THIRD = (want("n", letter * 32) for letter in "abc")


class Caller:
    """An engine, and how its operations are run."""

    def __init__(self, engine: MysqlEngine, run: Run) -> None:
        self.engine, self._run = engine, run

    def take(self, wanted: Want, patience: float | None = None) -> Any:
        return self._run(self.engine.take(wanted, until=soon(self.engine), patience=patience))

    def release(self, holder: str) -> bool:
        released: bool = self._run(self.engine.release("n", holder, until=soon(self.engine)))
        return released

    def status(self) -> Any:
        return self._run(self.engine.status("n", until=soon(self.engine)))

    def handed(self, wanted: Want, seconds: float) -> Grant | None:
        handed: Grant | None = self._run(self.engine.wait(wanted, soon(self.engine, seconds)))
        return handed


async def _not_needed(*_: object, **__: object) -> None:
    raise AssertionError("the long way was taken")


@pytest.fixture(params=["blocking", "asyncio"])
def waiter(request: pytest.FixtureRequest, mariadb_server: MariadbServer) -> Iterator[Caller]:
    with calling(mariadb_server.url, request.param) as (engine, run):
        yield Caller(engine, run)


@pytest.fixture
def holder(waiter: Caller, mariadb_server: MariadbServer) -> Iterator[Caller]:
    with opened(mariadb_server.url, namespace=waiter.engine._namespace) as engine:
        yield Caller(engine, run_blocking)


def given_back(holder: Caller, waiter: Caller, *, after: float = 0.0) -> tuple[Grant, Grant | None]:
    """What was held, and what the waiter is handed when it is given back so long after it was asked for."""
    before = holder.take(FIRST)
    assert isinstance(waiter.take(SECOND, patience=10.0), Busy)
    time.sleep(after)
    assert holder.release(FIRST.holder) is True
    return before, waiter.handed(SECOND, 5.0)


def handed_over(holder: Caller, waiter: Caller) -> tuple[Grant, Grant]:
    for _ in range(TRIES):
        before, handed = given_back(holder, waiter)
        if handed is not None:
            return before, handed
        waiter.release(SECOND.holder)
    raise AssertionError("nobody was handed the name")


def test_who_has_just_asked_is_handed_the_name_with_a_higher_token(holder: Caller, waiter: Caller) -> None:
    before, handed = handed_over(holder, waiter)
    assert handed.token > before.token
    assert holder.engine.facts.hands_over, "who is interrupted looks twice for what it may have left"
    status = holder.status()
    assert status.waiters == ()
    assert [(one.token, one.about) for one in status.holders] == [(handed.token, SECOND.about)]
    assert 25.0 < status.holders[0].expires_in <= 30.0
    assert waiter.take(SECOND, patience=10.0) == handed, "an answer that was lost is asked for again"
    assert waiter.release(SECOND.holder) is True
    assert holder.take(FIRST).token > handed.token
    assert holder.release(FIRST.holder) is True


def test_who_has_waited_has_to_come_for_the_name(holder: Caller, waiter: Caller) -> None:
    """It may hang by now, and would keep the others from the name for its whole TTL."""
    _, handed = given_back(holder, waiter, after=LATE)
    assert handed is None
    assert holder.status().holders == ()
    assert isinstance(waiter.take(SECOND, patience=10.0), Grant)
    assert waiter.release(SECOND.holder) is True


def test_who_asks_for_a_short_lease_is_handed_it_for_an_eighth_of_that(holder: Caller, waiter: Caller) -> None:
    """What is left of it when its holder hears of it must be worth having: it is counted from the first request."""
    short = SECOND._replace(ttl=0.8)
    holder.take(FIRST)
    assert isinstance(waiter.take(short, patience=10.0), Busy)
    time.sleep(0.11)
    assert holder.release(FIRST.holder) is True
    assert waiter.handed(short, 5.0) is None
    assert waiter.release(SECOND.holder) is False


def test_a_shared_lease_is_not_handed_over(holder: Caller, waiter: Caller) -> None:
    shared = SECOND._replace(mode="shared")
    holder.take(FIRST)
    assert isinstance(waiter.take(shared, patience=10.0), Busy)
    assert holder.release(FIRST.holder) is True
    assert waiter.handed(shared, 5.0) is None
    assert isinstance(waiter.take(shared, patience=10.0), Grant)


def test_one_round_trip_each_is_all_that_is_needed(
    holder: Caller, waiter: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the holder does not know yet that somebody waits, and where nobody waits any more."""
    for caller in (holder, waiter):
        monkeypatch.setattr(caller.engine, "_take_by_table", _not_needed)
        monkeypatch.setattr(caller.engine, "_release_by_table", _not_needed)
        monkeypatch.setattr(caller.engine, "_wake_another", _not_needed)
    before, handed = given_back(holder, waiter)
    if handed is None:
        handed = waiter.take(SECOND, patience=10.0)
    assert handed.token > before.token
    assert waiter.release(SECOND.holder) is True
    assert "n" not in waiter.engine._crowded


def test_a_crowd_moves_up_in_its_order_and_mostly_in_the_row(
    mariadb_server: MariadbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those who do not fit into the name's row are moved there many at a time."""
    long_ways = 0
    with calling(mariadb_server.url, "blocking") as (engine, run):
        caller, change = Caller(engine, run), engine._change_once

        async def counted(*arguments: Any, **settings: Any) -> Any:
            nonlocal long_ways
            long_ways += 1
            return await change(*arguments, **settings)

        waiting = [want("n", f"{number:032x}", ttl=90.0)._replace(about=ANY_TEXT) for number in range(3 * FRONT)]
        assert isinstance(caller.take(FIRST), Grant)
        for one in waiting:
            assert isinstance(caller.take(one, patience=60.0), Busy)
        assert [one.about for one in caller.status().waiters] == [ANY_TEXT] * len(waiting)
        words = "SELECT LENGTH(front) - LENGTH(REPLACE(front, ' ', '')) FROM leasehold.leasehold_lease"
        assert mariadb_server.sql(f"{words} WHERE namespace = %s", engine._namespace) == [(FRONT * FIELDS,)]
        monkeypatch.setattr(engine, "_change_once", counted)
        holder, token = FIRST.holder, 0
        for one in waiting:
            assert caller.release(holder) is True
            grant = caller.handed(one, 5.0) or caller.take(one, patience=60.0)
            assert isinstance(grant, Grant)
            assert grant.token > token
            holder, token = one.holder, grant.token
        assert [one.about for one in caller.status().holders] == [ANY_TEXT]
        assert caller.release(holder) is True
        assert caller.status().waiters == ()
    assert 2 <= long_ways < FRONT // 4


def _once_the_row_is_free(
    server: MariadbServer, caller: Caller, change: str, step: Callable[[], object]
) -> tuple[object, bool]:
    with server.superuser() as connection, connection.cursor() as changing:
        changing.execute("USE leasehold")
        return once_the_row_is_free(changing.execute, caller.engine._namespace, change, step)


def test_who_waited_for_the_row_is_not_queued_for_a_name_that_is_free_by_then(
    holder: Caller, waiter: Caller, mariadb_server: MariadbServer
) -> None:
    holder.take(FIRST)
    waiter.engine._crowded.add("n")
    answer, has_waited = _once_the_row_is_free(
        mariadb_server, holder, "holder = NULL", lambda: waiter.take(SECOND, patience=10.0)
    )
    assert isinstance(answer, Grant)
    assert has_waited


def test_who_waited_for_the_row_hands_the_name_to_who_is_the_head_by_then(
    holder: Caller, waiter: Caller, mariadb_server: MariadbServer
) -> None:
    holder.take(FIRST)
    waiter.engine._crowded.add("n")
    for one in (SECOND, THIRD):
        assert isinstance(waiter.take(one, patience=10.0), Busy)
    behind = f"front = SUBSTRING(front, LENGTH(SUBSTRING_INDEX(front, ' ', {FIELDS})) + 2)"
    released, has_waited = _once_the_row_is_free(mariadb_server, holder, behind, lambda: holder.release(FIRST.holder))
    assert (released, has_waited) == (True, True)
    grant = waiter.handed(THIRD, 5.0) or waiter.take(THIRD, patience=10.0)
    assert isinstance(grant, Grant)
    assert [(one.token, one.about) for one in holder.status().holders] == [(grant.token, THIRD.about)]


def test_a_row_that_somebody_spoiled_gives_a_name_that_is_held_to_nobody(
    holder: Caller, waiter: Caller, mariadb_server: MariadbServer
) -> None:
    """Who asks is refused, or told that the server makes no sense."""
    for front in ("x", "x " * FIELDS, "x " * (FIELDS - 1), "\xff", f"{SECOND.holder} exclusive 1 x 1 lh:x zz 1 1 "):
        assert isinstance(holder.take(FIRST), Grant)
        assert isinstance(waiter.take(SECOND, patience=10.0), Busy)
        put = "UPDATE leasehold.leasehold_lease SET front = %s WHERE namespace = %s"
        mariadb_server.sql(put, front.encode("latin-1"), waiter.engine._namespace)
        with contextlib.suppress(EngineError):
            assert isinstance(waiter.take(THIRD, patience=10.0), Busy)
        with contextlib.suppress(EngineError):
            assert holder.release(FIRST.holder) is True
        with contextlib.suppress(EngineError):
            assert waiter.handed(THIRD, 0.05) is None
        mariadb_server.sql("DELETE FROM leasehold.leasehold_lease WHERE namespace = %s", waiter.engine._namespace)


def test_the_lock_delay_that_was_asked_for_comes_with_the_lease(holder: Caller, waiter: Caller) -> None:
    short = SECOND._replace(ttl=0.8, delay=60.0)
    for _ in range(TRIES):
        holder.take(FIRST)
        assert isinstance(waiter.take(short, patience=10.0), Busy)
        assert holder.release(FIRST.holder) is True
        if waiter.handed(short, 5.0) is not None:
            break
        waiter.release(SECOND.holder)
    eventually(lambda: bool(holder.status().closed_for > 50.0))


def test_the_one_behind_is_told_in_its_turn(holder: Caller, waiter: Caller) -> None:
    _, handed = handed_over(holder, waiter)
    assert isinstance(holder.take(THIRD, patience=10.0), Busy)
    assert waiter.release(SECOND.holder) is True
    after = holder.handed(THIRD, 5.0) or holder.take(THIRD, patience=10.0)
    assert after.token > handed.token


def test_what_was_handed_over_and_lost_is_not_remembered(holder: Caller, waiter: Caller) -> None:
    handed_over(holder, waiter)
    assert not waiter.engine._wire.awaits(SECOND.holder)
    assert waiter.handed(SECOND, 5.0) is None


@pytest.mark.parametrize("said", ["x", "0", "-5", "1" * 25, str(2**63), "5 5"])
def test_a_token_that_is_none_is_not_believed(
    holder: Caller, waiter: Caller, mariadb_server: MariadbServer, said: str
) -> None:
    holder.take(FIRST)
    assert isinstance(waiter.take(SECOND, patience=10.0), Busy)
    [[address]] = mariadb_server.sql(
        f"SELECT {text_at(6)} FROM leasehold.leasehold_lease WHERE namespace = %s", waiter.engine._namespace
    )
    mariadb_server.sql(
        "INSERT INTO leasehold.leasehold_wake VALUES (%s, 'letter', %s, 0)", address, f"{SECOND.holder} {said}"
    )
    started = time.monotonic()
    assert waiter.handed(SECOND, 30.0) is None
    assert time.monotonic() - started < 20.0, "it was woken, and asks"
    assert isinstance(waiter.take(SECOND, patience=10.0), Busy)


def test_of_a_grant_nobody_hears_before_it_is_committed(mariadb_server: MariadbServer) -> None:
    """What others see may not be on the disk yet, so the letter is left when the commit is over."""
    with calling(mariadb_server.url, "blocking") as (engine, run):
        caller = Caller(engine, run)
        caller.take(FIRST)
        assert isinstance(caller.take(SECOND, patience=10.0), Busy)
        with mariadb_server.superuser() as other, other.cursor() as looking:
            giving_back = threading.Thread(target=caller.release, args=(FIRST.holder,))
            looking.execute("LOCK TABLES leasehold.leasehold_wake WRITE")
            giving_back.start()
            holder = "SELECT COALESCE(holder, '') FROM leasehold.leasehold_lease WHERE namespace = %s"
            eventually(lambda: mariadb_server.sql(holder, engine._namespace) != [(FIRST.holder,)])
            assert giving_back.is_alive()
            looking.execute("UNLOCK TABLES")
        giving_back.join(30)
        handed = caller.handed(SECOND, 5.0) or caller.take(SECOND, patience=10.0)
        assert isinstance(handed, Grant)


def test_a_letter_that_cannot_be_left_undoes_nothing(
    holder: Caller, waiter: Caller, mariadb_server: MariadbServer
) -> None:
    """Who waits looks by itself then."""
    for is_gone in (True, False, False, True):  # as text, and by name
        holder.take(FIRST)
        assert isinstance(waiter.take(SECOND, patience=10.0), Busy)
        if is_gone:
            mariadb_server.sql("RENAME TABLE leasehold.leasehold_wake TO leasehold.elsewhere")
        try:
            assert holder.release(FIRST.holder) is True
        finally:
            if is_gone:
                mariadb_server.sql("RENAME TABLE leasehold.elsewhere TO leasehold.leasehold_wake")
        assert isinstance(waiter.take(SECOND, patience=10.0), Grant)
        assert waiter.release(SECOND.holder) is True
