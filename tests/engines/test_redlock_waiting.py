"""How a task waits to be woken by a majority of the servers. Nothing is sent."""

from __future__ import annotations

import asyncio

import pytest

from leasehold.engines.redlock import open_engine
from leasehold.wires.quorum import AFTER_FIRST_WAKE
from leasehold.wires.quorum_asyncio import AsyncQuorumWire, Waiter

SERVERS = [f"redis://127.0.0.1:{port}" for port in (1, 2, 3)]
HOLDER, LONG = "7f", 5.0


def waiting() -> tuple[AsyncQuorumWire, asyncio.Task[None]]:
    """A task that waits."""
    wire = open_engine(SERVERS, namespace="", client_label="tests").asyncio()._wire
    assert isinstance(wire, AsyncQuorumWire)
    wire._waiters[HOLDER] = Waiter()
    return wire, asyncio.create_task(wire.wait(HOLDER, wire.world.now() + LONG))


@pytest.mark.parametrize("woken_by", [HOLDER.encode(), None])
def test_a_majority_wakes_it_and_one_server_a_little_later(woken_by: bytes | None) -> None:
    """None: a connection was lost."""

    async def wait(servers: list[int]) -> float:
        wire, task = waiting()
        await asyncio.sleep(0)
        since = wire.world.now()
        for server in servers:
            wire._wake(server, woken_by)
        await task
        return wire.world.now() - since

    assert AFTER_FIRST_WAKE * 0.9 <= asyncio.run(wait([1])) < LONG / 2
    assert AFTER_FIRST_WAKE * 0.9 <= asyncio.run(wait([1, 1])) < LONG / 2
    assert min(asyncio.run(wait([0, 2])) for _ in range(5)) < AFTER_FIRST_WAKE / 2


def test_a_wake_up_that_comes_before_the_wait_counts() -> None:
    async def wait() -> float:
        wire, task = waiting()
        wire._wake(0, HOLDER.encode())  # the task has not begun
        since = wire.world.now()
        await task
        return wire.world.now() - since

    assert asyncio.run(wait()) < LONG / 2


def test_a_wake_up_for_somebody_else_is_nothing_to_it() -> None:
    async def is_awake() -> bool:
        wire, task = waiting()
        for server in range(3):
            wire._wake(server, b"8a")
            wire._wake(server, b"\xff")
        await asyncio.sleep(2 * AFTER_FIRST_WAKE)
        done = task.done()
        task.cancel()
        await asyncio.wait({task})
        return done

    assert not asyncio.run(is_awake())


def test_nothing_is_kept_of_one_that_was_cancelled() -> None:
    async def kept() -> dict[str, Waiter]:
        wire, task = waiting()
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        return wire._waiters

    assert asyncio.run(kept()) == {}
