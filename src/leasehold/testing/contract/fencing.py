"""Tokens, and what they are for: a holder that died or stalled, its successor, and who may write."""

from __future__ import annotations

import asyncio

import pytest

from leasehold import Capability
from leasehold.testing.processes import Answer, Refusal, WorkerProcess
from leasehold.testing.stage import Stage, scenario
from leasehold.worlds import boot_clock


@scenario()
async def test_tokens_increase_over_release_expiry_and_new_clients(stage: Stage) -> None:
    name, tokens = stage.name(), []
    for _ in range(3):
        locks = stage.client()
        for _ in range(3):
            async with locks.lock(name, ttl=stage.ttl, wait=0) as lease:
                tokens.append(lease.token)
                await lease.extend()
                assert lease.token == tokens[-1], "a renewal keeps its token"
        await locks.close()
    lost = await stage.client().lock(name, ttl=stage.ttl, renew=False).acquire()
    tokens.append(lost.token)
    async with stage.client().lock(name, ttl=stage.ttl, wait=stage.ttl + 5) as lease:
        tokens.append(lease.token)
    assert tokens == sorted(set(tokens))
    assert all(0 < token < 2**53 for token in tokens), "exact in every language that a fence may be written in"


@scenario("restart", Capability.TOKEN_SURVIVES_RESTART)
async def test_tokens_increase_over_a_restart_of_the_engine(stage: Stage) -> None:
    locks, name, tokens = stage.client(), stage.name(), []
    for _ in range(2):
        async with locks.lock(name, ttl=stage.ttl, wait=5) as lease:
            tokens.append(lease.token)
        await stage.restart()
        async with locks.lock(name, ttl=stage.ttl, wait=5) as lease:
            tokens.append(lease.token)
        async with stage.client().lock(name, ttl=stage.ttl, wait=5) as lease:
            tokens.append(lease.token)
    assert tokens == sorted(set(tokens))


@scenario("wipe", Capability.TOKEN_SURVIVES_DATA_LOSS)
async def test_tokens_increase_when_the_engine_lost_its_data(stage: Stage) -> None:
    locks, name, tokens = stage.client(), stage.name(), []
    for _ in range(3):
        lease = await locks.lock(name, ttl=stage.ttl, wait=5).acquire()
        tokens.append(lease.token)
        await stage.wipe()
        assert await lease.wait_lost(), "the engine forgot the lease, and its holder hears of it"
    assert tokens == sorted(set(tokens))


@scenario()
async def test_a_killed_holder_is_followed_within_its_ttl(stage: Stage) -> None:
    """With kill -9, for one who waits already and for one who comes later; and after the lock-delay, if it has one."""
    awaited, idle, closed = stage.name(), stage.name(), stage.name()
    delay = stage.ttl if Capability.LOCK_DELAY in stage.facts.capabilities else 0.0
    worker, locks = await stage.worker(), stage.client()
    delays = {awaited: 0.0, idle: 0.0, closed: delay}
    granted = {name: await worker.do("acquire", name=name, ttl=stage.ttl, lock_delay=delays[name]) for name in delays}
    waiting = asyncio.create_task(locks.lock(awaited, ttl=stage.ttl, wait=20).acquire())
    await asyncio.sleep(stage.ttl * 0.8)
    assert not waiting.done(), "the worker renews while it lives"
    await worker.kill()
    killed_at = boot_clock()

    async def follow(name: str) -> None:
        lease = await (waiting if name == awaited else locks.lock(name, ttl=stage.ttl, wait=20).acquire())
        took = boot_clock() - killed_at
        assert took <= stage.ttl + delays[name] + 0.5 + stage.slack
        if Capability.OUTLIVES_CONNECTION in stage.facts.capabilities:
            assert boot_clock() >= granted[name]["valid_until"] + delays[name]
        assert lease.token > granted[name]["token"]
        await lease.release()

    await asyncio.gather(*(follow(name) for name in delays))


@scenario()
async def test_a_stalled_holder_is_overtaken_told_and_refused(stage: Stage) -> None:
    """The story that this library exists for: stopped past the TTL, overtaken, thawed, and its write refused."""
    name, quiet, loud = stage.name(), stage.name(), stage.name()
    assert stage.resource.values("fenced") == []
    stalled, other = await stage.workers(2)
    first = await stalled.do("acquire", name=name, ttl=stage.ttl)
    await stalled.do("write", name=name, value="first")
    _, quiet_end = await stalled.enter(name=quiet, ttl=stage.ttl)
    _, loud_end = await stalled.enter(name=loud, ttl=stage.ttl, write="stale as well")
    stalled.stop()
    second, *_ = await asyncio.gather(
        *(other.ask("acquire", name=one, ttl=stage.ttl, wait=stage.ttl + 5) for one in (name, quiet, loud))
    )
    assert second["token"] > first["token"]
    assert second["at"] > first["valid_until"]
    await other.do("write", name=loud, value="second")
    stalled.thaw()
    await _assert_told(stalled, name)
    await _assert_blocks_end(stalled, {quiet: quiet_end, loud: loud_end})
    for one in (name, quiet, loud):
        await other.do("check", name=one)
    await other.do("write", name=loud, value="second again")
    assert stage.resource.values("fenced") == ["first", "second", "second again"]
    assert stage.resource.values("plain") == ["stale"], "without a fence at the resource nothing stops it"


async def _assert_told(stalled: WorkerProcess, name: str) -> None:
    """By `check`, event, callback, the fence at the resource, and `release`."""
    with pytest.raises(Refusal, match="LeaseLost"):
        await stalled.do("check", name=name)
    told = await stalled.do("await_loss", name=name)
    assert told["by_event"]
    with pytest.raises(Refusal, match="StaleToken"):
        await stalled.do("write", name=name, value="stale")
    await stalled.do("write_unchecked", value="stale")
    with pytest.raises(Refusal, match="LeaseLost"):
        await stalled.do("release", name=name)


async def _assert_blocks_end(stalled: WorkerProcess, ends: dict[str, asyncio.Future[Answer]]) -> None:
    """One with the loss, the other with what its body raised."""
    for name, expected in zip(ends, ("LeaseLost", "StaleToken"), strict=True):
        await stalled.do("leave", name=name)
        with pytest.raises(Refusal) as caught:
            await ends[name]
        assert caught.value.error == expected, "the loss must be told, and must not hide the body's own error"
        assert expected == "LeaseLost" or any("lost" in note for note in caught.value.notes)


@scenario(Capability.LOCK_DELAY)
async def test_a_name_stays_closed_after_a_loss_and_not_after_a_release(stage: Stage) -> None:
    locks, delay = stage.client(), stage.ttl
    released, lost, broken = stage.name(), stage.name(), stage.name()
    lease = await locks.lock(released, ttl=stage.ttl, lock_delay=delay).acquire()
    await lease.release()
    await (await stage.client().lock(released, ttl=stage.ttl, wait=0).acquire()).release()

    lease = await locks.lock(lost, ttl=stage.ttl, lock_delay=delay, renew=False).acquire()
    waiting = asyncio.create_task(stage.client().lock(lost, ttl=stage.ttl, wait=20).acquire())
    assert await lease.wait_lost()
    successor = await waiting
    closed = boot_clock() - lease.valid_until
    assert delay <= closed <= delay + stage.ttl + 0.5 + stage.slack
    await successor.release()

    if Capability.BREAK in stage.facts.capabilities:
        lease = await locks.lock(broken, ttl=stage.ttl, lock_delay=delay).acquire()
        await locks.force_release(broken, because="a test")
        assert await stage.client().lock(broken, ttl=stage.ttl).try_acquire() is None
