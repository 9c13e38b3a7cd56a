"""Giving a lease back, and prolonging it: only ever one's own, and never silently in vain."""

from __future__ import annotations

import asyncio
import copy
from multiprocessing.reduction import ForkingPickler

import pytest

from leasehold import Capability, LeaseLost, Misuse
from leasehold.testing.stage import Stage, scenario


@scenario()
async def test_releasing_a_lost_lease_says_so_and_leaves_its_successor_alone(stage: Stage) -> None:
    name = stage.name()
    lost = await stage.client().lock(name, ttl=stage.ttl, renew=False).acquire()
    successor = await stage.client().lock(name, ttl=10, wait=stage.ttl + 5).acquire()
    assert lost.lost
    with pytest.raises(LeaseLost) as caught:
        await lost.release()
    assert (caught.value.name, caught.value.token) == (name, lost.token)
    assert not lost.released
    successor.check()
    assert await stage.client().lock(name, ttl=stage.ttl).try_acquire() is None
    await successor.release()


@scenario(Capability.BREAK, Capability.OUTLIVES_CONNECTION)
async def test_the_engine_compares_the_holder_before_it_deletes(stage: Stage) -> None:
    """The first holder still believes, and only the engine knows that the name belongs to another one by now."""
    name, operator = stage.name(), stage.client()
    first = await stage.client().lock(name, ttl=30, renew=False).acquire()
    await operator.force_release(name, because="a test")
    second = await stage.client().lock(name, ttl=30, wait=0).acquire()
    first.check()
    with pytest.raises(LeaseLost):
        await first.release()
    assert first.lost
    await second.extend()
    assert await operator.lock(name, ttl=30).try_acquire() is None
    await second.release()


@scenario()
async def test_releasing_twice_says_so_and_leaves_the_next_holder_alone(stage: Stage) -> None:
    locks, name = stage.client(), stage.name()
    first = await locks.lock(name, ttl=10).acquire()
    await first.release()
    second = await locks.lock(name, ttl=10, wait=0).acquire()
    with pytest.raises(LeaseLost, match="released"):
        await first.release()
    assert first.released
    await second.extend()
    await second.release()


@scenario()
async def test_any_thread_or_task_may_release(stage: Stage) -> None:
    locks, name = stage.client(), stage.name()
    lease = await asyncio.create_task(locks.lock(name, ttl=10).acquire())
    await asyncio.create_task(lease.release())
    assert lease.released
    await (await locks.lock(name, ttl=10, wait=0).acquire()).release()


@scenario()
async def test_a_lock_object_holds_nothing_itself(stage: Stage) -> None:
    """One lock, shared by callers: each acquisition is a lease of its own, and frees nothing but itself."""
    lock = stage.client().lock(stage.name(), ttl=10, wait=5)
    first = await lock.acquire()
    waiting = asyncio.create_task(lock.acquire())
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await first.release()
    second = await waiting
    assert second is not first
    with pytest.raises(LeaseLost):
        await first.release()
    second.check()
    assert await lock.try_acquire() is None
    await second.release()


@scenario()
async def test_extending_prolongs_on_the_engine_and_never_shortens(stage: Stage) -> None:
    locks, longer, shorter = stage.client(), stage.name(), stage.name()
    prolonged = await locks.lock(longer, ttl=stage.ttl, renew=False).acquire()
    await prolonged.extend(stage.ttl * 3)
    assert stage.ttl * 2 < prolonged.remaining <= stage.ttl * 3
    kept = await locks.lock(shorter, ttl=stage.ttl * 3, renew=False).acquire()
    until = kept.valid_until
    await kept.extend(stage.ttl)
    assert kept.valid_until >= until
    await asyncio.sleep(stage.ttl * 1.3)
    for lease in (prolonged, kept):
        lease.check()
        assert await stage.client().lock(lease.name, ttl=stage.ttl).try_acquire() is None
        await lease.release()


@scenario(Capability.BREAK)
async def test_extending_does_not_take_a_lost_name_again(stage: Stage) -> None:
    locks, name = stage.client(), stage.name()
    lease = await locks.lock(name, ttl=30, renew=False).acquire()
    await locks.force_release(name, because="a test")
    with pytest.raises(LeaseLost):
        await lease.extend()
    assert lease.lost
    other = await stage.client().lock(name, ttl=30, wait=0).acquire()
    with pytest.raises(LeaseLost):
        await lease.extend()
    other.check()
    await other.extend()
    await other.release()


@scenario()
async def test_a_lease_cannot_be_copied_or_sent_to_another_process(stage: Stage) -> None:
    locks = stage.client()
    async with locks.lock(stage.name(), ttl=10) as lease:
        library_lease = getattr(lease, "inner", lease)
        for duplicate in (copy.copy, copy.deepcopy, ForkingPickler.dumps):
            with pytest.raises(Misuse, match="token"):
                duplicate(library_lease)
        for other in (locks, locks.lock(stage.name())):
            with pytest.raises(Misuse, match="open a client over there"):
                ForkingPickler.dumps(getattr(other, "inner", other))
        lease.check()
