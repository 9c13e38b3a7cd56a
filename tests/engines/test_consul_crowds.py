"""Crowds of one client that wait for one name on a real Consul: what each of them asks does not grow with the queue."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from tests.engines.consul_help import Driven, family_at
from tests.engines.driving import WORLDS, eventually, fresh_name, want
from tests.engines.in_turn import assert_served_in_turn
from tests.support.consul_server import ConsulNode, running_consul

from leasehold import AsyncLeasehold, Leasehold
from leasehold.core.engine import Busy, Grant, Want
from leasehold.wires.http import Answer

CROWD = 1000
PATIENCE = 300.0


@pytest.fixture(scope="module")
def server() -> Iterator[ConsulNode]:
    with running_consul() as server:
        yield server


@pytest.fixture(params=WORLDS)
def driven(server: ConsulNode, request: pytest.FixtureRequest) -> Iterator[Driven]:
    one = Driven(family_at(server.url), request.param)
    yield one
    one.close()


@pytest.fixture
def other(server: ConsulNode) -> Iterator[Driven]:
    one = Driven(family_at(server.url))
    yield one
    one.close()


def asked(driven: Driven, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What an engine asks for from now on."""
    seen: list[str] = []
    wire: Any = driven.engine._wire  # each has one
    ask = wire._ask

    async def noted(method: str, target: str, request: str | None, *more: Any, **settings: Any) -> Answer:
        seen.append(f"{method} {target} {request}")
        answer: Answer = await ask(method, target, request, *more, **settings)
        return answer

    monkeypatch.setattr(wire, "_ask", noted)
    return seen


def lists(requests: list[str]) -> list[str]:
    return [one for one in requests if "get-tree" in one or "?recurse" in one]


def queued(driven: Driven, name: str, count: int) -> list[Want]:
    """So many who wait for a name, one after the other."""
    waiting = [want(name, ttl=20.0) for _ in range(count)]
    for one in waiting:
        assert isinstance(driven.take(one, patience=PATIENCE), Busy)
    return waiting


def leave(*those: tuple[Driven, Want]) -> None:
    for driver, one in those:
        driver.release(one.name, one.holder)


def test_who_queues_behind_its_own_client_does_not_list_the_queue(
    driven: Driven, other: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    other.take(holder := want(fresh_name()))
    requests = asked(driven, monkeypatch)
    [first] = queued(driven, holder.name, 1)
    assert lists(requests)
    requests.clear()
    [second] = queued(driven, holder.name, 1)
    driven.wait(second, 0.3)
    answer = driven.take(second, patience=PATIENCE)
    assert isinstance(answer, Busy)
    assert answer.incumbent is not None
    assert answer.incumbent.about == holder.about
    assert requests
    assert not lists(requests)
    leave((driven, second), (driven, first), (other, holder))


def test_who_follows_hangs_at_once_where_a_waiter_that_died_is_soon_forgotten(
    driven: Driven, other: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    other.take(holder := want(fresh_name()))
    first, second = queued(driven, holder.name, 2)
    assert driven.place(second).session.ttl < second.ttl
    requests = asked(driven, monkeypatch)
    driven.wait(second, 0.3)
    assert not [one for one in requests if "unlock" in one]
    leave((driven, first), (other, holder))
    assert driven.wait(second, 30.0) < 20.0
    assert isinstance(driven.take(second, patience=PATIENCE), Grant)
    assert driven.place(second).session.ttl == second.ttl
    leave((driven, second))


def test_a_stranger_between_two_of_one_client_keeps_its_place(driven: Driven, other: Driven) -> None:
    name = fresh_name()
    assert_served_in_turn([(driver, want(name)) for driver in (other, driven, other, driven, driven)])


def test_who_stood_before_it_may_leave_the_queue(driven: Driven, other: Driven) -> None:
    other.take(holder := want(fresh_name()))
    first, second = queued(driven, holder.name, 2)
    leave((driven, first))
    assert isinstance(driven.take(second, patience=PATIENCE), Busy)
    [third] = queued(driven, holder.name, 1)
    leave((driven, second), (other, holder))
    assert driven.wait(third, 30.0) < 20.0
    assert isinstance(driven.take(third, patience=PATIENCE), Grant)
    leave((driven, third))


def test_one_whose_key_was_taken_away_is_not_followed(driven: Driven, other: Driven) -> None:
    other.take(holder := want(fresh_name()))
    queued(driven, holder.name, 1)
    other.force_release(holder.name)
    second = want(holder.name)
    assert isinstance(driven.take(second, patience=PATIENCE), Grant)
    leave((driven, second))


def test_who_asks_again_is_told_who_holds_the_name_now(driven: Driven, other: Driven) -> None:
    other.take(first := want(fresh_name()))
    other.take(second := want(first.name), patience=PATIENCE)
    *_, last = queued(driven, first.name, 2)
    leave((other, first))
    assert isinstance(other.take(second, patience=PATIENCE), Grant)
    answer = driven.take(last, patience=PATIENCE)
    assert isinstance(answer, Busy)
    assert answer.incumbent is not None
    assert answer.incumbent.about == second.about
    leave((other, second))


def test_a_crowd_of_tasks_comes_to_wait_at_once(server: ConsulNode) -> None:
    name = fresh_name()

    async def crowd(others: Leasehold) -> None:
        def all_wait() -> bool:
            status = others.status(name)
            return status is not None and len(status.waiters) == CROWD

        async with AsyncLeasehold(server.url, most_waiters=CROWD, request_timeout=60.0) as locks:
            lock = locks.lock(name, wait=PATIENCE)
            tasks = [asyncio.create_task(lock.acquire()) for _ in range(CROWD)]
            try:
                await asyncio.to_thread(eventually, all_wait, 100.0)
                assert not any(task.done() for task in tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    with Leasehold(server.url) as others, others.lock(name):
        asyncio.run(crowd(others))
