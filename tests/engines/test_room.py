"""Tasks of one client that ask a server a few at a time."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from leasehold import EngineUnavailable
from leasehold.wires.room import AT_ONCE, Room
from leasehold.worlds import AsyncWorld


def test_no_more_than_a_few_ask_at_once_and_all_have_their_turn() -> None:
    async def crowd() -> None:
        world = AsyncWorld()
        room, inside, most = Room(world, "etcd"), 0, 0

        async def ask() -> None:
            nonlocal inside, most
            async with room.entered(world.now() + 30):
                inside += 1
                most = max(most, inside)
                await asyncio.sleep(0.001)
                inside -= 1

        await asyncio.gather(*(ask() for _ in range(5 * AT_ONCE)))
        assert (inside, most) == (0, AT_ONCE)

    asyncio.run(crowd())


def test_who_finds_no_room_in_time_is_told_so() -> None:
    async def crowd() -> None:
        world = AsyncWorld()
        room, soon = Room(world, "etcd"), world.now() + 0.05
        async with contextlib.AsyncExitStack() as inside:
            for _ in range(AT_ONCE):
                await inside.enter_async_context(room.entered(soon))
            with pytest.raises(EngineUnavailable, match="no time left to ask etcd"):
                await room.entered(soon).__aenter__()
        async with room.entered(world.now() - 1.0):
            pass

    asyncio.run(crowd())
