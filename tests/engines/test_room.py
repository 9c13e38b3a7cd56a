"""Tasks of one client that ask a server a few at a time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.etcd_server import running_etcd
from tests.support.zookeeper_server import running_zookeeper

from leasehold import AsyncLeasehold, EngineUnavailable, Misuse, OutcomeUnknown
from leasehold.core.acquire import Attempt, acquire
from leasehold.core.engine import FEW
from leasehold.core.held import margin
from leasehold.core.worlds import run_blocking
from leasehold.engines.etcd import EtcdEngine
from leasehold.engines.sqlite import SqliteFamily
from leasehold.engines.zookeeper import ZooKeeperEngine
from leasehold.settings import Terms
from leasehold.wires.room import AsyncRoom
from leasehold.wires.sqlite_file import lease_file
from leasehold.worlds import AsyncWorld

SOON = 0.05


@contextlib.asynccontextmanager
async def full_room(places: int) -> AsyncIterator[AsyncRoom]:
    room = AsyncRoom(AsyncWorld(), "etcd", places)
    for _ in range(places):
        assert room.enter_at_once()
    assert not room.enter_at_once()
    yield room


@contextlib.asynccontextmanager
async def entered(room: AsyncRoom, until: float) -> AsyncIterator[None]:
    if not room.enter_at_once() and (why := await room.enter(until)) is not None:
        raise why
    try:
        yield
    finally:
        room.leave()


def soon() -> float:
    return AsyncWorld().now() + SOON


def test_no_more_than_a_few_ask_at_once_and_all_have_their_turn() -> None:
    async def crowd() -> None:
        world = AsyncWorld()
        room, inside, most = AsyncRoom(world, "etcd", 8), 0, 0
        served: list[int] = []

        async def ask(number: int) -> None:
            nonlocal inside, most
            async with entered(room, world.now() + 30):
                inside += 1
                most = max(most, inside)
                served.append(number)
                await asyncio.sleep(0.001)
                inside -= 1

        await asyncio.gather(*(ask(number) for number in range(40)))
        assert (inside, most, served) == (0, 8, [*range(40)])

    asyncio.run(crowd())


def test_who_finds_no_room_in_time_is_told_so() -> None:
    async def crowd() -> None:
        async with full_room(3) as room:
            why = await room.enter(soon())
            assert isinstance(why, EngineUnavailable)
            assert "no time left to ask etcd" in str(why)
            with pytest.raises(EngineUnavailable, match="others of this client came first"):
                await entered(room, soon()).__aenter__()
            room.leave()
            async with entered(room, soon() - 1.0):
                assert not room.enter_at_once()
            assert room.enter_at_once()

    asyncio.run(crowd())


def test_a_place_that_comes_too_late_goes_to_the_next_one() -> None:
    """Whoever is cancelled, or out of time, just when it is let in."""

    async def crowd() -> None:
        async with full_room(1) as room:
            cancelled = asyncio.create_task(room.enter(soon() + 30))
            follows = asyncio.create_task(room.enter(soon() + 30))
            await asyncio.sleep(0)
            room.leave()
            cancelled.cancel()
            assert await asyncio.wait_for(follows, 5) is None
            with pytest.raises(asyncio.CancelledError):
                await cancelled
            room.leave()
            assert room.enter_at_once()

    asyncio.run(crowd())


def test_who_gives_up_leaves_no_place_taken() -> None:
    async def crowd() -> None:
        async with full_room(1) as room:
            waiting = [asyncio.create_task(room.enter(soon() + 30)) for _ in range(3)]
            await asyncio.sleep(0)
            for one in waiting:
                one.cancel()
            await asyncio.wait(waiting)
            room.leave()
            assert room.enter_at_once()

    asyncio.run(crowd())


@pytest.mark.parametrize("kind", [EtcdEngine, ZooKeeperEngine])
def test_of_a_crowd_only_a_few_ask_the_server(kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    take, inside, most = kind.take, 0, 0

    async def counted(*arguments: Any, **more: Any) -> Any:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        try:
            return await take(*arguments, **more)
        finally:
            inside -= 1

    async def crowd(url: str) -> None:
        async with AsyncLeasehold(url) as locks:
            await locks.lock("warm").acquire()
            monkeypatch.setattr(kind, "take", counted)
            leases = await asyncio.gather(*(locks.lock(f"name-{number}").acquire() for number in range(3 * FEW)))
            assert len({lease.token for lease in leases}) == 3 * FEW

    with running_etcd(tmp_path) if kind is EtcdEngine else running_zookeeper() as server:
        asyncio.run(crowd(server.url))
    assert most == FEW


def test_a_lease_is_counted_from_when_it_was_asked_for_and_not_from_when_there_was_no_room_yet(tmp_path: Path) -> None:
    """Else one that waits here for longer than its TTL would be granted leases, and believe in none of them."""
    engine = SqliteFamily(lease_file(tmp_path / "leases.db"), "").blocking()

    class Narrow:
        entered_at, left = 0.0, False

        def enter_at_once(self) -> bool:
            return False

        async def enter(self, until: float) -> None:
            assert until - engine.world.now() == pytest.approx(5, abs=0.5)
            await engine.world.sleep(0.01)
            self.entered_at = engine.world.now()

        def leave(self) -> None:
            self.left = True

    room, attempt = Narrow(), Attempt(Terms("n", ttl=3.0).want("a" * 32, "me"))
    held = run_blocking(acquire(engine, attempt, wait=0.0, request_timeout=5.0, room=room))
    assert held.valid_until >= room.entered_at + 3.0 - margin(3.0, 0.0)
    assert room.left
    run_blocking(engine.close())


@pytest.mark.parametrize(
    "trouble", [EngineUnavailable("gone"), OutcomeUnknown("lost"), Misuse("wrong"), asyncio.CancelledError()]
)
def test_whatever_comes_of_a_request_it_lets_another_one_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: BaseException
) -> None:
    engine = SqliteFamily(lease_file(tmp_path / "leases.db"), "").blocking()

    async def fails(*_: object, **__: object) -> None:
        raise trouble

    class Free:
        inside = 0

        def enter_at_once(self) -> bool:
            self.inside += 1
            return True

        async def enter(self, until: float) -> None:
            raise AssertionError("there is a place")

        def leave(self) -> None:
            self.inside -= 1

    monkeypatch.setattr(type(engine), "take", fails)
    room, attempt = Free(), Attempt(Terms("n").want("a" * 32, "me"))
    with pytest.raises(type(trouble)):
        run_blocking(acquire(engine, attempt, wait=0.0, request_timeout=5.0, room=room))
    assert room.inside == 0
    run_blocking(engine.close())


def test_a_forked_child_has_all_places(tmp_path: Path) -> None:
    async def fill() -> None:
        with running_etcd(tmp_path) as server:
            locks = AsyncLeasehold(server.url)
            locks.lock("n")
            desk = locks._desk
            assert desk._room is not None
            while desk._room.enter_at_once():
                pass
            desk.forked()
            assert sum(iter(desk._room.enter_at_once, False)) == FEW
            await locks.close()

    asyncio.run(fill())
