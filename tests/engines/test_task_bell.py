"""The bell that a task waits for."""

from __future__ import annotations

import asyncio
import threading

from leasehold.wires.task_bell import TaskBell
from leasehold.worlds import AsyncWorld

SHORT, LONG = 0.01, 5.0


def new_bell() -> tuple[TaskBell, AsyncWorld]:
    world = AsyncWorld()
    return TaskBell(world), world


def test_a_bell_that_was_rung_is_heard_once() -> None:
    async def hears() -> tuple[bool, bool]:
        bell, world = new_bell()
        bell.ring()
        return await bell.wait(world.now() + LONG), await bell.wait(world.now() + SHORT)

    assert asyncio.run(hears()) == (True, False)


def test_a_bell_wakes_who_waits() -> None:
    async def hears() -> bool:
        bell, world = new_bell()
        asyncio.get_running_loop().call_later(SHORT, bell.ring)
        return await bell.wait(world.now() + LONG)

    assert asyncio.run(hears())


def test_another_thread_may_ring() -> None:
    async def hears() -> bool:
        bell, world = new_bell()
        thread = threading.Timer(SHORT, bell.ring)
        thread.start()
        return await bell.wait(world.now() + LONG)

    assert asyncio.run(hears())


def test_who_was_cancelled_is_not_woken() -> None:
    async def is_cancelled() -> bool:
        bell, world = new_bell()
        waiting = bell.wait(world.now() + SHORT)
        waiting.cancel()
        bell.ring()
        await asyncio.sleep(2 * SHORT)
        return waiting.cancelled()

    assert asyncio.run(is_cancelled())


def test_a_bell_may_be_rung_when_the_loop_of_who_waited_is_closed() -> None:
    bell, world = new_bell()

    async def begin() -> asyncio.Future[bool]:
        waiting = asyncio.ensure_future(bell.wait(world.now() + LONG))
        waiting.add_done_callback(lambda _: None)
        return waiting

    async def ring() -> None:
        bell.ring()

    loop = asyncio.new_event_loop()
    waiting = loop.run_until_complete(begin())
    loop.close()
    bell.ring()
    asyncio.run(ring())
    assert not waiting.done()
