"""Who asks for a name that is just being given back gets it without asking again, on real servers."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.engines.redis_help import ENGINES, WORLDS, Caller, calling, family_at, fresh_name, want
from tests.support.redis_server import RedisServer, running

from leasehold.core.acquire import Attempt, acquire
from leasehold.core.engine import Busy, Grant, Want
from leasehold.core.table import PROMPT

TRIES = 50
"""On a machine that stands still for a moment the waiter has to come for the name instead."""


@pytest.fixture(scope="module", params=ENGINES)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with running(RedisServer(request.param, tmp_path_factory.mktemp(request.param))) as server:
        yield server


@pytest.fixture(params=WORLDS)
def waiter(request: pytest.FixtureRequest, server: RedisServer) -> Iterator[Caller]:
    with calling(family_at(server.url), request.param) as caller:
        yield caller


@pytest.fixture
def holder(server: RedisServer) -> Iterator[Caller]:
    with calling(family_at(server.url), "blocking") as caller:
        yield caller


def given_back(holder: Caller, waiter: Caller, *, after: float = 0.0) -> tuple[Grant, Want, Grant | None]:
    """What was held, and what the waiter is handed when it is given back so long after it was asked for."""
    mine, theirs = want(fresh_name()), want("?")
    theirs = theirs._replace(name=mine.name)
    before = holder.take(mine)
    assert isinstance(waiter.take(theirs, patience=10.0), Busy)
    waiter.pause(after)
    assert holder.release(mine.name, mine.holder)
    return before, theirs, waiter.run(waiter.engine.wait(theirs, waiter.engine.world.now() + 5.0))


def test_who_has_just_asked_is_handed_the_name_with_a_higher_token(holder: Caller, waiter: Caller) -> None:
    tries = (given_back(holder, waiter) for _ in range(TRIES))
    before, theirs, handed = next(found for found in tries if found[2] is not None)
    assert handed is not None
    assert handed.token > before.token
    assert holder.engine.facts.hands_over, "who is interrupted looks twice for what it may have left"
    (held,) = waiter.status(theirs.name).holders
    assert held.token == handed.token
    assert 9.0 < held.expires_in <= 10.0
    assert waiter.take(theirs, patience=10.0) == handed, "an answer that was lost is asked for again"
    assert waiter.release(theirs.name, theirs.holder)


def test_who_has_waited_has_to_come_for_the_name(holder: Caller, waiter: Caller) -> None:
    """It may hang by now, and would keep the others from the name for its whole TTL."""
    _, theirs, handed = given_back(holder, waiter, after=PROMPT / 1e6 + 0.01)
    assert handed is None
    assert waiter.status(theirs.name).holders == ()
    assert isinstance(waiter.take(theirs, patience=10.0), Grant)
    assert waiter.release(theirs.name, theirs.holder)


def queued(holder: Caller, name: str) -> bool:
    return bool(holder.status(name).waiters)


def test_a_lease_that_was_handed_over_counts_from_the_first_request(holder: Caller, waiter: Caller) -> None:
    """When the server granted it its holder cannot know, only that it was after it had asked."""
    now = holder.engine.world.now
    for _ in range(TRIES):
        mine = want(fresh_name())
        theirs = want("?")._replace(name=mine.name)
        holder.take(mine)
        with ThreadPoolExecutor(1) as thread:
            taking = thread.submit(waiter.run, acquire(waiter.engine, Attempt(theirs), wait=10.0, request_timeout=5.0))
            while not queued(holder, mine.name):
                assert not taking.done()
            released_at = now()
            assert holder.release(mine.name, mine.holder)
            held = taking.result()
        assert held.valid_until <= held.acquired_at + theirs.ttl
        waiter.release(theirs.name, theirs.holder)
        if held.acquired_at < released_at:
            return
    raise AssertionError("no lease was counted from before the name was given back")
