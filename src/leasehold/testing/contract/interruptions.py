"""Ctrl-C before every bytecode, and cancellation at every await: nothing leaks, and no body runs unheld."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

import pytest

from leasehold import AsyncLeasehold, Capability, EngineError, Leasehold, NotAcquired
from leasehold.testing.interrupting import Cancellation, CtrlC, Moment
from leasehold.testing.stage import Stage, scenario
from leasehold.worlds import boot_clock

MOST_BYTECODES_OF_FIRST_STEP = 4
MOST_SHORTER = 50
"""So many uses may end sooner than the one that was counted."""
MOST_BLOCKS = 2
SAMPLE = 250
"""Variants of a use whose every point is tried elsewhere."""
MOMENTS: tuple[Moment, ...] = ("before", "with")


def _ttl(stage: Stage) -> float:
    """Long enough for a use that is slowed down by being traced."""
    return max(1.0, stage.ttl)


class Left(NamedTuple):
    """A name that was not free at once after an interruption."""

    name: str
    where: str
    by: float
    """When it has to be free."""


class Leftovers:
    """Names that an interrupted use has left; each must be free once its TTL (and half a second) has passed."""

    def __init__(self, stage: Stage, ttl: float) -> None:
        """Nothing is left yet."""
        self._stage, self._ttl = stage, ttl
        self._taken: list[Left] = []
        self._probe: Leasehold = stage.open(Leasehold, label="probe")

    def note(self, name: str, where: str) -> None:
        """Remember the name unless it is free already."""
        if not self._is_free(name):
            self._taken.append(Left(name, where, boot_clock() + self._ttl + 0.5 + self._stage.slack))

    def _is_free(self, name: str) -> bool:
        lease = self._probe.lock(name, ttl=5).try_acquire()
        if lease is not None:
            lease.release()
        return lease is not None

    async def assert_all_free(self, kept: list[object]) -> None:
        """Wait for those that are left, each until its own deadline.

        Python offers no way to protect the first step of a ``with`` block's end, before anything of it ran: interrupted
        there, the name is free when the lock (in `kept`) is gone.
        """
        first_step = [one for one in self._taken if "__exit__" in one.where and _is_first_step(one.where)]
        assert len(first_step) <= MOST_BYTECODES_OF_FIRST_STEP * MOST_BLOCKS
        await self._await_free([one for one in self._taken if one not in first_step])
        kept.clear()
        gc.collect()
        by = boot_clock() + self._ttl + 0.5 + self._stage.slack
        await self._await_free([one._replace(by=by) for one in first_step])
        self._probe.close()

    async def _await_free(self, taken: list[Left]) -> None:
        while taken := [one for one in taken if not self._is_free(one.name)]:
            late = [one.where for one in taken if boot_clock() > one.by]
            assert not late, "still taken after an interruption at " + ", ".join(late)
            await asyncio.sleep(0.05)


def _is_first_step(where: str) -> bool:
    return int(where.rpartition("+")[2]) < 2 * (MOST_BYTECODES_OF_FIRST_STEP + 1)


Use = Callable[[str], object]


async def _interrupt_everywhere(
    stage: Stage, use: Use, kept: list[object], *, warm: bool = True, most: int | None = None
) -> None:
    """Run one use of the library again and again, each time interrupted one bytecode later, until one gets through.

    Each run is `warm`, with connections open and everything imported, or finds what the interrupted one before it left.
    With `most`, only about so many points are tried, evenly spread.
    """
    left, at, struck, shorter = Leftovers(stage, _ttl(stage)), 0, 0, 0
    for name in ("first", "second"):
        use(name)
    # Now and then a use also tidies up what others left; that one is longer than the usual.
    counted = [CtrlC(None), CtrlC(None)]
    for one in counted:
        one.run(lambda: use("whole"))
    seen = min(one.seen for one in counted)
    most = min(filter(None, (most, stage.engine.interruptions)), default=seen)
    stride = max(seen // most, 1)
    while True:
        if warm:
            use("before")
        ctrl_c, name = CtrlC(at), f"interrupted-{at}"
        interrupted = _interrupted(ctrl_c, use, name)
        if not ctrl_c.struck:
            if at >= seen * 0.9 or shorter == MOST_SHORTER:
                break
            shorter += 1  # on a busy machine a wait may be over before it began
            continue
        assert interrupted, f"the interruption at {ctrl_c.where} was swallowed"
        left.note(name, ctrl_c.where)
        struck, at = struck + 1, at + stride
    assert struck >= seen // stride * 0.9
    await left.assert_all_free(kept)


def _interrupted(ctrl_c: CtrlC, use: Use, name: str) -> bool:
    try:
        ctrl_c.run(lambda: use(name))
    except KeyboardInterrupt:
        return True
    return False


def no_matter(test: Any) -> Any:
    """Let Python tidy up in its own time what an interruption found half made: a coroutine not begun, a new socket."""
    for warning in ("coroutine .* was never awaited:RuntimeWarning", "unclosed:ResourceWarning"):
        test = pytest.mark.filterwarnings(f"ignore:{warning}")(test)
    return test


@pytest.mark.parametrize("warm", [True, False], ids=["warm", "cold"])
@no_matter
@scenario(worlds=("blocking",))
async def test_ctrl_c_while_taking_and_releasing_leaks_nothing(stage: Stage, *, warm: bool) -> None:
    locks: Leasehold = stage.open(Leasehold)

    def use(name: str) -> None:
        lease = locks.lock(name, ttl=_ttl(stage), wait=0.5).acquire()
        lease.check()
        lease.release()

    await _interrupt_everywhere(stage, use, [], warm=warm)
    locks.close()


@no_matter
@scenario(worlds=("blocking",))
async def test_ctrl_c_anywhere_in_a_with_block_leaks_nothing(stage: Stage) -> None:
    """The locks outlive their blocks, as locks at the top of a module do."""
    locks: Leasehold = stage.open(Leasehold)
    kept: list[object] = []

    def use(name: str) -> None:
        lock = locks.lock(name, ttl=_ttl(stage), wait=0.5)
        kept.append(lock)
        with lock as lease:
            lease.check()

    await _interrupt_everywhere(stage, use, kept)
    locks.close()


@no_matter
@scenario(worlds=("blocking",))
async def test_ctrl_c_at_the_end_of_a_block_ends_a_lease_that_is_still_looked_at(stage: Stage) -> None:
    """Somebody still has the lease in a variable; the keeper must not renew it for that."""
    locks: Leasehold = stage.open(Leasehold)
    kept: list[object] = []

    def use(name: str) -> None:
        with locks.lock(name, ttl=_ttl(stage), wait=0.5) as lease:
            kept.append(lease)

    await _interrupt_everywhere(stage, use, kept, most=SAMPLE)
    locks.close()


@no_matter
@scenario(worlds=("blocking",))
async def test_ctrl_c_in_an_inner_block_does_not_end_the_outer_one(stage: Stage) -> None:
    """A reentrant lock: the inner block ends, at whatever point, and the outer one still holds until its own end."""
    locks: Leasehold = stage.open(Leasehold)
    kept: list[object] = []

    def use(name: str) -> None:
        lock = locks.lock(name, ttl=_ttl(stage), wait=0.5, reentrant=True)
        kept.append(lock)
        with lock as outer:
            try:
                with lock:
                    pass
            except KeyboardInterrupt:
                outer.check()
                raise
            outer.check()

    await _interrupt_everywhere(stage, use, kept, most=SAMPLE)
    locks.close()


@no_matter
@scenario(worlds=("blocking",))
async def test_ctrl_c_while_several_names_are_held_leaks_none_of_them(stage: Stage) -> None:
    locks: Leasehold = stage.open(Leasehold)
    kept: list[object] = []

    def use(name: str) -> None:
        several = locks.several([name, f"{name} too"], ttl=_ttl(stage), wait=0.5)
        kept.append(several)
        with several as leases:
            leases.check()

    await _interrupt_everywhere(stage, use, kept, most=SAMPLE)
    locks.close()


@no_matter
@scenario(worlds=("blocking",))
async def test_ctrl_c_while_waiting_leaves_no_waiter(stage: Stage) -> None:
    locks: Leasehold = stage.open(Leasehold)
    holder: Leasehold = stage.open(Leasehold)
    held = holder.lock("held", ttl=60).acquire()
    locks.lock("another", ttl=_ttl(stage)).acquire().release()  # to connect may take longer than the waits below

    def use(_name: str) -> None:
        # While every bytecode is watched, an answer may come too late for so short a wait.
        with contextlib.suppress(NotAcquired, EngineError):
            locks.lock("held", ttl=_ttl(stage), wait=0.001).acquire()

    await _interrupt_everywhere(stage, use, [], most=SAMPLE)
    held.check()
    if Capability.INSPECT in stage.facts.capabilities:
        give_up_at = boot_clock() + 1.5 + stage.slack
        while (status := holder.status("held")) is None or status.waiters:
            assert boot_clock() < give_up_at, "an interrupted waiter stays in the queue"
            await asyncio.sleep(0.02)
    held.release()
    again = holder.lock("held", ttl=1).try_acquire()
    assert again is not None, "somebody stands in the way"
    again.release()
    locks.close()
    holder.close()


# Cancellation, which asyncio delivers at an await


AsyncUse = Callable[[str], Coroutine[Any, Any, object]]
MOST_SUSPENSIONS = 60


async def _cancel_everywhere(stage: Stage, use: AsyncUse, *, warm: bool) -> None:
    """Run one use of the library again and again, each time cancelled at a later await, until one gets through."""
    left = Leftovers(stage, _ttl(stage))
    await use("first")
    for moment in MOMENTS:
        for at in range(MOST_SUSPENSIONS):
            if warm:
                await use("before")
            name, cancellation = f"cancelled-{moment}-{at}", Cancellation(at, moment)
            task = asyncio.create_task(cancellation.run(use(name)))
            since = boot_clock()
            await asyncio.wait([task])
            assert boot_clock() - since < 1.0 + stage.slack
            if not cancellation.struck:
                assert not task.cancelled()
                break
            assert task.cancelled() or task.exception() is None, f"await {at}: {task.exception()!r}"
            assert task.cancelled() or moment == "with", f"the cancellation at await {at} was swallowed"
            left.note(name, f"await {at}, {moment} its answer")
        else:
            pytest.fail(f"more than {MOST_SUSPENSIONS} awaits")
    await left.assert_all_free([])


@pytest.mark.parametrize("warm", [True, False], ids=["warm", "cold"])
@scenario(worlds=("asyncio",))
async def test_cancellation_while_taking_and_releasing_leaks_nothing(stage: Stage, *, warm: bool) -> None:
    locks: AsyncLeasehold = stage.client()

    async def use(name: str) -> None:
        lease = await locks.lock(name, ttl=_ttl(stage), wait=0.5).acquire()
        lease.check()
        await lease.release()

    await _cancel_everywhere(stage, use, warm=warm)


@scenario(worlds=("asyncio",))
async def test_cancellation_anywhere_in_an_async_with_block_leaks_nothing(stage: Stage) -> None:
    locks: AsyncLeasehold = stage.client()
    kept: list[object] = []

    async def use(name: str) -> None:
        lock = locks.lock(name, ttl=_ttl(stage), wait=0.5)
        kept.append(lock)
        async with lock as lease:
            kept.append(lease)
            lease.check()

    await _cancel_everywhere(stage, use, warm=True)


@scenario(worlds=("asyncio",))
async def test_cancellation_while_several_names_are_taken_leaks_none_of_them(stage: Stage) -> None:
    locks: AsyncLeasehold = stage.client()

    async def use(name: str) -> None:
        async with locks.several([name, f"{name} too", f"{name} as well"], ttl=_ttl(stage), wait=0.5) as leases:
            leases.check()

    await _cancel_everywhere(stage, use, warm=True)


@scenario(Capability.INSPECT, worlds=("asyncio",))
async def test_a_cancelled_waiter_leaves_the_queue(stage: Stage) -> None:
    locks, other, name = stage.client(), stage.client(), stage.name()
    held = await other.lock(name, ttl=20).acquire()
    for _ in range(3):
        waiting = [asyncio.create_task(locks.lock(name, ttl=_ttl(stage), wait=20).acquire()) for _ in range(4)]
        await asyncio.sleep(0.1)
        since = boot_clock()
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        assert boot_clock() - since < 0.1 + stage.slack
        assert all(task.cancelled() for task in waiting)
    give_up_at = boot_clock() + 1.0 + stage.slack
    while (status := await other.status(name)) is None or status.waiters:
        assert boot_clock() < give_up_at, "a cancelled waiter stays in the queue"
        await asyncio.sleep(0.02)
    await held.release()
    await (await other.lock(name, ttl=_ttl(stage), wait=0).acquire()).release()
