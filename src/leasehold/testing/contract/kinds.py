"""Kinds of lease: shared and exclusive, permits, several names at once, reentrant."""

from __future__ import annotations

import asyncio

import pytest

from leasehold import AsyncLease, Capability, LeaseLost, NotAcquired
from leasehold.testing.stage import Stage, scenario
from leasehold.worlds import boot_clock

TTL = 20.0


async def _give_back(*leases: AsyncLease | None) -> None:
    for lease in leases:
        if lease is not None:
            await lease.release()


@scenario(Capability.SHARED)
async def test_readers_share_and_a_writer_is_alone(stage: Stage) -> None:
    locks, other, name = stage.client(), stage.client(), stage.name()
    readers = [await one.shared(name, ttl=TTL, wait=0).acquire() for one in (locks, other, locks)]
    assert len({reader.token for reader in readers}) == 3
    assert await locks.lock(name, ttl=TTL).try_acquire() is None
    await _give_back(*readers[1:])
    assert await other.lock(name, ttl=TTL).try_acquire() is None
    await _give_back(readers[0])
    writer = await other.lock(name, ttl=TTL, wait=0).acquire()
    assert writer.token > max(reader.token for reader in readers)
    assert await locks.shared(name, ttl=TTL).try_acquire() is None
    await _give_back(writer)
    reader = await locks.shared(name, ttl=TTL, wait=0).acquire()
    assert reader.token > writer.token
    await _give_back(reader)


@scenario(Capability.SHARED)
async def test_readers_cannot_starve_a_writer(stage: Stage) -> None:
    """Readers come and go without a gap; the writer that waits is next all the same."""
    name, stop = stage.name(), asyncio.Event()
    locks = stage.client()

    async def read() -> None:
        while not stop.is_set():
            async with locks.shared(name, ttl=TTL, wait=20):
                await asyncio.sleep(0.04)

    readers = [asyncio.create_task(read()) for _ in range(3)]
    await asyncio.sleep(0.1)
    writer = await stage.client().lock(name, ttl=TTL, wait=3 + stage.slack).acquire()
    assert await locks.shared(name, ttl=TTL).try_acquire() is None
    await _give_back(writer)
    stop.set()
    await asyncio.gather(*readers)


@scenario(Capability.SHARED)
async def test_waiting_readers_are_let_in_together(stage: Stage) -> None:
    locks, name = stage.client(), stage.name()
    writer = await locks.lock(name, ttl=TTL).acquire()
    waiting = [asyncio.create_task(locks.shared(name, ttl=TTL, wait=10).acquire()) for _ in range(4)]
    await asyncio.sleep(0.1)
    await _give_back(writer)
    released_at = boot_clock()
    readers = await asyncio.gather(*waiting)
    assert boot_clock() - released_at < 0.5 + stage.slack
    await _give_back(*readers)


@scenario(Capability.PERMITS)
async def test_only_so_many_permits_are_out_at_once(stage: Stage) -> None:
    locks, other, name = await stage.connected(), stage.client(), stage.name()
    out = [await one.permits(name, 3, ttl=TTL, wait=0).acquire() for one in (locks, other, locks)]
    tokens = [permit.token for permit in out]
    assert tokens == sorted(set(tokens))
    assert await other.permits(name, 3, ttl=TTL).try_acquire() is None
    with pytest.raises(NotAcquired):
        await locks.permits(name, 3, ttl=TTL, wait=stage.brief).acquire()
    waiting = asyncio.create_task(other.permits(name, 3, ttl=TTL, wait=10).acquire())
    await asyncio.sleep(0.05)
    await _give_back(out.pop(0))
    fresh = await waiting
    assert fresh.token > max(tokens)
    for permit in [*out, fresh]:
        permit.check()
        await _give_back(permit)


@scenario(Capability.PERMITS)
async def test_a_lost_permit_comes_back(stage: Stage) -> None:
    locks, name = stage.client(), stage.name()
    kept = await locks.permits(name, 2, ttl=stage.ttl).acquire()
    lost = await locks.permits(name, 2, ttl=stage.ttl, renew=False).acquire()
    again = await stage.client().permits(name, 2, ttl=stage.ttl, wait=stage.ttl + 5).acquire()
    assert lost.lost
    with pytest.raises(LeaseLost):
        await lost.release()
    kept.check()
    again.check()
    assert await locks.permits(name, 2, ttl=stage.ttl).try_acquire() is None
    await _give_back(kept, again)


@scenario()
async def test_several_names_are_taken_all_or_none(stage: Stage) -> None:
    locks, names = stage.client(), [stage.name() for _ in range(3)]
    async with locks.several(names, ttl=TTL, wait=0) as leases:
        assert sorted(leases.tokens) == sorted(names)
        leases.check()
        for name in names:
            assert await stage.client().lock(name, ttl=TTL).try_acquire() is None
    middle = await stage.client().lock(names[1], ttl=TTL, wait=0).acquire()
    assert await locks.several(names, ttl=TTL).try_acquire() is None
    since = boot_clock()
    with pytest.raises(NotAcquired) as caught:
        await locks.several(names, ttl=TTL, wait=0.2).acquire()
    assert 0.2 <= boot_clock() - since <= 0.45 + stage.slack, "one bound for all of them together"
    assert (caught.value.name, caught.value.wait) == (names[1], 0.2)
    for name in (names[0], names[2]):
        await _give_back(await stage.client().lock(name, ttl=TTL, wait=0).acquire())
    await _give_back(middle)


@scenario()
async def test_opposite_orders_do_not_deadlock(stage: Stage) -> None:
    one, two = stage.name(), stage.name()

    async def work(names: list[str]) -> None:
        locks = stage.client()
        for _ in range(5):
            async with locks.several(names, ttl=TTL, wait=20):
                await asyncio.sleep(0.002)

    async with asyncio.timeout(15):
        await asyncio.gather(work([one, two]), work([two, one]), work([two, one]), work([one, two]))


@scenario(Capability.BREAK)
async def test_several_names_are_not_handed_out_when_one_was_lost_meanwhile(stage: Stage) -> None:
    """The first name is taken, then lost, while the second one is still being waited for."""
    first, second = sorted([stage.name(), stage.name()])
    locks, operator, ran = stage.client(), stage.client(), []
    blocker = await operator.lock(second, ttl=TTL).acquire()

    async def hold_both() -> None:
        async with locks.several([first, second], ttl=stage.ttl, wait=10) as leases:
            leases.check()
            ran.append(leases.tokens)

    holding = asyncio.create_task(hold_both())
    while await (probe := operator.lock(first, ttl=TTL)).try_acquire() is not None:
        await operator.force_release(first, because=f"{probe} came too early")
        await asyncio.sleep(0.02)
    await operator.force_release(first, because="a test")
    await asyncio.sleep(stage.ttl)
    await _give_back(blocker)
    with pytest.raises(LeaseLost):
        await holding
    assert not ran, "the body ran although one of the names was lost before it began"
    await stage.free_within(first, 1)
    await stage.free_within(second, 1)


@scenario()
async def test_a_reentrant_lock_is_held_until_given_back_as_often(stage: Stage) -> None:
    locks, name = await stage.connected(), stage.name()
    lock, stranger = locks.lock(name, ttl=TTL, wait=stage.brief, reentrant=True), stage.client().lock(name, ttl=TTL)
    async with lock as outer:
        async with lock as inner:
            assert inner.token == outer.token
            again = await locks.lock(name, ttl=TTL, wait=0, reentrant=True).acquire()
            assert again.token == outer.token
            await again.release()
        outer.check()
        assert await stranger.try_acquire() is None
    await _give_back(await stage.client().lock(name, ttl=TTL, wait=0).acquire())
    async with lock as anew:
        assert anew.token > outer.token


@scenario()
async def test_another_thread_or_task_is_not_the_same_caller(stage: Stage) -> None:
    """Not even a child of the holder, and not one that comes to be after the holder has ended."""
    lock = (await stage.connected()).lock(stage.name(), ttl=TTL, wait=stage.brief, reentrant=True)
    async with lock:
        assert await asyncio.create_task(lock.try_acquire()) is None
        with pytest.raises(NotAcquired):
            await asyncio.create_task(lock.acquire())
    kept = await asyncio.create_task(lock.acquire())
    for _ in range(20):
        # The system gives the identity of a thread or task that has ended to a later one.
        assert await asyncio.create_task(lock.try_acquire()) is None
    await _give_back(kept)


@scenario()
async def test_a_lock_is_not_reentrant_unless_asked_for(stage: Stage) -> None:
    lock = (await stage.connected()).lock(stage.name(), ttl=TTL, wait=stage.brief)
    async with lock as lease:
        assert await lock.try_acquire() is None
        with pytest.raises(NotAcquired):
            async with lock:
                pytest.fail("held twice")
        lease.check()
