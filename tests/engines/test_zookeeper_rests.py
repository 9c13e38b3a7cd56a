"""Many tasks that rest, with one timer of the event loop for all of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

from leasehold.wires.zookeeper_rests import SPARE, Rest, Rests
from leasehold.worlds import AsyncWorld

WORLD = AsyncWorld()
CROWD = 2000


def resting(test: Callable[[Rests], Awaitable[None]]) -> None:
    async def run() -> None:
        await asyncio.wait_for(test(Rests(asyncio.get_running_loop(), WORLD)), 30)

    asyncio.run(run())


async def lasts(rest: Rest) -> float:
    began = WORLD.now()
    await rest
    return WORLD.now() - began


def test_each_ends_in_its_time_in_whatever_order_they_began() -> None:
    async def test(rests: Rests) -> None:
        now = WORLD.now()
        took = await asyncio.gather(*(lasts(rests.begin(now + end)) for end in (0.2, 0.1, 0.3, -1.0)))
        assert [round(one, 1) for one in took] == [0.2, 0.1, 0.3, 0.0]

    resting(test)


def test_one_timer_is_enough_for_all() -> None:
    async def test(rests: Rests) -> None:
        now = WORLD.now()
        many = [asyncio.create_task(lasts(rests.begin(now + 30 - number / CROWD))) for number in range(CROWD)]
        await asyncio.sleep(0)
        timers = rests.loop._scheduled  # type: ignore[attr-defined]
        assert sum(not timer.cancelled() for timer in timers) <= 2, "that of the test's own patience is the other"
        for one in many:
            one.cancel()
        await asyncio.wait(many)

    resting(test)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_who_is_rung_goes_on_at_once(elsewhere: bool) -> None:
    async def test(rests: Rests) -> None:
        rest = rests.begin(WORLD.now() + 30)
        task = asyncio.create_task(lasts(rest))
        await asyncio.sleep(0)
        if elsewhere:
            thread = threading.Thread(target=rest.ring)
            thread.start()
            thread.join()
        else:
            rest.ring()
        assert await task < 10
        rest.ring()

    resting(test)


def test_few_are_kept_that_are_over() -> None:
    async def test(rests: Rests) -> None:
        for _ in range(20 * SPARE):
            rests.begin(WORLD.now() + 30).ring()
        assert len(rests._rests) <= SPARE
        stays = [rests.begin(WORLD.now() + 30) for _ in range(CROWD)]
        for _ in range(CROWD):
            rests.begin(WORLD.now() + 30).ring()
        assert len(rests._rests) < CROWD * 1.25 + 2 * SPARE
        assert not any(one.done() for one in stays)

    resting(test)


def test_who_reads_has_the_timer_run_again_that_an_interruption_has_lost() -> None:
    async def test(rests: Rests) -> None:
        task = asyncio.create_task(lasts(rests.begin(WORLD.now() + 0.1)))
        assert rests._timer is not None
        rests._timer.cancel()
        await asyncio.sleep(0.3)
        assert not task.done()
        rests.look()
        assert await task < 10

    resting(test)


def test_a_loop_that_is_closed_is_not_rung() -> None:
    loop = asyncio.new_event_loop()
    rest = Rests(loop, WORLD).begin(WORLD.now() + 30)
    loop.close()
    rest.ring()
    assert not rest.done()
