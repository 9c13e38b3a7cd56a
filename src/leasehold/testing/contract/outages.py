"""Engines and networks that fail: bounded waits, lost replies, restarts, and no two holders at once."""

from __future__ import annotations

import asyncio
from typing import Literal

import pytest

from leasehold import AsyncLease, Capability, EngineError, LeaseLost, NotAcquired
from leasehold.testing.contract.queueing import queue_up
from leasehold.testing.stage import Stage, scenario
from leasehold.worlds import boot_clock

OVER_THE_WAIT = 0.25
MOST_REQUESTS = 40


async def _assert_bounded(stage: Stage, acquiring: asyncio.Task[object], wait: float) -> None:
    since = boot_clock()
    with pytest.raises((NotAcquired, EngineError)):
        await acquiring
    took = boot_clock() - since
    assert took <= wait + OVER_THE_WAIT + stage.slack, f"a wait of {wait} s took {took:.2f} s"


@scenario("pause")
async def test_a_wait_is_bounded_when_the_engine_is_stopped(stage: Stage) -> None:
    warm, cold, name = stage.client(), stage.client(), stage.name()
    await (await warm.lock(name, ttl=stage.ttl).acquire()).release()
    held = await warm.lock(stage.name(), ttl=10).acquire()
    waits_already = asyncio.create_task(warm.lock(held.name, ttl=stage.ttl, wait=0.6).acquire())
    await asyncio.sleep(0.1)
    await stage.pause()
    await asyncio.gather(
        _assert_bounded(stage, waits_already, 0.5),
        _assert_bounded(stage, asyncio.create_task(warm.lock(name, ttl=stage.ttl, wait=0.3).acquire()), 0.3),
        _assert_bounded(stage, asyncio.create_task(cold.lock(name, ttl=stage.ttl, wait=0.3).acquire()), 0.3),
        _assert_bounded(stage, asyncio.create_task(cold.several([name, "b"], ttl=stage.ttl, wait=0.3).acquire()), 0.3),
    )
    await stage.resume()
    await stage.free_within(name, stage.ttl + 0.5)


@scenario("proxy")
async def test_a_wait_is_bounded_in_a_black_hole(stage: Stage) -> None:
    proxy, name = stage.proxy(), stage.name()
    warm = stage.client(through=proxy)
    await (await warm.lock(name, ttl=stage.ttl).acquire()).release()
    cold = stage.client(through=proxy)
    proxy.black_hole()
    await asyncio.gather(
        _assert_bounded(stage, asyncio.create_task(warm.lock(name, ttl=stage.ttl, wait=0.3).acquire()), 0.3),
        _assert_bounded(stage, asyncio.create_task(cold.lock(name, ttl=stage.ttl, wait=0.3).acquire()), 0.3),
    )
    assert (await stage.free_within(name, 0)) < stage.slack, "nothing reached the engine"
    proxy.heal()
    await (await warm.lock(name, ttl=stage.ttl, wait=5).acquire()).release()


@scenario("proxy", worlds=("asyncio",))
async def test_a_cancelled_wait_returns_at_once_in_a_black_hole(stage: Stage) -> None:
    proxy, name = stage.proxy(), stage.name()
    locks = stage.client(through=proxy)
    await (await locks.lock(name, ttl=stage.ttl).acquire()).release()
    proxy.black_hole()
    acquiring = asyncio.create_task(locks.lock(name, ttl=stage.ttl, wait=30).acquire())
    await asyncio.sleep(0.1)
    since = boot_clock()
    acquiring.cancel()
    with pytest.raises(asyncio.CancelledError):
        await acquiring
    assert boot_clock() - since < 0.1 + stage.slack
    proxy.heal()
    await stage.free_within(name, stage.ttl + 0.5)


@scenario("proxy")
async def test_an_unreachable_engine_is_an_error_of_its_own(stage: Stage) -> None:
    proxy, name = stage.proxy(), stage.name()
    locks = stage.client(through=proxy)
    proxy.refuse()
    with pytest.raises(EngineError) as caught:
        await locks.lock(name, ttl=stage.ttl, wait=0.2).acquire()
    assert caught.value.name == name
    assert not isinstance(caught.value, NotAcquired)
    proxy.heal()
    await (await locks.lock(name, ttl=stage.ttl, wait=5).acquire()).release()


async def _take_and_release(stage: Stage, what: Literal["request", "reply"], after: int) -> bool:
    """One whole use of a fresh client that loses one message; returns whether there was one to lose."""
    proxy, name = stage.proxy(), stage.name()
    locks = stage.client(through=proxy, request_timeout=1.0)
    proxy.lose(what, after=after)
    lease = await locks.lock(name, ttl=20, wait=10, renew=False).acquire()
    where = f"with {what} {after} lost"
    if Capability.INSPECT in stage.facts.capabilities:
        status = await stage.client().status(name)
        assert status is not None, where
        assert [holder.token for holder in status.holders] == [lease.token], where
        assert status.holders[0].expires_in > lease.remaining, f"{where}: the engine must not end it first"
    lease.check()
    await lease.release()
    assert lease.released, where
    await (await stage.client().lock(name, ttl=20, wait=1).acquire()).release()
    await locks.close()
    proxy.stop()
    return proxy.struck


@scenario("proxy")
async def test_no_lost_reply_is_taken_for_a_refusal(stage: Stage) -> None:
    """Whichever reply gets lost, connection set-up included: the retry is granted, and the release is no error."""
    for after in range(MOST_REQUESTS):
        if not await _take_and_release(stage, "reply", after):
            assert after >= 2, "taking and releasing are two requests at least"
            return
    pytest.fail(f"taking and releasing once took more than {MOST_REQUESTS} requests")


@scenario("proxy")
async def test_no_lost_request_is_noticed(stage: Stage) -> None:
    for after in range(MOST_REQUESTS):
        if not await _take_and_release(stage, "request", after):
            return


@scenario("proxy", Capability.INSPECT, Capability.FAIR, worlds=("asyncio",))
async def test_a_place_in_the_queue_is_given_back_though_the_outage_outlasts_the_ttl(stage: Stage) -> None:
    proxy, name, observer = stage.proxy(), stage.name(), stage.client()
    held = await observer.lock(name, ttl=60).acquire()
    waiting = asyncio.create_task(stage.client(through=proxy).lock(name, ttl=stage.ttl, wait=120).acquire())
    await queue_up(stage, observer, name, 1)
    proxy.black_hole()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await asyncio.sleep(stage.ttl + 0.5)
    proxy.heal()
    await queue_up(stage, observer, name, 0)
    await held.release()


@scenario("proxy", Capability.INSPECT, Capability.OUTLIVES_CONNECTION)
async def test_a_grant_whose_reply_vanished_is_found_again_with_a_fresh_ttl(stage: Stage) -> None:
    """No reset this time: the connection just stays silent until the request's own deadline."""
    proxy, name, observer = stage.proxy(), stage.name(), stage.client()
    locks = stage.client(through=proxy, request_timeout=0.3)
    for _ in range(3):  # until it asks as it always will: engines come to know names, and prepare statements
        await (await locks.lock(name, ttl=5).acquire()).release()
    proxy.cut("replies")
    acquiring = asyncio.create_task(locks.lock(name, ttl=5, wait=10, renew=False).acquire())
    status = await observer.status(name)
    while status is None or not status.holders:
        await asyncio.sleep(0.01)
        status = await observer.status(name)
    await asyncio.sleep(0.2)
    proxy.heal()
    lease = await acquiring
    after = await observer.status(name)
    assert after is not None
    assert [one.token for one in after.holders] == [lease.token] == [one.token for one in status.holders]
    assert after.holders[0].expires_in > lease.remaining
    await lease.release()


@scenario("proxy")
async def test_a_grant_that_comes_too_late_is_not_used(stage: Stage) -> None:
    """Each way takes longer than the lease lasts, so that every answer arrives after its own deadline."""
    proxy, name = stage.proxy(), stage.name()
    locks = stage.client(through=proxy, request_timeout=10)
    await (await locks.lock(name, ttl=stage.ttl).acquire()).release()
    proxy.delay(stage.ttl * 0.6)
    with pytest.raises((NotAcquired, EngineError)):
        await locks.lock(name, ttl=stage.ttl, wait=stage.ttl * 2).acquire()
    proxy.delay(0)
    await stage.free_within(name, stage.ttl + 0.5)


@scenario("pause")
async def test_a_stopped_engine_never_makes_two_holders(stage: Stage) -> None:
    """The first holder's belief ends before anybody else's begins, whatever the engine does."""
    name, ttl = stage.name(), stage.ttl
    first = await stage.client().lock(name, ttl=ttl).acquire()
    waiting = asyncio.create_task(_granted(stage, name))
    await asyncio.sleep(ttl / 2)
    await stage.pause()
    await asyncio.sleep(ttl * 1.5)
    assert first.lost
    await stage.resume()
    second, granted_at = await waiting
    assert granted_at >= first.valid_until
    assert second.token > first.token
    await second.release()


async def _granted(stage: Stage, name: str) -> tuple[AsyncLease, float]:
    lease = await stage.client(request_timeout=1.0).lock(name, ttl=stage.ttl * 5, wait=20).acquire()
    return lease, boot_clock()


@scenario("restart")
async def test_a_waiter_survives_a_restart_of_the_engine(stage: Stage) -> None:
    name, ttl = stage.name(), stage.longer_ttl(8)
    holder = await stage.client().lock(name, ttl=ttl).acquire()
    waiting = asyncio.create_task(stage.client().lock(name, ttl=ttl, wait=30).acquire())
    await asyncio.sleep(0.2)
    await stage.restart()
    back_at = boot_clock()
    released = True
    try:
        await holder.release()
    except (LeaseLost, EngineError):
        released = False
    second = await waiting
    assert second.token > holder.token
    assert boot_clock() - back_at <= (1 if released else ttl + 1) + stage.slack + 1
    await second.release()


@scenario("restart")
async def test_a_holder_survives_a_restart_or_is_told(stage: Stage) -> None:
    name, ttl = stage.name(), max(stage.longer_ttl(7), stage.ttl * 3)
    locks = stage.client()
    holder = await locks.lock(name, ttl=ttl).acquire()
    await stage.restart()
    other = stage.client().lock(name, ttl=ttl, wait=0.5)
    until = boot_clock() + ttl
    while boot_clock() < until:
        believed = not holder.lost
        try:
            taken = await other.try_acquire()
        except EngineError:
            taken = None
        if taken is not None:
            if Capability.OUTLIVES_CONNECTION not in stage.facts.capabilities:
                await asyncio.sleep(stage.slack)  # its lease ended with the server, and it hears of that a moment later
            assert holder.lost or not believed, "two holders at once"
            await taken.release()
            return
        await asyncio.sleep(0.1)
    if {Capability.TOKEN_SURVIVES_RESTART, Capability.OUTLIVES_CONNECTION} <= stage.facts.capabilities:
        holder.check()
        await holder.release()
