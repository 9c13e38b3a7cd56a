"""Tasks of one client that ask a server a few at a time."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest
from tests.support.etcd_server import running_etcd
from tests.support.zookeeper_server import running_zookeeper

from leasehold import AsyncLeasehold, EngineUnavailable
from leasehold.engines.etcd_taking import Taking
from leasehold.engines.zookeeper import ZooKeeperEngine
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


@pytest.mark.parametrize("owner", [Taking, ZooKeeperEngine])
def test_of_a_crowd_only_a_few_ask_the_server(owner: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    take, inside, most = owner._take, 0, 0

    async def counted(*arguments: Any) -> Any:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        try:
            return await take(*arguments)
        finally:
            inside -= 1

    async def crowd(url: str) -> None:
        async with AsyncLeasehold(url) as locks:
            await locks.lock("warm").acquire()
            monkeypatch.setattr(owner, "_take", counted)
            leases = await asyncio.gather(*(locks.lock(f"name-{number}").acquire() for number in range(3 * AT_ONCE)))
            assert len({lease.token for lease in leases}) == 3 * AT_ONCE

    with running_etcd(tmp_path) if owner is Taking else running_zookeeper() as server:
        asyncio.run(crowd(server.url))
    assert most == AT_ONCE
