"""Taking a name: at once, within a bounded wait, or not at all; and what a failed attempt leaves behind: nothing."""

from __future__ import annotations

import asyncio
import warnings

import pytest

from leasehold import Capability, GuaranteeTooWeak, GuaranteeWarning, NotAcquired
from leasehold.testing.stage import Stage, scenario
from leasehold.worlds import boot_clock

FAILED_ATTEMPTS = 1000
UNUSUAL_NAMES = (
    "a", "A", "a ", "a.", "a/b", "a//b", "/a", "a/", "..", "../a", ".", "%", "%2F", "a%2Fb", "{a}", "{", "}", "{}a",
    "a:b", "a::b", "*", "a*", "?", "[a]", "\\", "a\\b", "'", '"', "a'; DROP TABLE leases; --", "$(a)", "`a`", "#", "&",
    "-", "--", "_", "é", "日本語", "😀", "ﬀ", "ß", "ss", "I", "\u0131",
    "0", "00", "1e3", "null", "None", "x" * 255, "é" * 127,
)  # fmt: skip


@scenario()
async def test_a_free_name_is_taken_at_once(stage: Stage) -> None:
    locks = stage.client(label="a worker")
    lease = await locks.lock(stage.name(), ttl=stage.ttl, wait=0).acquire()
    assert lease.token > 0
    assert 0 < lease.remaining < stage.ttl
    assert lease.holder.startswith("a worker@")
    lease.check()
    await lease.release()
    assert lease.released
    assert not lease.lost
    assert lease.remaining == 0


@scenario()
async def test_trying_once_answers_none_when_it_is_held(stage: Stage) -> None:
    locks, name = stage.client(), stage.name()
    async with locks.lock(name, ttl=stage.ttl):
        assert await stage.client().lock(name, ttl=stage.ttl).try_acquire() is None
        assert await locks.lock(name, ttl=stage.ttl).try_acquire() is None, "a client does not exclude itself"
    lease = await locks.lock(name, ttl=stage.ttl).try_acquire()
    assert lease is not None
    await lease.release()


@scenario()
async def test_a_wait_that_runs_out_names_the_lock_the_wait_and_the_holder(stage: Stage) -> None:
    name = stage.name()
    holder = await stage.client(label="holder").lock(name, ttl=stage.ttl).acquire()
    since = boot_clock()
    with pytest.raises(NotAcquired) as caught:
        await stage.client().lock(name, ttl=stage.ttl, wait=0.2).acquire()
    waited = boot_clock() - since
    assert 0.2 <= waited <= 0.2 + 0.25 + stage.slack
    assert isinstance(caught.value, TimeoutError)
    assert (caught.value.name, caught.value.wait) == (name, 0.2)
    assert name in str(caught.value)
    if Capability.INSPECT in stage.facts.capabilities:
        assert (caught.value.holder, caught.value.token) == (holder.holder, holder.token)
    holder.check()
    await holder.release()


@scenario()
async def test_a_waiter_is_served_when_the_name_is_released(stage: Stage) -> None:
    name = stage.name()
    first = await stage.client().lock(name, ttl=10).acquire()
    waiting = asyncio.create_task(stage.client().lock(name, ttl=10, wait=10).acquire())
    await asyncio.sleep(0.1)
    assert not waiting.done()
    await first.release()
    released_at = boot_clock()
    second = await waiting
    took = boot_clock() - released_at
    assert second.token > first.token
    if Capability.PUSH_WAIT in stage.facts.capabilities:
        assert took < 0.1 + stage.slack, f"the waiter was not woken; it found out {took:.2f} s later"
    await second.release()


@scenario()
async def test_with_never_runs_its_body_unheld(stage: Stage) -> None:
    name, ran = stage.name(), []
    locks = await stage.connected()
    async with stage.client().lock(name, ttl=stage.ttl):
        for wait in (0.0, stage.brief):
            with pytest.raises(NotAcquired):
                async with locks.lock(name, ttl=stage.ttl, wait=wait):
                    ran.append(wait)
            with pytest.raises(NotAcquired):
                async with locks.several([name, stage.name()], ttl=stage.ttl, wait=wait):
                    ran.append(wait)
    assert not ran
    lease = await locks.lock(name, ttl=stage.ttl).acquire()
    await lease.release()
    with pytest.raises(Exception, match="released"):
        async with lease:
            ran.append(1.0)
    assert not ran


@scenario()
async def test_a_failed_attempt_does_not_disturb_the_holder(stage: Stage) -> None:
    locks, name = await stage.connected(), stage.name()
    lock = locks.lock(name, ttl=stage.ttl, wait=stage.brief)
    holder = await lock.acquire()
    for _ in range(3):
        assert await lock.try_acquire() is None
        with pytest.raises(NotAcquired):
            await lock.acquire()
    holder.check()
    await holder.release()
    again = await lock.acquire()
    await again.release()


@scenario(Capability.INSPECT, alone=True)
async def test_failed_attempts_leave_nothing_on_the_engine(stage: Stage) -> None:
    locks, name = stage.client(), stage.name()
    holder = await locks.lock(name, ttl=10).acquire()
    lock = locks.lock(name, ttl=10)

    async def fail(times: int) -> None:
        for _ in range(times):
            assert await lock.try_acquire() is None

    async def wait_in_vain(wait: float) -> None:
        with pytest.raises(NotAcquired):
            await locks.lock(name, ttl=10, wait=wait).acquire()

    # Apart, and not all at once: in a crowd the last answer may come too late for a wait that is about to end.
    await asyncio.gather(*(fail(FAILED_ATTEMPTS // 8) for _ in range(8)))
    await asyncio.gather(*(wait_in_vain((10 + number) * stage.brief) for number in range(8)))
    status = await locks.status(name)
    assert status is not None
    assert len(status.holders) == 1
    assert status.waiters == ()
    await holder.release()
    assert [found async for found in locks.names()] == []


@scenario()
async def test_unusual_names_work_and_stay_distinct(stage: Stage) -> None:
    locks = stage.client()
    leases = [await locks.lock(name, ttl=10, wait=0).acquire() for name in UNUSUAL_NAMES]
    assert [lease.name for lease in leases] == list(UNUSUAL_NAMES)
    for name in UNUSUAL_NAMES:
        assert await locks.lock(name, ttl=10).try_acquire() is None
    if Capability.INSPECT in stage.facts.capabilities:
        assert sorted([name async for name in locks.names()]) == sorted(UNUSUAL_NAMES)
        status = await locks.status(UNUSUAL_NAMES[4])
        assert status is not None
        assert (status.name, status.token) == (UNUSUAL_NAMES[4], leases[4].token)
    for lease in leases:
        lease.check()
        await lease.release()


@scenario()
async def test_namespaces_keep_apart(stage: Stage) -> None:
    base = stage.namespace
    pairs = [
        ("", base), (base, "a"), (f"{base}:a", "b"), (base, "a:b"), (f"{base}/a", "b"), (base, "a/b"),
        (f"{base}a", "b"), (base, "ab"), (base, "b"), (f"{base}:", "b"), (f"{base}{{a}}", "b"),
    ]  # fmt: skip
    leases = []
    for namespace, name in pairs:
        locks = stage.client(namespace=namespace)
        leases.append(await locks.lock(name, ttl=10, wait=0).acquire())
        if Capability.INSPECT in stage.facts.capabilities and namespace:
            own = [theirs for space, theirs in pairs[: len(leases)] if space == namespace]
            assert sorted([found async for found in locks.names()]) == sorted(own)
    for lease in leases:
        await lease.release()


@scenario(alone=True)
async def test_a_correctness_lock_is_granted_where_tokens_can_be_relied_on_and_not_silently_elsewhere(
    stage: Stage,
) -> None:
    taking = stage.client().lock(stage.name(), ttl=stage.ttl, purpose="correctness").acquire()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        [answer] = await asyncio.gather(taking, return_exceptions=True)
    warned = [one for one in caught if issubclass(one.category, GuaranteeWarning)]
    refused = isinstance(answer, GuaranteeTooWeak)
    assert (refused or bool(warned)) is not stage.facts.guarantee.fit_for_correctness
    if isinstance(answer, BaseException):
        assert refused, answer
        assert len(str(answer)) > 40, "a refusal says why, and what to do instead"
    else:
        await answer.release()


@scenario(alone=True)
async def test_an_efficiency_lock_needs_no_guarantee(stage: Stage) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", GuaranteeWarning)
        async with stage.client().lock(stage.name(), ttl=stage.ttl, purpose="efficiency") as lease:
            lease.check()


@scenario(alone=True)
async def test_two_callers_never_hold_at_once(stage: Stage) -> None:
    """Many tasks (or threads) of one client, and a second client beside it."""
    name, inside, tokens = stage.name(), 0, []
    both = [stage.client(), stage.client()]

    async def work(number: int) -> None:
        nonlocal inside
        lock = both[number % 2].lock(name, ttl=10, wait=20)
        for _ in range(5):
            async with lock as lease:
                inside += 1
                assert inside == 1
                tokens.append(lease.token)
                await asyncio.sleep(0.001)
                inside -= 1

    await asyncio.gather(*(work(number) for number in range(8)))
    assert len(tokens) == 40
    assert tokens == sorted(set(tokens)), "tokens are minted in the order of the grants"
