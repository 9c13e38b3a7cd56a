"""Who asks for a name that is just being given back gets it without asking again, on a real server."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.engines.driving import WORLDS, eventually
from tests.engines.postgres_help import Caller, calling
from tests.engines.sql_help import once_the_row_is_free, want
from tests.support.postgres_server import PostgresServer, running_postgres

from leasehold.core.acquire import Attempt, acquire
from leasehold.core.engine import Busy, Grant, Want
from leasehold.core.table import PROMPT
from leasehold.wires.sql_table import FIELDS, FRONT

TRIES = 50
"""On a machine that stands still for a moment the waiter has to come for the name instead."""
LATE = PROMPT / 1e6 + 0.01
FIRST, SECOND, THIRD = (want("n", letter * 32) for letter in "abc")


async def _not_needed(*_: object, **__: object) -> None:
    raise AssertionError("the long way was taken")


def _together(one: Caller, other: Caller) -> None:
    """Let both see the same names."""
    other.engine._leases, other.engine._namespace = one.engine._leases, one.engine._namespace


@pytest.fixture(params=WORLDS)
def waiter(request: pytest.FixtureRequest, postgres_server: PostgresServer) -> Iterator[Caller]:
    with calling(postgres_server.url, request.param) as caller:
        yield caller


@pytest.fixture
def holder(waiter: Caller, postgres_server: PostgresServer) -> Iterator[Caller]:
    with calling(postgres_server.url, "blocking") as caller:
        _together(waiter, caller)
        yield caller


def given_back(holder: Caller, waiter: Caller, *, after: float = 0.0) -> tuple[Grant, Grant | None]:
    """What was held, and what the waiter is handed when it is given back so long after it was asked for."""
    before = holder.take(FIRST)
    assert isinstance(waiter.take(SECOND, patience=10.0), Busy)
    time.sleep(after)
    assert holder.release("n", FIRST.holder) is True
    return before, waiter.handed(SECOND, 5.0)


def handed_over(holder: Caller, waiter: Caller, between: Callable[[], object] = lambda: None) -> tuple[Grant, Grant]:
    for _ in range(TRIES):
        between()
        before, handed = given_back(holder, waiter)
        if handed is not None:
            return before, handed
        waiter.release("n", SECOND.holder)
    raise AssertionError("nobody was handed the name")


def test_who_has_just_asked_is_handed_the_name_with_a_higher_token(holder: Caller, waiter: Caller) -> None:
    before, handed = handed_over(holder, waiter)
    assert handed.token > before.token
    assert holder.engine.facts.hands_over, "who is interrupted looks twice for what it may have left"
    status = holder.status("n")
    assert status.waiters == ()
    assert [(one.token, one.about) for one in status.holders] == [(handed.token, SECOND.about)]
    assert 29.0 < status.holders[0].expires_in <= 30.0
    assert waiter.take(SECOND, patience=10.0) == handed, "an answer that was lost is asked for again"
    assert waiter.release("n", SECOND.holder) is True
    assert holder.take(FIRST).token > handed.token
    assert holder.release("n", FIRST.holder) is True


def test_who_has_waited_has_to_come_for_the_name(holder: Caller, waiter: Caller) -> None:
    """It may hang by now, and would keep the others from the name for its whole TTL."""
    _, handed = given_back(holder, waiter, after=LATE)
    assert handed is None
    assert holder.status("n").holders == ()
    assert isinstance(waiter.take(SECOND, patience=10.0), Grant)
    assert waiter.release("n", SECOND.holder) is True


def test_who_asks_for_a_short_lease_is_handed_it_for_an_eighth_of_that(holder: Caller, waiter: Caller) -> None:
    """What is left of it when its holder hears of it must be worth having: it is counted from the first request."""
    short = SECOND._replace(ttl=0.8)
    holder.take(FIRST)
    assert isinstance(waiter.take(short, patience=10.0), Busy)
    time.sleep(0.11)
    assert holder.release("n", FIRST.holder) is True
    assert waiter.handed(short, 5.0) is None
    assert waiter.release("n", SECOND.holder) is False


def test_a_shared_lease_is_not_handed_over(holder: Caller, waiter: Caller) -> None:
    shared = SECOND._replace(mode="shared")
    holder.take(FIRST)
    assert isinstance(waiter.take(shared, patience=10.0), Busy)
    assert holder.release("n", FIRST.holder) is True
    assert waiter.handed(shared, 5.0) is None
    assert isinstance(waiter.take(shared, patience=10.0), Grant)


def test_one_round_trip_each_is_all_that_is_needed(
    holder: Caller, waiter: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the holder does not know yet that somebody waits."""
    for caller in (holder, waiter):
        monkeypatch.setattr(caller.engine, "_take_by_table", _not_needed)
        monkeypatch.setattr(caller.engine, "_release_by_table", _not_needed)
    before, handed = given_back(holder, waiter)
    if handed is None:
        handed = waiter.take(SECOND, patience=10.0)
    assert handed.token > before.token
    assert waiter.release("n", SECOND.holder) is True


def test_a_crowd_moves_up_in_its_order_and_mostly_in_the_row(
    postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those who do not fit into the name's row are moved there many at a time."""
    long_ways = 0
    with calling(postgres_server.url, "blocking") as caller:
        change = caller.engine._change_once

        async def counted(*arguments: Any, **settings: Any) -> Any:
            nonlocal long_ways
            long_ways += 1
            return await change(*arguments, **settings)

        waiting = [want("n", f"{number:032x}", ttl=90.0) for number in range(3 * FRONT)]
        assert isinstance(caller.take(FIRST), Grant)
        for one in waiting:
            assert isinstance(caller.take(one, patience=60.0), Busy)
        assert [one.about for one in caller.status("n").waiters] == [one.about for one in waiting]
        [[in_row]] = postgres_server.sql(
            "SELECT cardinality(front) FROM leasehold_lease WHERE namespace = %s", caller.engine._namespace
        )
        assert in_row == FRONT * FIELDS
        monkeypatch.setattr(caller.engine, "_change_once", counted)
        holder, token = FIRST.holder, 0
        for one in waiting:
            assert caller.release("n", holder) is True
            grant = caller.handed(one, 5.0) or caller.take(one, patience=60.0)
            assert isinstance(grant, Grant)
            assert grant.token > token
            holder, token = one.holder, grant.token
        assert caller.release("n", holder) is True
        assert caller.status("n").waiters == ()
    assert 2 <= long_ways < FRONT // 4


def _once_the_row_is_free(
    server: PostgresServer, caller: Caller, change: str, step: Callable[[], object]
) -> tuple[object, bool]:
    with server.superuser() as changing:
        return once_the_row_is_free(
            lambda text: changing.execute(text.encode()), caller.engine._namespace, change, step
        )


def test_who_waited_for_the_row_is_not_queued_for_a_name_that_is_free_by_then(
    holder: Caller, waiter: Caller, postgres_server: PostgresServer
) -> None:
    holder.take(FIRST)
    waiter.engine._crowded.add("n")
    answer, has_waited = _once_the_row_is_free(
        postgres_server, holder, "holder = NULL", lambda: waiter.take(SECOND, patience=10.0)
    )
    assert isinstance(answer, Grant)
    assert has_waited


def test_who_waited_for_the_row_hands_the_name_to_who_is_the_head_by_then(
    holder: Caller, waiter: Caller, postgres_server: PostgresServer
) -> None:
    holder.take(FIRST)
    waiter.engine._crowded.add("n")
    for one in (SECOND, THIRD):
        assert isinstance(waiter.take(one, patience=10.0), Busy)
    released, has_waited = _once_the_row_is_free(
        postgres_server, holder, f"front = front[{FIELDS + 1}:]", lambda: holder.release("n", FIRST.holder)
    )
    assert (released, has_waited) == (True, True)
    grant = waiter.handed(THIRD, 5.0) or waiter.take(THIRD, patience=10.0)
    assert isinstance(grant, Grant)
    assert [(one.token, one.about) for one in holder.status("n").holders] == [(grant.token, THIRD.about)]


def test_the_lock_delay_that_was_asked_for_comes_with_the_lease(holder: Caller, waiter: Caller) -> None:
    short = SECOND._replace(ttl=0.8, delay=60.0)
    for _ in range(TRIES):
        holder.take(FIRST)
        assert isinstance(waiter.take(short, patience=10.0), Busy)
        assert holder.release("n", FIRST.holder) is True
        if waiter.handed(short, 5.0) is not None:
            break
        waiter.release("n", SECOND.holder)
    eventually(lambda: holder.status("n").closed_for > 50.0)


def test_the_one_behind_is_told_in_its_turn(holder: Caller, waiter: Caller) -> None:
    _, handed = handed_over(holder, waiter)
    assert isinstance(holder.take(THIRD, patience=10.0), Busy)
    assert waiter.release("n", SECOND.holder) is True
    after = holder.handed(THIRD, 5.0) or holder.take(THIRD, patience=10.0)
    assert after.token > handed.token


def test_a_lease_that_was_handed_over_counts_from_the_first_request(holder: Caller, waiter: Caller) -> None:
    """When the server granted it its holder cannot know, only that it was after it had asked."""
    now = holder.engine.world.now
    for number in range(TRIES):
        theirs = SECOND._replace(holder=f"{number:032x}")
        holder.take(FIRST)
        with ThreadPoolExecutor(1) as thread:
            taking = acquire(waiter.engine, Attempt(theirs), wait=10.0, request_timeout=5.0)
            taken = thread.submit(waiter._run, taking)
            while not holder.status("n").waiters:
                assert not taken.done()
            released_at = now()
            assert holder.release("n", FIRST.holder)
            held = taken.result()
        assert held.valid_until <= held.acquired_at + theirs.ttl
        waiter.release("n", theirs.holder)
        if held.acquired_at < released_at:
            return
    raise AssertionError("no lease was counted from before the name was given back")


def test_what_was_handed_over_and_lost_is_not_remembered(holder: Caller, waiter: Caller) -> None:
    handed_over(holder, waiter)
    assert not waiter.engine._wire.awaits(SECOND.holder)
    assert waiter.handed(SECOND, 5.0) is None


@pytest.mark.parametrize("said", ["x", "0", "-5", "1" * 40, str(2**63), "5 5", "५"])
def test_a_token_that_is_none_is_not_believed(
    holder: Caller, waiter: Caller, postgres_server: PostgresServer, said: str
) -> None:
    holder.take(FIRST)
    assert isinstance(waiter.take(SECOND, patience=10.0), Busy)
    queued = "SELECT front[6] FROM leasehold_lease WHERE namespace = %s"
    [[address]] = postgres_server.sql(queued, waiter.engine._namespace)
    postgres_server.sql("SELECT pg_notify(%s, %s)", address, f"{SECOND.holder} {said}")
    started = time.monotonic()
    assert waiter.handed(SECOND, 30.0) is None
    assert time.monotonic() - started < 20.0, "it was woken, and asks"
    assert isinstance(waiter.take(SECOND, patience=10.0), Busy)


def _is_flushed(server: PostgresServer, caller: Caller, waiting: Want, *, after: float) -> tuple[bool, bool]:
    """Whether the name was handed over, and whether what gave it back is on the disk by then."""
    with server.superuser() as looking:
        caller.take(FIRST)
        assert isinstance(caller.take(waiting, patience=10.0), Busy)
        time.sleep(after)
        [before] = looking.execute("SELECT pg_current_wal_insert_lsn()").fetchone() or ("",)
        assert caller.release("n", FIRST.holder) is True
        [flushed] = looking.execute("SELECT pg_current_wal_flush_lsn() > %s", (before,)).fetchone() or (None,)
        handed = caller.handed(waiting, 5.0) is not None
        caller.release("n", waiting.holder)
    return handed, bool(flushed)


def test_a_grant_waits_for_the_disk_and_a_name_that_is_only_free_does_not() -> None:
    with running_postgres(wal_writer_delay="10s") as server:
        with calling(server.url, "blocking") as caller:
            tries = (_is_flushed(server, caller, SECOND, after=0.0) for _ in range(TRIES))
            assert next(flushed for handed, flushed in tries if handed)
            assert _is_flushed(server, caller, THIRD, after=LATE) == (False, False)
        with calling(server.url + "?durable=false", "blocking") as caller:
            tries = (_is_flushed(server, caller, SECOND, after=0.0) for _ in range(TRIES))
            assert not next(flushed for handed, flushed in tries if handed)
