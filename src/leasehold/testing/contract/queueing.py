"""Waiters: first come, first served; woken, not polling; and one that died or hangs costs the others little."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from leasehold import AsyncLeasehold, Capability, TooManyWaiters
from leasehold.core.table import PROMPT
from leasehold.testing.proxy import Proxy
from leasehold.testing.stage import Stage, scenario
from leasehold.worlds import boot_clock

TTL = 20.0
CROWD = 50


async def queue_up(stage: Stage, locks: AsyncLeasehold, name: str, waiters: int) -> None:
    """Wait until so many are in the queue."""
    give_up_at = boot_clock() + 5 + stage.slack
    while (status := await locks.status(name)) is None or len(status.waiters) != waiters:
        assert boot_clock() < give_up_at, f"{waiters} waiters were expected: {status}"
        await asyncio.sleep(0.01)


@scenario(Capability.FAIR, Capability.INSPECT)
async def test_waiters_are_served_in_the_order_of_their_arrival(stage: Stage) -> None:
    name, order = stage.name(), []
    clients = [stage.client() for _ in range(3)]
    held = await clients[0].lock(name, ttl=TTL).acquire()

    async def wait_in_line(number: int) -> int:
        async with clients[number % 3].lock(name, ttl=TTL, wait=30) as lease:
            order.append(number)
            return lease.token

    waiting = []
    for number in range(9):
        waiting.append(asyncio.create_task(wait_in_line(number)))
        await queue_up(stage, clients[0], name, number + 1)
    await held.release()
    tokens = await asyncio.gather(*waiting)
    assert order == list(range(9))
    assert [held.token, *tokens] == sorted({held.token, *tokens})


@scenario(Capability.FAIR, Capability.INSPECT)
async def test_nobody_barges_past_a_waiter(stage: Stage) -> None:
    """Whoever tries at the moment of release finds the name reserved for who has waited."""
    name = stage.name()
    locks, other = stage.client(), stage.client()
    for _ in range(10):
        held = await locks.lock(name, ttl=TTL, wait=0).acquire()
        waiting = asyncio.create_task(other.lock(name, ttl=TTL, wait=10).acquire())
        await queue_up(stage, locks, name, 1)
        await held.release()
        assert await locks.lock(name, ttl=TTL).try_acquire() is None
        await (await waiting).release()


@scenario(Capability.FAIR, Capability.INSPECT, alone=True)
async def test_a_waiter_that_died_or_hangs_costs_the_others_its_turn_and_no_more(stage: Stage) -> None:
    dead, hung, locks = stage.name(), stage.name(), stage.client()
    held = {name: await locks.lock(name, ttl=TTL).acquire() for name in (dead, hung)}
    killed, stopped = await stage.workers(2)
    lost = killed.ask("acquire", name=dead, ttl=TTL, wait=60)
    late = stopped.ask("acquire", name=hung, ttl=TTL, wait=60)
    waiting = {}
    for name in held:
        await queue_up(stage, locks, name, 1)
        waiting[name] = [asyncio.create_task(_hold_briefly(locks, name)) for _ in range(3)]
        await queue_up(stage, locks, name, 4)
    await killed.kill()
    assert lost.done()
    stopped.stop()
    await asyncio.sleep(PROMPT / 1e6)  # who has only just asked may be served as one who finds the name free

    async def hand_over(name: str) -> float:
        await held[name].release()
        released_at = boot_clock()
        await asyncio.gather(*waiting[name])
        return boot_clock() - released_at

    took = await asyncio.gather(*(hand_over(name) for name in held))
    assert max(took) <= stage.engine.turn + 0.5 + stage.slack, "only one turn was to be missed"
    stopped.thaw()
    assert (await late)["token"] > held[hung].token, "it gets its lease late, and not in vain"
    await stopped.do("check", name=hung)
    await stopped.do("release", name=hung)


async def _hold_briefly(locks: AsyncLeasehold, name: str) -> None:
    async with locks.lock(name, ttl=TTL, wait=30) as lease:
        lease.check()


@scenario(alone=True)
async def test_no_waiter_starves_in_a_crowd(stage: Stage) -> None:
    """Fifty waiters, each of whom comes back for more: everyone is served, and nobody waits for ten rounds."""
    name, clients = stage.name(), [stage.client() for _ in range(2)]
    longest, rounds = 0.0, 3
    started = boot_clock()

    async def come_again(number: int) -> None:
        nonlocal longest
        lock = clients[number % 2].lock(name, ttl=TTL, wait=50)
        for _ in range(rounds):
            since = boot_clock()
            async with lock:
                longest = max(longest, boot_clock() - since)

    await asyncio.gather(*(come_again(number) for number in range(CROWD)))
    fair_share = (boot_clock() - started) / rounds
    assert longest <= 10 * fair_share, f"one waited {longest:.2f} s where {fair_share:.2f} s are a round"


async def _silent(stage: Stage, proxy: Proxy) -> None:
    """Wait until those who came to wait have said all that they had to say."""
    said, since = 0, boot_clock()
    give_up_at = since + 20 + stage.slack
    while not said or boot_clock() - since < 0.3:
        if proxy.traffic.requests != said:
            said, since = proxy.traffic.requests, boot_clock()
        assert boot_clock() < give_up_at, "waiters do not fall silent"
        await asyncio.sleep(0.02)


@scenario("proxy", Capability.PUSH_WAIT, alone=True)
async def test_idle_waiters_ask_for_next_to_nothing(stage: Stage) -> None:
    proxy, name = stage.proxy(), stage.name()
    locks = stage.client(through=proxy)
    held = await stage.client().lock(name, ttl=TTL * 3).acquire()
    waiting = [asyncio.create_task(locks.lock(name, ttl=TTL, wait=60).acquire()) for _ in range(16)]
    await _silent(stage, proxy)
    seen: list[int] = []
    while not seen or (seen[-1] > 2 and len(seen) < 5):  # a beat of the connection may come on top, now and then
        before = proxy.traffic.requests
        await asyncio.sleep(1.0)
        seen.append(proxy.traffic.requests - before)
    assert seen[-1] <= 2, f"16 waiters together, in each second: {seen}"
    await held.release()
    for number in itertools.count(1):
        done, pending = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        waiting = list(pending)
        for task in done:
            await task.result().release()
        if not waiting:
            break
        assert number <= 16


@scenario(Capability.PUSH_WAIT, alone=True)
async def test_no_wake_up_is_missed(stage: Stage) -> None:
    """A release at any moment around the start of a wait must be noticed; a missed one would cost seconds."""
    name, locks, other = stage.name(), stage.client(), stage.client()
    since = boot_clock()
    for step in range(40):
        held = await locks.lock(name, ttl=TTL, wait=5).acquire()
        waiting = asyncio.create_task(other.lock(name, ttl=TTL, wait=30).acquire())
        await asyncio.sleep(step % 10 * 0.0004)
        await held.release()
        await (await waiting).release()
    assert boot_clock() - since <= 1.5 + 3 * stage.slack


@scenario()
async def test_a_client_has_only_so_many_waiters(stage: Stage) -> None:
    name = stage.name()
    held = await stage.client().lock(name, ttl=TTL).acquire()
    locks = stage.client(most_waiters=2)
    waiting = [asyncio.create_task(locks.lock(name, ttl=TTL, wait=30).acquire()) for _ in range(2)]
    await asyncio.sleep(0.1)
    with pytest.raises(TooManyWaiters):
        await locks.lock(name, ttl=TTL, wait=30).acquire()
    assert await locks.lock(name, ttl=TTL).try_acquire() is None
    await held.release()
    for task in asyncio.as_completed(waiting):
        await (await task).release()
