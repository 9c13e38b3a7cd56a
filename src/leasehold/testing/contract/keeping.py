"""The keeper: renews in the background, and tells each holder once, and in time, when its lease is lost."""

from __future__ import annotations

import asyncio
import gc
import threading
import time

import pytest

from leasehold import AsyncLease, Capability, LeaseLost
from leasehold.testing.stage import Stage, scenario
from leasehold.worlds import boot_clock

MANY = 250
TOLD_WITHIN = 0.05


class Told:
    """Hears of a loss by the callback, and notes when."""

    def __init__(self) -> None:
        """Nothing was told yet."""
        self.at: list[float] = []
        self.losses: list[LeaseLost] = []

    def __call__(self, loss: LeaseLost) -> None:
        """Be told."""
        self.at.append(boot_clock())
        self.losses.append(loss)


@scenario()
async def test_a_lease_is_renewed_for_as_long_as_it_is_held(stage: Stage) -> None:
    name, told = stage.name(), Told()
    lease = await stage.client().lock(name, ttl=stage.ttl, on_lost=told).acquire()
    other = stage.client().lock(name, ttl=stage.ttl)
    until = boot_clock() + 2.5 * stage.ttl
    while boot_clock() < until:
        lease.check()
        assert await other.try_acquire() is None
        await asyncio.sleep(stage.ttl / 4)
    await lease.release()
    assert not told.losses


@scenario()
async def test_the_loss_is_told_at_the_holders_own_deadline(stage: Stage) -> None:
    """By the event, by the callback (once), by `check`, and by `release`."""
    told, twice = Told(), Told()
    lease = await stage.client().lock(stage.name(), ttl=stage.ttl, renew=False, on_lost=told).acquire()
    lease.on_lost(twice)
    lease.check()
    assert await lease.wait_lost()
    by_event = boot_clock()
    assert 0 <= by_event - lease.valid_until <= TOLD_WITHIN + stage.slack
    with pytest.raises(LeaseLost):
        lease.check()
    assert lease.remaining == 0
    await asyncio.sleep(0.1)
    assert [len(told.at), len(twice.at)] == [1, 1]
    assert 0 <= told.at[0] - lease.valid_until <= TOLD_WITHIN + stage.slack
    assert (told.losses[0].name, told.losses[0].token) == (lease.name, lease.token)
    late = Told()
    lease.on_lost(late)
    await asyncio.sleep(0.05)
    assert len(late.at) == 1, "who asks after the loss is told at once"


@scenario()
async def test_a_released_lease_is_never_told_as_lost(stage: Stage) -> None:
    told = Told()
    lease = await stage.client().lock(stage.name(), ttl=stage.ttl, renew=False, on_lost=told).acquire()
    waiting = asyncio.create_task(lease.wait_lost())
    await asyncio.sleep(0)
    await lease.release()
    assert await waiting is False
    await asyncio.sleep(max(lease.valid_until - boot_clock(), 0) + 0.05)
    assert not told.losses
    assert lease.released


@scenario(Capability.OUTLIVES_CONNECTION, alone=True)
async def test_many_leases_share_one_keeper_and_are_renewed_in_batches(stage: Stage) -> None:
    proxy = stage.proxy() if stage.engine.address else None
    locks, ttl = stage.client(through=proxy), max(stage.ttl, 1.0)
    before = threading.active_count()
    leases = [await locks.lock(f"name-{n}", ttl=ttl, wait=0).acquire() for n in range(MANY)]
    assert threading.active_count() - before < 10
    taken_at, taken_with = boot_clock(), proxy.traffic.requests if proxy else 0
    await asyncio.sleep(ttl)
    for lease in leases:
        lease.check()
        assert lease.valid_until > taken_at + ttl / 2, "it was renewed"
    if proxy is not None:
        requests = proxy.traffic.requests - taken_with
        assert 0 < requests < MANY / 5, f"{MANY} leases took {requests} requests for about two renewals each"
    await asyncio.gather(*(lease.release() for lease in leases[:5]))


@scenario()
async def test_a_caller_that_blocks_does_not_starve_renewals(stage: Stage) -> None:
    """In asyncio nothing else of the loop runs meanwhile; the keeper does not live there."""
    lease = await stage.client().lock(stage.name(), ttl=stage.ttl).acquire()
    time.sleep(stage.ttl * 1.5)  # noqa: ASYNC251 -- this is what the scenario is about
    lease.check()
    await lease.release()


@scenario("pause")
async def test_a_hung_engine_does_not_delay_the_loss(stage: Stage) -> None:
    """With the engine stopped, renewals hang; the holder knows from its own clock alone, and in time."""
    told = Told()
    lease = await stage.client().lock(stage.name(), ttl=stage.ttl, on_lost=told).acquire()
    quiet = await stage.client().lock(stage.name(), ttl=stage.ttl, renew=False).acquire()
    await asyncio.sleep(stage.ttl / 2)
    await stage.pause()
    paused_at = boot_clock()
    lost, quiet_lost = await asyncio.gather(lease.wait_lost(), quiet.wait_lost())
    assert lost
    assert quiet_lost
    assert boot_clock() <= paused_at + stage.ttl + TOLD_WITHIN + stage.slack
    await asyncio.sleep(0.1)
    assert len(told.at) == 1
    assert 0 <= told.at[0] - lease.valid_until <= TOLD_WITHIN + stage.slack
    with pytest.raises(LeaseLost):
        lease.check()
    since = boot_clock()
    with pytest.raises(LeaseLost):
        await lease.release()
    assert boot_clock() - since < 0.1 + stage.slack, "what is known to be lost is told without asking the engine"


@scenario("pause")
async def test_a_late_renewal_does_not_revive_a_lost_lease(stage: Stage) -> None:
    lease = await stage.client().lock(stage.name(), ttl=stage.ttl).acquire()
    await stage.pause()
    assert await lease.wait_lost()
    await stage.resume()
    await asyncio.sleep(stage.ttl / 2)
    assert lease.lost
    with pytest.raises(LeaseLost):
        await lease.extend()


@scenario("pause")
async def test_renewals_go_on_after_a_short_outage(stage: Stage) -> None:
    ttl = stage.longer_ttl(3)
    lease = await stage.client().lock(stage.name(), ttl=ttl).acquire()
    await asyncio.sleep(ttl / 4)
    await stage.pause()
    await asyncio.sleep(ttl / 3)
    await stage.resume()
    await asyncio.sleep(ttl * 0.8)
    lease.check()
    await lease.release()


@scenario(Capability.BREAK)
async def test_a_callback_that_raises_harms_nobody(stage: Stage) -> None:
    def fail(loss: LeaseLost) -> None:
        raise RuntimeError(f"planted: {loss}")

    locks, told, name = stage.client(), Told(), stage.name()
    bystander = await locks.lock(stage.name(), ttl=stage.ttl).acquire()
    lease = await locks.lock(name, ttl=stage.ttl, on_lost=fail).acquire()
    lease.on_lost(told)
    await locks.force_release(name, because="a test")
    assert await lease.wait_lost()
    await asyncio.sleep(stage.ttl)
    assert len(told.at) == 1
    bystander.check()
    await bystander.release()


@scenario()
async def test_a_longest_hold_ends_a_lease_that_is_renewed(stage: Stage) -> None:
    name, told, longest = stage.name(), Told(), stage.ttl * 1.6
    locks = stage.client()
    since = boot_clock()
    lease = await locks.lock(name, ttl=stage.ttl, longest_hold=longest, on_lost=told).acquire()
    next_one = asyncio.create_task(stage.client().lock(name, ttl=stage.ttl, wait=10).acquire())
    await asyncio.sleep(stage.ttl * 1.2)
    lease.check()
    assert await lease.wait_lost()
    assert longest * 0.95 <= boot_clock() - since <= longest + TOLD_WITHIN + stage.slack
    successor = await next_one
    assert boot_clock() - since <= longest + stage.ttl + 0.5 + stage.slack
    assert successor.token > lease.token
    assert "longest hold" in str(told.losses[0])
    await successor.release()


@scenario()
async def test_a_lease_that_nobody_can_reach_any_more_is_given_back(stage: Stage) -> None:
    locks, name = stage.client(), stage.name()

    async def forget() -> None:
        await locks.lock(name, ttl=10).acquire()

    await asyncio.create_task(forget())
    gc.collect()
    await stage.free_within(name, 1.5)


@scenario(Capability.BREAK)
async def test_with_raises_when_the_lease_was_lost_inside(stage: Stage) -> None:
    locks, name = stage.client(), stage.name()
    with pytest.raises(LeaseLost) as caught:
        async with locks.lock(name, ttl=stage.ttl) as lease:
            await locks.force_release(name, because="a test")
            assert await lease.wait_lost()
    assert caught.value.token == lease.token
    with pytest.raises(LeaseLost):
        async with locks.lock(name, ttl=stage.ttl, renew=False) as lease:
            assert await lease.wait_lost()


@scenario()
async def test_with_does_not_hide_the_bodys_own_error(stage: Stage) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        async with stage.client().lock(stage.name(), ttl=stage.ttl, renew=False) as lease:
            assert await lease.wait_lost()
            raise ZeroDivisionError
    assert any("lost" in note for note in caught.value.__notes__)


@scenario(alone=True)
async def test_closing_a_client_ends_its_keeper(stage: Stage) -> None:
    before = set(threading.enumerate())
    locks = stage.client()
    await (await locks.lock(stage.name(), ttl=stage.ttl).acquire()).release()
    keepers = [one for one in set(threading.enumerate()) - before if "keeper" in one.name]
    assert len(keepers) <= 1
    await locks.close()
    assert not any(one.is_alive() for one in keepers)
    await (await locks.lock(stage.name(), ttl=stage.ttl).acquire()).release()


# A body that asks to be cancelled: only asyncio can


@scenario(Capability.BREAK, worlds=("asyncio",))
async def test_a_body_is_cancelled_at_the_loss_and_the_block_ends_with_it(stage: Stage) -> None:
    locks, name = stage.client(), stage.name()
    with pytest.raises(LeaseLost):
        async with locks.lock(name, ttl=stage.ttl, on_lost="cancel"):
            await locks.force_release(name, because="a test")
            await asyncio.sleep(30)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await asyncio.sleep(0)


@scenario(worlds=("asyncio",))
async def test_a_foreign_cancellation_stays_one(stage: Stage) -> None:
    locks, name = stage.client(), stage.name()

    async def hold(entered: asyncio.Event, lost: bool) -> None:
        async with locks.lock(name, ttl=stage.ttl, wait=5, renew=not lost, on_lost="cancel") as lease:
            entered.set()
            try:
                await asyncio.sleep(30)
            finally:
                if lost:
                    await asyncio.shield(lease.wait_lost())

    for lost in (False, True):
        entered = asyncio.Event()
        task = asyncio.create_task(hold(entered, lost))
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled(), "somebody else cancelled it, so it ends as cancelled"
    await stage.free_within(name, stage.ttl + 0.5)


@scenario(worlds=("asyncio",))
async def test_a_body_that_survives_its_cancellation_still_hears_of_the_loss(stage: Stage) -> None:
    async def body(lease: AsyncLease) -> None:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            assert lease.lost
            raise KeyError("the body's own error") from None

    locks = stage.client()
    with pytest.raises(KeyError) as caught:
        async with locks.lock(stage.name(), ttl=stage.ttl, renew=False, on_lost="cancel") as lease:
            await body(lease)
    assert any("lost" in note for note in caught.value.__notes__)
    with pytest.raises(LeaseLost):
        async with locks.lock(stage.name(), ttl=stage.ttl, renew=False, on_lost="cancel"):
            with pytest.raises(asyncio.CancelledError):
                await asyncio.sleep(30)
