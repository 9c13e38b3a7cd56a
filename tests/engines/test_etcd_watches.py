"""Watches on a real etcd: kept for those who take turns, ended when nobody comes back, and never relied upon."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from tests.engines.driving import WORLDS, eventually, fresh_name, want
from tests.engines.etcd_help import Driven, counted, family_at
from tests.support.etcd_server import EtcdNode, running_etcd
from tests.support.server_process import memory_folder

from leasehold.core.engine import Busy, Grant, Want
from leasehold.engines.etcd import SHORT_WAIT
from leasehold.wires import etcd_messages as messages
from leasehold.wires.etcd_watch import KEPT

PATIENCE = 60.0
AT_ONCE = SHORT_WAIT * 0.7


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


def kept(engine: Driven) -> dict[bytes, int]:
    """The number of each watch that the client keeps, by its key."""
    stream = engine.family.hub._stream
    return {} if stream is None else {key: watch.number for key, watch in stream.kept.items()}


def queued(engine: Driven, other: Driven, name: str) -> tuple[Want, Want]:
    """One of the other client holds the name, and one of ours waits for it."""
    holder, waiter = want(name, ttl=60.0), want(name, ttl=60.0)
    assert isinstance(other.take(holder), Grant)
    assert isinstance(engine.take(waiter, patience=PATIENCE), Busy)
    return holder, waiter


def one_turn(engine: Driven, other: Driven, name: str, after: float = 0.02) -> float:
    """The other client holds the name and lets it go; returns how long ours has waited."""
    holder, waiter = queued(engine, other, name)
    letting_go = threading.Timer(after, lambda: other.release(name, holder.holder))
    letting_go.start()
    waited: float = engine.wait(waiter, 20.0)
    letting_go.join()
    assert isinstance(engine.take(waiter, patience=PATIENCE), Grant)
    engine.release(name, waiter.holder)
    return waited


def test_who_take_turns_wait_by_the_same_watch(engine: Driven, other: Driven) -> None:
    name = fresh_name()
    one_turn(engine, other, name)
    first = kept(engine)
    assert len(first) == 1
    for _ in range(3):
        one_turn(engine, other, name)
    assert kept(engine) == first


def test_what_a_kept_watch_told_before_anybody_listened_is_not_lost(engine: Driven, other: Driven) -> None:
    name = fresh_name()
    one_turn(engine, other, name)
    holder, waiter = queued(engine, other, name)
    requests = counted(engine.family)
    other.release(name, holder.holder)
    stream = engine.family.hub._stream
    assert stream is not None
    [watch] = stream.kept.values()
    eventually(lambda: watch.in_vain, 10.0)
    assert engine.wait(waiter, 20.0) < AT_ONCE
    assert not requests.made, "nobody had to look"
    engine.release(name, waiter.holder)


def test_what_a_kept_watch_told_of_an_earlier_turn_wakes_nobody(engine: Driven, other: Driven) -> None:
    name = fresh_name()
    one_turn(engine, other, name)
    holder, waiter = queued(engine, other, name)
    assert engine.wait(waiter, 0.3) >= 0.3
    for driver, one in ((engine, waiter), (other, holder)):
        driver.release(name, one.holder)


def test_a_watch_that_nobody_comes_back_for_is_ended(engine: Driven, other: Driven) -> None:
    name = fresh_name()
    one_turn(engine, other, name)
    stream = engine.family.hub._stream
    assert stream is not None
    [watch] = stream.kept.values()
    for over in (lambda: watch.in_vain, lambda: not stream.watches and not stream.kept):
        assert stream.kept
        other.take(holder := want(name, ttl=60.0))
        other.release(name, holder.holder)
        eventually(over, 10.0)
    assert not stream.stopped, "etcd was told"


def test_few_watches_are_kept(engine: Driven, other: Driven) -> None:
    for _ in range(KEPT + 3):
        one_turn(engine, other, fresh_name())
    stream = engine.family.hub._stream
    assert stream is not None
    assert len(stream.watches) == len(stream.kept) == KEPT


def test_a_watch_is_not_kept_when_its_stream_breaks(engine: Driven, other: Driven) -> None:
    name = fresh_name()
    one_turn(engine, other, name)
    engine.family.hub.close()
    eventually(lambda: engine.family.hub._stream is None, 10.0)
    assert one_turn(engine, other, name) < 5.0


@pytest.fixture
def _busy(server: EtcdNode) -> Iterator[None]:
    """Others write all the time."""
    writer, over = Driven(family_at(server.url)), threading.Event()

    def write() -> None:
        while not over.wait(0.001):
            writer.take(one := want(fresh_name()))
            writer.release(one.name, one.holder)

    thread = threading.Thread(target=write)
    thread.start()
    yield
    over.set()
    thread.join()
    writer.close()


@pytest.mark.usefixtures("_busy")
def test_a_watch_that_etcd_holds_up_holds_up_nobody(
    engine: Driven, other: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A watch that begins while etcd writes is one of the past to it, and is served only ten times a second."""
    from_now_on = messages.watch

    def of_the_past(number: int, key: bytes, end: bytes) -> bytes:
        begin = messages.Message(from_now_on(number, key, end)).blob(1)
        return messages._blob(1, begin + messages._number(3, 1))

    monkeypatch.setattr(messages, "watch", of_the_past)
    waits = sorted(one_turn(engine, other, fresh_name(), after=0.01) for _ in range(9))
    assert waits[-2] < 0.05


def test_who_listens_to_a_new_watch_soon_looks_whether_the_one_before_had_its_turn(
    engine: Driven, other: Driven
) -> None:
    """No wake-up can be heard any more, when it has let go before the watch begins."""

    def waited() -> float:
        name = fresh_name()
        holder, before, waiter = (want(name, ttl=60.0) for _ in range(3))
        other.take(holder)
        other.take(before, patience=PATIENCE)
        engine.take(waiter, patience=PATIENCE)
        other.release(name, holder.holder)
        assert isinstance(other.take(before, patience=PATIENCE), Grant)
        other.release(name, before.holder)
        seconds: float = engine.wait(waiter, 20.0)
        engine.release(name, waiter.holder)
        return seconds

    assert min(waited() for _ in range(5)) < AT_ONCE


def test_who_waits_behind_its_own_client_soon_looks_when_that_one_is_gone(engine: Driven, other: Driven) -> None:
    def waited() -> float:
        holder, before = queued(engine, other, fresh_name())
        engine.take(waiter := want(holder.name, ttl=60.0), patience=PATIENCE)
        engine.release(before.name, before.holder)
        seconds: float = engine.wait(waiter, 20.0)
        for driver, one in ((engine, waiter), (other, holder)):
            driver.release(one.name, one.holder)
        return seconds

    assert min(waited() for _ in range(5)) < AT_ONCE
