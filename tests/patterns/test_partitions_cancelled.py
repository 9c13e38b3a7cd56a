"""Async work that is cancelled, or ends the program, leaves no partition behind that nobody serves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NoReturn

import pytest

from leasehold import AsyncLeasehold, Leasehold, LeaseholdError
from leasehold.patterns.partitions import (
    AsyncPartitions,
    Entities,
    InThreads,
    Message,
    Moved,
    Partitions,
    SqlInbox,
    Writer,
)

COUNT = 4
ORDERS = Entities("orders", COUNT)
PATIENT = 30.0
TTL = 20.0


async def cancelled_by_somebody() -> NoReturn:
    """Wait for something that somebody else cancels."""
    shared = asyncio.create_task(asyncio.sleep(PATIENT))
    shared.cancel()
    await shared
    raise AssertionError


async def cancels_its_worker(_writer: Writer) -> None:
    worker = asyncio.current_task()
    assert worker is not None
    worker.cancel()
    await asyncio.sleep(PATIENT)


async def answers(_writer: Writer) -> str:
    return "done"


def within_reason(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(main(), 2 * PATIENT))


def test_a_cancellation_inside_of_the_work_is_an_error_of_the_work(tmp_path: Path) -> None:
    async def fails(_writer: Writer) -> None:
        await cancelled_by_somebody()

    async def times_out(_writer: Writer) -> None:
        async with asyncio.timeout(0):
            await asyncio.sleep(PATIENT)

    async def main() -> None:
        async with AsyncLeasehold(tmp_path / "l.db") as locks, AsyncPartitions(locks, ORDERS, ttl=TTL) as member:
            await member.wait_owned(COUNT, within=PATIENT)
            before = member.owned
            for _ in range(2):
                failing, late, following = (member.submit("a", work) for work in (fails, times_out, answers))
                with pytest.raises(LeaseholdError, match="CancelledError"):
                    await failing
                with pytest.raises(TimeoutError):
                    await late
                assert await following == "done"
            assert member.owned == before

    within_reason(main)


def test_a_worker_that_is_cancelled_hands_back_what_waits_and_its_partition_is_served_again(tmp_path: Path) -> None:
    cooled = list[int]()

    async def cool(writer: Writer) -> None:
        cooled.append(writer.partition)

    async def main() -> None:
        terms: Any = {"ttl": TTL, "every": 0.1, "cool": cool}
        async with AsyncLeasehold(tmp_path / "l.db") as locks, AsyncPartitions(locks, ORDERS, **terms) as member:
            await member.wait_owned(COUNT, within=PATIENT)
            number, before = ORDERS.partition_of("a"), member.owned
            cancelled, waiting = member.submit("a", cancels_its_worker), member.submit("a", answers)
            with pytest.raises(LeaseholdError, match="CancelledError"):
                await cancelled
            with pytest.raises(Moved, match="cancelled"):
                await waiting
            while member.owned.get(number, 0) <= before[number]:  # noqa: ASYNC110 - it is given back, and taken again
                await asyncio.sleep(0.02)
            assert cooled == [number]
            assert await member.submit("a", answers) == "done"
        assert sorted(cooled) == sorted([number, *range(COUNT)])

    within_reason(main)


def test_a_partition_whose_worker_is_cancelled_while_it_drains_is_cooled_all_the_same(tmp_path: Path) -> None:
    cooled, begun, may_go_on = list[int](), asyncio.Event(), asyncio.Event()

    async def cool(writer: Writer) -> None:
        cooled.append(writer.partition)

    async def waits(writer: Writer) -> None:
        begun.set()
        await may_go_on.wait()
        await cancels_its_worker(writer)

    async def main() -> None:
        async with AsyncLeasehold(tmp_path / "l.db") as locks:
            member = AsyncPartitions(locks, ORDERS, ttl=TTL, every=0.1, cool=cool)
            await member.join()
            await member.wait_owned(COUNT, within=PATIENT)
            cancelled = member.submit("a", waits)
            await begun.wait()
            leaving = asyncio.create_task(member.leave(within=PATIENT))
            while len(cooled) < COUNT - 1:  # noqa: ASYNC110 - the others are cooled meanwhile
                await asyncio.sleep(0.01)
            may_go_on.set()
            await leaving
            with pytest.raises(LeaseholdError, match="CancelledError"):
                await cancelled
            assert sorted(cooled) == list(range(COUNT))

    within_reason(main)


@pytest.mark.parametrize("end", [SystemExit, KeyboardInterrupt])
def test_work_that_ends_the_program_keeps_nobody_from_leaving(tmp_path: Path, end: type[BaseException]) -> None:
    left = list[bool]()

    async def ends(_writer: Writer) -> None:
        raise end("planted")

    async def main() -> None:
        async with AsyncLeasehold(tmp_path / "l.db") as locks:
            member = AsyncPartitions(locks, ORDERS, ttl=TTL)
            await member.join()
            try:
                await member.wait_owned(COUNT, within=PATIENT)
                ending = member.submit("a", ends)
                await asyncio.sleep(PATIENT)
            finally:
                assert isinstance(ending.exception(), LeaseholdError)
                await asyncio.wait_for(member.leave(), PATIENT)
                left.append(not member.owned)

    with pytest.raises(end, match="planted"):
        asyncio.run(main())
    assert left == [True]
    with Leasehold(tmp_path / "l.db") as locks, Partitions(locks, ORDERS, ttl=TTL) as next_one:
        next_one.wait_owned(COUNT, within=TTL / 2)  # nobody has to wait until leases run out


def test_a_handler_whose_waiting_was_cancelled_is_tried_again(tmp_path: Path) -> None:
    inbox = SqlInbox(ORDERS, tmp_path / "app.db")
    inbox.create()
    tries = list[int]()

    async def main() -> None:
        until = asyncio.Event()

        async def handle(_writer: Writer, message: Message) -> None:
            tries.append(message.tries)
            if len(tries) == 1:
                await cancelled_by_somebody()
            until.set()

        async with AsyncLeasehold(tmp_path / "l.db") as locks, AsyncPartitions(locks, ORDERS, ttl=TTL) as member:
            await member.wait_owned(COUNT, within=PATIENT)
            inbox.put("a", "pay 10")
            await member.serve(InThreads(inbox), handle, until=until)

    within_reason(main)
    assert len(tries) == 2
    inbox.close()
