"""What can go wrong around one Consul server: down, away, back, silent in one way or in both; and what is left then."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest
from tests.engines.consul_help import Driven, family_at
from tests.engines.driving import WORLDS, World, eventually, fresh_name, want
from tests.support.consul_server import LEAST_TTL, ConsulNode, running_consul
from tests.support.server_process import memory_folder

from leasehold import AsyncLeasehold, EngineError, EngineUnavailable, Leasehold, NotAcquired, OutcomeUnknown
from leasehold.core.engine import Busy, Grant, Renewal
from leasehold.testing.proxy import Proxy


@pytest.fixture(scope="module")
def server() -> Iterator[ConsulNode]:
    with running_consul() as node:
        yield node


@pytest.fixture
def proxy(server: ConsulNode) -> Iterator[Proxy]:
    with Proxy("127.0.0.1", server.port) as one:
        yield one


@pytest.fixture(params=WORLDS)
def through_proxy(proxy: Proxy, server: ConsulNode, request: pytest.FixtureRequest) -> Iterator[Driven]:
    """An engine whose requests have half a second each."""
    world: World = request.param
    driven = Driven(family_at(server.url_at("127.0.0.1", proxy.port)), world, seconds=0.5)
    yield driven
    proxy.heal()
    driven.close()


def test_a_server_that_is_down_at_the_start_is_named_and_found_once_it_is_up() -> None:
    with memory_folder() as folder:
        node = ConsulNode(folder)
        engines = [Driven(family_at(f"{node.url}&token=s3cret"), world) for world in WORLDS]
        for engine in engines:
            since = time.monotonic()
            says = rf"consul at 127\.0\.0\.1:{node.port} cannot be reached.*running"
            with pytest.raises(EngineUnavailable, match=says) as caught:
                engine.take(want("a"))
            assert time.monotonic() - since < 2
            assert "s3cret" not in str(caught.value)
            assert engine.family.sessions._places == {}, "nothing is remembered of an attempt that was never sent"
        try:
            node.start()
            node.wait()
            for engine in engines:
                wanted = want("a")
                assert isinstance(engine.take(wanted), Grant)
                engine.release(wanted.name, wanted.holder)
                engine.close()
        finally:
            node.kill()


def test_away_in_the_middle_and_back() -> None:
    """A waiter and a holder live through a restart; what cannot be answered meanwhile says so in time."""
    with running_consul() as server:
        locks, name = Leasehold(server.url, request_timeout=1.0), fresh_name()
        lease = locks.lock(name, ttl=20).acquire()
        served: list[int] = []

        def wait() -> None:
            with locks.lock(name, ttl=20, wait=30) as next_lease:
                served.append(next_lease.token)

        waiting = threading.Thread(target=wait)
        waiting.start()
        time.sleep(0.3)
        server.kill()
        since = time.monotonic()
        with pytest.raises(EngineError):
            locks.lock(fresh_name(), ttl=20, wait=0.5).acquire()
        with pytest.raises(EngineUnavailable, match="cannot be reached"):
            locks.status(name)
        assert time.monotonic() - since < 4
        lease.check()
        server.start()
        server.wait()
        lease.extend()
        lease.release()
        waiting.join(20)
        assert served == [token for token in served if token > lease.token]
        assert len(served) == 1
        locks.close()
        assert server.keys() == []


@pytest.mark.parametrize("way", ["requests", "replies"])
def test_cut_in_one_way_a_take_is_uncertain_and_then_found_again(
    through_proxy: Driven, proxy: Proxy, server: ConsulNode, way: str
) -> None:
    engine, warm, wanted = through_proxy, want(fresh_name()), want(fresh_name())
    engine.take(warm)
    proxy.cut("requests" if way == "requests" else "replies")
    since = time.monotonic()
    with pytest.raises(OutcomeUnknown):
        engine.take(wanted, patience=5.0)
    assert time.monotonic() - since < 2
    arrived = server.keys()
    assert len(arrived) == (1 if way == "requests" else 2)
    proxy.heal()
    grant = engine.take(wanted, patience=5.0)
    assert isinstance(grant, Grant)
    assert len(server.keys()) == 2
    for one in (warm, wanted):
        assert engine.release(one.name, one.holder)
    assert server.keys() == []


def test_a_release_without_an_answer_is_repeated(through_proxy: Driven, proxy: Proxy, server: ConsulNode) -> None:
    engine, wanted = through_proxy, want(fresh_name())
    engine.take(wanted)
    proxy.cut("replies")
    with pytest.raises(OutcomeUnknown):
        engine.release(wanted.name, wanted.holder)
    proxy.heal()
    assert engine.release(wanted.name, wanted.holder) is False, "it was carried out the first time"
    again = want(wanted.name)
    assert isinstance(engine.take(again), Grant)
    engine.release(again.name, again.holder)
    assert server.keys() == []


def test_what_could_not_be_given_back_does_not_live_on_with_the_leases_of_others(
    through_proxy: Driven, proxy: Proxy, server: ConsulNode
) -> None:
    engine, kept, given_back = through_proxy, want(fresh_name()), want(fresh_name())
    grant = engine.take(kept)
    engine.take(given_back)
    proxy.cut("requests")
    with pytest.raises(EngineError):
        engine.release(given_back.name, given_back.holder)
    proxy.heal()
    assert len(server.keys()) == 2
    engine.seconds = 5.0
    assert engine.renew([Renewal(kept.name, kept.holder, grant.token, kept.ttl)]) == [True]
    assert len(server.keys()) == 1, "the session of both is kept, and the one key only"
    assert isinstance(engine.take(given_back), Grant)
    assert engine.renew([Renewal(kept.name, kept.holder, grant.token, kept.ttl)]) == [True]
    for one in (kept, given_back):
        assert engine.release(one.name, one.holder)
    assert server.keys() == []


def test_a_renewal_without_an_answer_is_no_loss(through_proxy: Driven, proxy: Proxy) -> None:
    engine, wanted = through_proxy, want(fresh_name())
    grant = engine.take(wanted)
    lease = Renewal(wanted.name, wanted.holder, grant.token, wanted.ttl)
    proxy.cut("replies")
    with pytest.raises(EngineError):
        engine.renew([lease])
    proxy.heal()
    assert engine.renew([lease]) == [True]
    engine.release(wanted.name, wanted.holder)


def test_who_waits_in_a_black_hole_returns_in_time(through_proxy: Driven, proxy: Proxy, server: ConsulNode) -> None:
    engine, other = through_proxy, Driven(family_at(server.url))
    holder, waiter = want(name := fresh_name()), want(name)
    other.take(holder)
    assert isinstance(engine.take(waiter, patience=5.0), Busy)
    proxy.black_hole()
    assert engine.wait(waiter, 0.5) < 1.0
    proxy.heal()
    other.release(name, holder.holder)
    assert isinstance(engine.take(waiter, patience=5.0), Grant), "it kept its place"
    engine.release(name, waiter.holder)
    other.close()


def test_a_wait_ends_when_its_connection_is_reset(through_proxy: Driven, proxy: Proxy, server: ConsulNode) -> None:
    """Whoever waits there must look for itself: the news may have been lost with the connection."""
    engine, other = through_proxy, Driven(family_at(server.url))
    holder, waiter = want(name := fresh_name()), want(name)
    other.take(holder)
    engine.take(waiter, patience=30.0)
    threading.Timer(0.3, proxy.reset).start()
    assert 0.2 < engine.wait(waiter, 10.0) < 3.0
    other.release(name, holder.holder)
    assert isinstance(engine.take(waiter, patience=5.0), Grant)
    engine.release(name, waiter.holder)
    other.close()


def test_who_tries_once_and_cannot_leave_is_cleared_away(proxy: Proxy, server: ConsulNode) -> None:
    """The second request of a refused attempt gets lost; the keeper gives back what it left."""
    name = fresh_name()
    with Leasehold(server.url) as others, Leasehold(server.url_at("127.0.0.1", proxy.port)) as locks:
        held = others.lock(name, ttl=20).acquire()
        assert locks.lock(name, ttl=20).try_acquire() is None
        proxy.lose("reply", after=1)
        with pytest.raises((EngineError, NotAcquired)):
            locks.lock(name, ttl=20, wait=0).acquire()
        eventually(lambda: len(server.keys()) == 1, 5)
        held.release()


def test_a_paused_server_answers_late_and_no_lease_is_lost() -> None:
    with running_consul() as server, Leasehold(server.url) as locks:
        lease = locks.lock(fresh_name(), ttl=6).acquire()
        server.pause()
        since = time.monotonic()
        with pytest.raises(EngineError):
            locks.lock(fresh_name(), ttl=6, wait=0.4).acquire()
        assert time.monotonic() - since < 2
        server.resume()
        time.sleep(2.5)
        lease.check()
        lease.release()
        eventually(lambda: server.keys() == [], 5)


def test_a_client_survives_its_event_loop(server: ConsulNode) -> None:
    """Connections belong to no loop: the next one goes on with them, or opens its own."""
    locks = AsyncLeasehold(server.url)

    async def use() -> int:
        async with locks.lock("loop", ttl=10, wait=5) as lease:
            return lease.token

    tokens = [asyncio.run(use()) for _ in range(3)]
    assert tokens == sorted(set(tokens))
    asyncio.run(locks.close())


def test_a_ttl_that_the_server_does_not_allow_says_what_to_write(server: ConsulNode) -> None:
    url = f"consul://127.0.0.1:{server.port}/?least_ttl=0.1"
    with Leasehold(url) as locks, pytest.raises(EngineError, match="least_ttl"):
        locks.lock("a", ttl=LEAST_TTL / 2).acquire()
