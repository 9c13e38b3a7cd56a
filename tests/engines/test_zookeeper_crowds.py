"""Crowds of one client that wait for one name on a real ZooKeeper: what each asks does not grow with the queue."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.engines.driving import WORLDS, World, eventually, fresh_name, want
from tests.engines.in_turn import assert_served_in_turn
from tests.engines.zookeeper_help import Driven, family_at
from tests.support.zookeeper_server import ZooKeeperServer, running_zookeeper

from leasehold import AsyncLeasehold, Leasehold
from leasehold.core.engine import Busy, Grant, Want
from leasehold.engines.zookeeper_places import Place, Places
from leasehold.engines.zookeeper_queue import Node, behind, node_in
from leasehold.testing.interrupting import CtrlC
from leasehold.wires import zookeeper_messages as messages
from leasehold.wires.zookeeper_line import Line
from leasehold.wires.zookeeper_session import Session

CROWD = 1000
FEW = 20
HOLD = 0.05
PATIENCE = 300.0
LISTING = messages.get_children("").kind
CREATION = messages.create("", b"", b"", 0).kind
DELETION = messages.delete("").kind
TRANSACTION = messages.multi([]).kind


@pytest.fixture(scope="module")
def server() -> Iterator[ZooKeeperServer]:
    with running_zookeeper() as server:
        yield server


@pytest.fixture(params=WORLDS)
def driven(server: ZooKeeperServer, request: pytest.FixtureRequest) -> Iterator[Driven]:
    world: World = request.param
    one = Driven(family_at(server.url), world)
    yield one
    one.close()


@pytest.fixture
def other(server: ZooKeeperServer) -> Iterator[Driven]:
    one = Driven(family_at(server.url))
    yield one
    one.close()


def listings(driven: Driven, monkeypatch: pytest.MonkeyPatch) -> list[messages.Request]:
    """The requests by which an engine lists a queue from now on."""
    seen: list[messages.Request] = []
    wire = driven.engine._wire
    ask = wire.ask

    def asked(session: Session, requests: Sequence[messages.Request], *more: Any) -> Any:
        seen.extend(request for request in requests if request.kind == LISTING)
        return ask(session, requests, *more)

    monkeypatch.setattr(wire, "ask", asked)
    return seen


def queued(driven: Driven, name: str, count: int) -> list[Want]:
    """So many who wait for a name, one after the other."""
    waiting = [want(name) for _ in range(count)]
    for one in waiting:
        assert isinstance(driven.take(one, patience=PATIENCE), Busy)
    return waiting


async def come_to_wait(locks: Leasehold, name: str, count: int) -> None:
    """Return when so many wait, as the server says."""

    def all_wait() -> bool:
        status = locks.status(name)
        return status is not None and len(status.waiters) >= count

    await asyncio.to_thread(eventually, all_wait, 60.0)


def test_who_queues_behind_its_own_client_does_not_list_the_queue(
    driven: Driven, other: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    other.take(holder := want(fresh_name()))
    seen = listings(driven, monkeypatch)
    queued(driven, holder.name, 1)
    assert seen
    seen.clear()
    [second] = queued(driven, holder.name, 1)
    driven.wait(second, 0.2)
    answer = driven.take(second, patience=PATIENCE)
    assert isinstance(answer, Busy)
    assert answer.incumbent is not None
    assert answer.incumbent.about == holder.about
    assert not seen


def test_the_turn_goes_on_in_a_crowd_without_a_listing(
    server: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, tokens = fresh_name(), []
    listed: list[str] = []
    get_children = messages.get_children

    def counted(path: str) -> messages.Request:
        listed.append(path)
        return get_children(path)

    monkeypatch.setattr(messages, "get_children", counted)

    async def work(locks: AsyncLeasehold) -> None:
        async with locks.lock(name, wait=PATIENCE) as lease:
            tokens.append(lease.token)
            await asyncio.sleep(HOLD)

    async def crowd(others: Leasehold) -> None:
        held = others.lock(name).acquire()
        async with AsyncLeasehold(server.url) as locks:
            tasks = [asyncio.create_task(work(locks)) for _ in range(FEW)]
            await come_to_wait(others, name, FEW)
            listed.clear()
            held.release()
            await asyncio.gather(*tasks)

    with Leasehold(server.url) as others:
        asyncio.run(crowd(others))
    assert tokens == sorted(tokens)
    assert len(listed) < FEW / 2


def test_a_stranger_between_two_of_one_client_keeps_its_place(driven: Driven, other: Driven) -> None:
    name = fresh_name()
    assert_served_in_turn([(driver, want(name)) for driver in (other, driven, other, driven, driven)])


def test_one_that_gave_up_is_not_taken_for_one_that_had_its_turn(driven: Driven, other: Driven) -> None:
    other.take(holder := want(fresh_name()))
    first, second, third = queued(driven, holder.name, 3)
    driven.release(second.name, second.holder)
    for _ in range(2):  # the first time it is woken; the second time, nobody has looked again meanwhile
        driven.wait(third, 0.5)
        assert not driven.place(third).is_next
    assert isinstance(driven.take(third, patience=PATIENCE), Busy)
    driven.release(first.name, first.holder)
    assert driven.wait(third, 30.0) < 20.0
    assert isinstance(driven.take(third, patience=PATIENCE), Busy)
    other.release(holder.name, holder.holder)
    assert driven.wait(third, 30.0) < 20.0
    assert isinstance(driven.take(third, patience=PATIENCE), Grant)
    driven.release(third.name, third.holder)


def test_one_whose_node_was_taken_away_is_not_followed(driven: Driven, other: Driven) -> None:
    other.take(holder := want(fresh_name()))
    queued(driven, holder.name, 1)
    other.force_release(holder.name)
    second = want(holder.name)
    assert isinstance(driven.take(second, patience=PATIENCE), Grant)
    driven.release(second.name, second.holder)


def test_who_comes_later_is_told_who_holds_the_name_now(driven: Driven, other: Driven) -> None:
    other.take(first := want(fresh_name()))
    other.take(second := want(first.name), patience=PATIENCE)
    queued(driven, first.name, 2)
    other.release(first.name, first.holder)
    assert isinstance(other.take(second, patience=PATIENCE), Grant)
    answer = driven.take(want(first.name), patience=PATIENCE)
    assert isinstance(answer, Busy)
    assert answer.incumbent is not None
    assert answer.incumbent.about == second.about


def changes(driven: Driven, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The kinds of the changes that an engine asks for from now on."""
    seen: list[int] = []
    wire = driven.engine._wire
    ask = wire.ask

    def asked(session: Session, requests: Sequence[messages.Request], *more: Any) -> Any:
        seen.extend(request.kind for request in requests if request.changes)
        return ask(session, requests, *more)

    monkeypatch.setattr(wire, "ask", asked)
    return seen


def test_a_free_name_is_taken_by_one_request(driven: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    driven.take(first := want(fresh_name()))  # which connects, and makes the folder
    driven.release(first.name, first.holder)
    listed, changed = listings(driven, monkeypatch), changes(driven, monkeypatch)
    second = want(first.name)
    assert isinstance(driven.take(second, patience=PATIENCE), Grant)
    assert (changed, listed) == ([TRANSACTION], [])
    driven.release(second.name, second.holder)


def test_who_was_refused_does_not_count_on_being_alone_before_it_is(
    driven: Driven, other: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To have the nodes counted costs the next waiter a round trip, if it is done while one waits."""
    other.take(holder := want(fresh_name()))
    seen = changes(driven, monkeypatch)
    for first_step in (TRANSACTION, CREATION, CREATION):
        assert isinstance(driven.take(want(holder.name)), Busy)
        assert seen == [first_step, DELETION]
        seen.clear()
    other.release(holder.name, holder.holder)
    for first_step in (CREATION, TRANSACTION):
        one = want(holder.name)
        assert isinstance(driven.take(one), Grant)
        driven.release(one.name, one.holder)
        assert seen == [first_step, DELETION]
        seen.clear()


def test_whoever_comes_meanwhile_does_not_keep_a_waiter_from_its_turn(
    server: ZooKeeperServer, driven: Driven, other: Driven
) -> None:
    """Who has the nodes counted changes what the next waiter has to find unchanged."""
    other.take(holder := want(fresh_name()))
    [waiter] = queued(driven, holder.name, 1)
    third = Driven(family_at(server.url))
    assert isinstance(third.take(want(holder.name)), Busy)
    other.release(holder.name, holder.holder)
    assert driven.wait(waiter, 30.0) < 20.0
    assert driven.place(waiter).is_next
    assert isinstance(driven.take(waiter, patience=PATIENCE), Grant)
    assert isinstance(third.take(want(holder.name)), Busy)
    driven.release(waiter.name, waiter.holder)
    third.close()


def waited_for(driven: Driven, other: Driven) -> Want:
    """One of another client who holds a name that this client has waited for."""
    name = fresh_name()
    other.take(first := want(name))
    [waiter] = queued(driven, name, 1)
    other.release(name, first.holder)
    assert driven.wait(waiter, 30.0) < 20.0
    assert isinstance(driven.take(waiter, patience=PATIENCE), Grant)
    driven.release(name, waiter.holder)
    other.take(second := want(name))
    return second


def test_who_had_to_wait_joins_the_queue_at_once_the_next_time(
    driven: Driven, other: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = waited_for(driven, other)
    seen = changes(driven, monkeypatch)
    [waiter] = queued(driven, holder.name, 1)
    assert seen == [CREATION]
    driven.wait(waiter, 0.2)
    answer = driven.take(waiter, patience=0.0)
    assert isinstance(answer, Busy)
    assert answer.incumbent is not None
    assert answer.incumbent.about == holder.about
    driven.release(waiter.name, waiter.holder)


def held_after_a_wait(driven: Driven, other: Driven) -> Want:
    """A lease of one who had to wait for the name before, and who finds nobody there this time."""
    holder = waited_for(driven, other)
    other.release(holder.name, holder.holder)
    first = want(holder.name)
    assert isinstance(driven.take(first, patience=PATIENCE), Grant)
    return first


def test_who_expected_to_wait_and_is_alone_holds_the_name_and_forgets_the_crowd(
    driven: Driven, other: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = held_after_a_wait(driven, other)
    assert isinstance(other.take(want(first.name)), Busy)
    driven.release(first.name, first.holder)
    seen = changes(driven, monkeypatch)
    for changed in (CREATION, TRANSACTION):  # not at once: it may be the first of a crowd that comes again
        again = want(first.name)
        assert isinstance(driven.take(again, patience=PATIENCE), Grant)
        assert seen == [changed]
        driven.release(again.name, again.holder)
        seen.clear()


def test_the_first_of_a_crowd_does_not_change_what_the_next_waiter_has_to_find_unchanged(
    driven: Driven, other: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = held_after_a_wait(driven, other)
    [waiter] = queued(other, first.name, 1)
    driven.release(first.name, first.holder)
    assert other.wait(waiter, 30.0) < 20.0
    queued(driven, first.name, 1)
    seen = listings(other, monkeypatch)
    assert isinstance(other.take(waiter, patience=PATIENCE), Grant)
    assert not seen
    other.release(waiter.name, waiter.holder)


def test_a_waiter_hears_that_the_one_before_it_had_its_turn_and_goes_on_waiting(driven: Driven, other: Driven) -> None:
    name = fresh_name()
    other.take(first := want(name))
    other.take(second := want(name), patience=PATIENCE)
    [third] = queued(driven, name, 1)

    def turns() -> None:
        time.sleep(0.2)
        other.release(name, first.holder)
        assert isinstance(other.take(second, patience=PATIENCE), Grant)
        time.sleep(0.5)
        other.release(name, second.holder)

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(turns)
        assert 0.6 < driven.wait(third, 30.0) < 20.0
        done.result()
    assert driven.place(third).is_next
    assert isinstance(driven.take(third, patience=PATIENCE), Grant)
    driven.release(name, third.holder)


def test_nothing_is_kept_of_a_watch_for_a_node_that_was_gone_already(driven: Driven, other: Driven) -> None:
    other.take(first := want(fresh_name()))
    [waiter] = queued(driven, first.name, 1)
    other.release(first.name, first.holder)
    assert driven.wait(waiter, 30.0) < 20.0
    session = driven.place(waiter).session
    assert session is not None
    assert session.line is not None
    assert not session.line._watches
    driven.release(waiter.name, waiter.holder)


def placed(places: Places, number: int) -> Place:
    """One that waits, with a node of this number."""
    place = places.place_for(want("x"), now=0.0)
    places.comes(place)
    node = node_in(f"e-{place.id}-{number:010d}")
    assert node is not None
    place.has_node(node, number, places.waiting_session(0.0))
    return place


def test_only_one_that_came_earlier_is_followed() -> None:
    places = Places(1.0)
    first, second, third, fourth = (placed(places, number) for number in range(1, 5))
    assert places.joined(second) is None
    assert places.joined(fourth) == second.node
    assert places.joined(third) is None, "its answer was read after that of one that came later"
    assert places.joined(first) is None
    fifth = placed(places, 5)
    assert places.joined(fifth) == fourth.node
    places.forget(fifth.want.holder)
    assert places.joined(placed(places, 6)) is None, "the one before it is gone"


def test_what_a_client_knows_of_a_name_ends_with_those_who_want_it() -> None:
    places = Places(1.0)
    first, second = (placed(places, number) for number in (1, 2))
    assert first.company is second.company is not None
    places.got(first)
    places.got(first)
    assert places._companies
    places.forget(second.want.holder)
    assert not places._companies


def test_no_interruption_lets_a_client_expect_company_for_good() -> None:
    """Ctrl-C before each bytecode of coming and of leaving; whoever is left is forgotten later, by the clean-up."""
    for at in itertools.count():
        places, ctrl_c = Places(1.0), CtrlC(at)

        def come_and_go(places: Places = places) -> None:
            place = placed(places, 1)
            places.got(place)
            places.comes(place)
            places.forget(place.want.holder)

        with contextlib.suppress(KeyboardInterrupt):
            ctrl_c.run(come_and_go)
        for holder in list(places._places):
            places.forget(holder)
        assert not any(company.members for company in places._companies.values()), ctrl_c.where
        if not ctrl_c.struck:
            break
    assert at > 100


@pytest.mark.parametrize(
    ("ahead", "own", "beside"),
    [(6, 7, True), (5, 7, False), (-1, 0, False), (2**31 - 3, 2**31 - 2, True), (2**31 - 2, 2**31 - 1, False)],
)
def test_numbers_tell_whether_somebody_came_in_between(ahead: int, own: int, beside: bool) -> None:
    """Everybody has the last number who comes after it, and those before the first are none of ZooKeeper's."""
    nodes = [Node(f"e-{'0' * 16}-{number:010d}", "exclusive", number, None) for number in (ahead, own)]
    assert behind(*nodes).is_next_to is beside


def test_a_crowd_of_tasks_comes_to_wait_at_once_and_is_quiet_then(
    server: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, looked, waits = fresh_name(), [], Line.begin_resting

    def begin_resting(line: Line, *arguments: Any) -> bool:
        looked.append(line)
        return waits(line, *arguments)

    monkeypatch.setattr(Line, "begin_resting", begin_resting)

    async def crowd(holder: Leasehold) -> None:
        async with AsyncLeasehold(server.url, most_waiters=CROWD, request_timeout=60.0) as locks:
            lock = locks.lock(name, wait=PATIENCE)
            tasks = [asyncio.create_task(lock.acquire()) for _ in range(CROWD)]
            try:
                await come_to_wait(holder, name, CROWD)
                await asyncio.sleep(2.0)
                looked.clear()
                await asyncio.sleep(3.0)
                assert len(looked) < CROWD, "one looks around for all of them"
                assert not any(task.done() for task in tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    with Leasehold(server.url) as locks, locks.lock(name):
        asyncio.run(crowd(locks))
