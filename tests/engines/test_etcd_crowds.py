"""Crowds of one client that wait for one name on a real etcd: what each of them asks does not grow with the queue."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from tests.engines.driving import WORLDS, eventually, fresh_name, want
from tests.engines.etcd_help import Driven, counted, family_at, keys_of
from tests.engines.in_turn import assert_served_in_turn
from tests.support.etcd_server import EtcdNode, running_etcd
from tests.support.server_process import memory_folder

from leasehold import AsyncLeasehold, Leasehold
from leasehold.core.engine import Busy, Grant
from leasehold.engines import etcd, key_queue
from leasehold.engines.etcd_taking import SILENCE

CROWD = 1000
PATIENCE = 300.0


@pytest.fixture(scope="module")
def server() -> Iterator[EtcdNode]:
    with memory_folder() as folder, running_etcd(folder) as server:
        yield server


@pytest.fixture(params=WORLDS)
def engine(server: EtcdNode, request: pytest.FixtureRequest) -> Iterator[Driven]:
    driven = Driven(family_at(server.url), request.param)
    yield driven
    driven.close()


@pytest.fixture
def other(server: EtcdNode) -> Iterator[Driven]:
    driven = Driven(family_at(server.url))
    yield driven
    driven.close()


def test_who_queues_behind_its_own_client_looks_at_two_keys_and_not_at_the_queue(engine: Driven, other: Driven) -> None:
    holder, first, second = (want(name) for name in [fresh_name()] * 3)
    whole_queue = key_queue.keys_of("", holder.name).all[1]
    other.take(holder)
    requests = counted(engine.family)
    assert isinstance(engine.take(first, patience=PATIENCE), Busy)
    assert any(whole_queue in request for request in requests.sent)
    requests.sent.clear()
    assert isinstance(engine.take(second, patience=PATIENCE), Busy)
    other.take(want(fresh_name()))  # so that there is news which may be of the queue
    engine.wait(second, 0.5)
    assert "Txn" in requests.made
    assert not [request for request in requests.sent if whole_queue in request]
    for driver, one in ((engine, second), (engine, first), (other, holder)):
        driver.release(one.name, one.holder)


def test_a_stranger_between_two_of_one_client_keeps_its_place(engine: Driven, other: Driven) -> None:
    name = fresh_name()
    assert_served_in_turn([(driver, want(name)) for driver in (other, engine, other, engine, engine)])


def test_who_stood_before_it_may_leave_the_queue(engine: Driven, other: Driven) -> None:
    holder, first, second, third = (want(name) for name in [fresh_name()] * 4)
    other.take(holder)
    for one in (first, second):
        engine.take(one, patience=PATIENCE)
    engine.release(first.name, first.holder)
    assert engine.wait(second, 30.0) < 20.0, "it is woken"
    for one in (second, third):
        assert isinstance(engine.take(one, patience=PATIENCE), Busy)
    engine.release(second.name, second.holder)
    other.release(holder.name, holder.holder)
    assert engine.wait(third, 30.0) < 20.0
    assert isinstance(engine.take(third, patience=PATIENCE), Grant)
    engine.release(third.name, third.holder)


def test_one_whose_key_was_taken_away_is_not_followed(engine: Driven, other: Driven) -> None:
    holder, first, second = (want(name) for name in [fresh_name()] * 3)
    other.take(holder)
    engine.take(first, patience=PATIENCE)
    other.force_release(holder.name)
    assert isinstance(engine.take(second, patience=PATIENCE), Grant)
    engine.release(second.name, second.holder)


def test_a_crowd_of_tasks_comes_to_wait_at_once(server: EtcdNode) -> None:
    name = fresh_name()

    async def crowd() -> None:
        async with AsyncLeasehold(server.url, most_waiters=CROWD, request_timeout=60.0) as locks:
            lock = locks.lock(name, wait=PATIENCE)
            tasks = [asyncio.create_task(lock.acquire()) for _ in range(CROWD)]
            waiting = asyncio.to_thread(eventually, lambda: len(keys_of(server, name)) == CROWD + 1, 100.0)
            try:
                await waiting
                assert not any(task.done() for task in tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    with Leasehold(server.url) as locks, locks.lock(name):
        asyncio.run(crowd())


def test_who_waits_behind_its_own_client_asks_only_when_that_one_waits_no_more(
    engine: Driven, other: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd, "SILENCE", 0.3)
    holder, first, second = (want(name) for name in [fresh_name()] * 3)
    other.take(holder)
    for one in (first, second):
        engine.take(one, patience=PATIENCE)
    assert engine.wait(second, 2.0) >= 2.0, "it knows that the other one waits"
    other.release(holder.name, holder.holder)
    assert isinstance(engine.take(first, patience=PATIENCE), Grant)
    assert engine.wait(second, 20.0) < 10.0, "it does not rely on being told"
    assert isinstance(engine.take(second, patience=PATIENCE), Busy)
    assert engine.wait(second, 2.0) >= 2.0, "nor does it ask all the time while the other one holds the name"
    engine.release(first.name, first.holder)
    assert isinstance(engine.take(second, patience=PATIENCE), Grant)
    engine.release(second.name, second.holder)


def test_who_asks_again_behind_its_own_client_has_etcd_look_at_two_keys(engine: Driven, other: Driven) -> None:
    holder, first, second = (want(name) for name in [fresh_name()] * 3)
    other.take(holder)
    for one in (first, second):
        engine.take(one, patience=PATIENCE)
    requests = counted(engine.family)
    busy = engine.take(second, patience=PATIENCE)
    assert isinstance(busy, Busy)
    assert busy.ask_again > SILENCE
    assert not [request for request in requests.sent if key_queue.keys_of("", holder.name).all[1] in request]
    for driver, one in ((engine, second), (engine, first), (other, holder)):
        driver.release(one.name, one.holder)
