"""Looking from outside: who holds, who waits, and release by force, which the holder notices."""

from __future__ import annotations

import asyncio
import os

import pytest

from leasehold import AsyncLease, Capability, InvalidName, LeaseLost, StaleToken
from leasehold.testing.stage import Stage, scenario
from leasehold.worlds import boot_clock


@scenario(Capability.INSPECT)
async def test_status_tells_who_holds_and_who_waits(stage: Stage) -> None:
    name, locks = stage.name(), stage.client(label="observer")
    assert await locks.status(name) is None
    holder = await stage.client(label="holder").lock(name, ttl=20).acquire()
    waiting = asyncio.create_task(stage.client(label="waiter").lock(name, ttl=20, wait=15).acquire())
    await asyncio.sleep(0.2)
    status = await locks.status(name)
    assert status is not None
    assert (status.name, status.token, status.closed_for) == (name, holder.token, 0)
    [seat] = status.holders
    assert (seat.token, seat.mode, seat.about) == (holder.token, "exclusive", holder.holder)
    assert seat.about.startswith("holder@")
    assert seat.about.endswith(f":{os.getpid()}")
    assert 0.1 <= seat.held_for <= 1 + stage.slack
    assert 18 <= seat.expires_in <= 20
    [place] = status.waiters
    assert place.about.startswith("waiter@")
    assert 0 <= place.waited_for <= 1 + stage.slack
    assert 0 < place.patience_left <= 60
    assert [found async for found in locks.names()] == [name]
    await holder.release()
    await (await waiting).release()
    assert [found async for found in locks.names()] == []


@scenario(Capability.INSPECT)
async def test_status_shows_no_secret(stage: Stage) -> None:
    """Whoever knew the holder's id could release in its name."""
    name, locks = stage.name(), stage.client()
    lease = await locks.lock(name, ttl=20).acquire()
    secret = getattr(lease, "inner", lease)._held.want.holder
    status = await locks.status(name)
    assert secret not in repr(status) + repr(lease) + repr(locks) + lease.holder
    await lease.release()


@scenario(Capability.INSPECT, Capability.OUTLIVES_CONNECTION, alone=True)
async def test_many_names_are_listed_completely(stage: Stage) -> None:
    locks = stage.client()
    names = [f"name-{number:04}" for number in range(620)]
    some = 31

    async def take(share: list[str]) -> list[AsyncLease]:
        return [await locks.lock(name, ttl=60, renew=False).acquire() for name in share]

    leases = await asyncio.gather(*(take(names[start : start + some]) for start in range(0, len(names), some)))
    assert sum(len(share) for share in leases) == len(names)
    assert sorted([found async for found in locks.names()]) == names


@scenario(Capability.BREAK)
async def test_a_release_by_force_is_noticed_and_fenced(stage: Stage) -> None:
    name, operator, resource = stage.name(), stage.client(label="operator"), stage.resource
    lease = await stage.client().lock(name, ttl=stage.ttl).acquire()
    waiting = asyncio.create_task(stage.client().lock(name, ttl=stage.ttl, wait=20).acquire())
    await asyncio.sleep(0.05)
    broken_at = boot_clock()
    token = await operator.force_release(name, because="its worker hangs")
    assert token > lease.token
    resource.write(token, "announced by the operator")
    with pytest.raises(StaleToken):
        resource.write(lease.token, "stale")
    assert await lease.wait_lost()
    assert boot_clock() - broken_at <= stage.ttl / 3 + 0.1 + stage.slack, "the holder notices at its next renewal"
    with pytest.raises(LeaseLost):
        lease.check()
    with pytest.raises(LeaseLost):
        await lease.release()
    successor = await waiting
    assert successor.token > token
    successor.check()
    resource.write(successor.token, "the successor's")
    await successor.release()


@scenario(Capability.BREAK)
async def test_a_free_name_can_be_broken_too(stage: Stage) -> None:
    name, operator = stage.name(), stage.client()
    first = await operator.force_release(name, because="to be sure")
    lease = await operator.lock(name, ttl=stage.ttl, wait=0).acquire()
    assert lease.token > first
    await lease.release()
    assert await operator.force_release(name, because="to be sure") > lease.token
    for because in ("", "two\nlines"):
        with pytest.raises(InvalidName, match="because"):
            await operator.force_release(name, because=because)


@scenario(Capability.BREAK, Capability.SHARED)
async def test_a_release_by_force_ends_every_lease_on_the_name(stage: Stage) -> None:
    name, locks = stage.name(), stage.client()
    readers = [await locks.shared(name, ttl=stage.ttl).acquire() for _ in range(3)]
    await locks.force_release(name, because="a test")
    writer = await locks.lock(name, ttl=stage.ttl, wait=0).acquire()
    for reader in readers:
        assert await reader.wait_lost()
    writer.check()
    await writer.release()
