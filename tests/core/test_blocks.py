"""Blocks that are left elsewhere than they were entered, that a signal interrupts, and that outlive their client."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from leasehold import AsyncLeasehold, Lease, Leasehold, LeaseLost, Misuse


@pytest.fixture
def locks(tmp_path: Path) -> Iterator[Leasehold]:
    with Leasehold(tmp_path / "leases.db") as client:
        yield client


def one_by_one(lock: Any) -> Iterator[Any]:
    with lock as lease:
        yield lease


@pytest.fixture
def two_threads() -> Iterator[tuple[ThreadPoolExecutor, ThreadPoolExecutor]]:
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        yield one, other


def test_a_generator_that_another_thread_closes_gives_back_its_own_lease(
    locks: Leasehold, two_threads: tuple[ThreadPoolExecutor, ThreadPoolExecutor]
) -> None:
    lock, (one, other) = locks.permits("p", of=2, ttl=30), two_threads
    first, second = one_by_one(lock), one_by_one(lock)
    mine, theirs = one.submit(next, first).result(), other.submit(next, second).result()
    other.submit(first.close).result()  # type: ignore[attr-defined]
    assert (mine.released, theirs.released) == (True, False)
    one.submit(second.close).result()  # type: ignore[attr-defined]
    assert theirs.released
    assert not lock._entered


def test_several_names_are_given_back_by_whichever_thread_leaves_the_block(
    locks: Leasehold, two_threads: tuple[ThreadPoolExecutor, ThreadPoolExecutor]
) -> None:
    lock, (one, other) = locks.several(["a", "b"]), two_threads
    under_way = one_by_one(lock)
    leases = one.submit(next, under_way).result()
    other.submit(under_way.close).result()  # type: ignore[attr-defined]
    assert all(lease.released for lease in leases)


def test_a_stack_that_another_thread_closes_gives_back_the_only_lease(
    locks: Leasehold, two_threads: tuple[ThreadPoolExecutor, ThreadPoolExecutor]
) -> None:
    stack = contextlib.ExitStack()
    lease = two_threads[0].submit(stack.enter_context, locks.lock("n")).result()
    two_threads[1].submit(stack.close).result()
    assert lease.released


def test_which_of_several_blocks_it_is_that_a_strange_thread_leaves_is_not_guessed(locks: Leasehold) -> None:
    lock = locks.permits("p", of=2)
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other, ThreadPoolExecutor(1) as stranger:
        stacks = contextlib.ExitStack(), contextlib.ExitStack()
        leases = [
            thread.submit(stack.enter_context, lock).result()
            for thread, stack in zip((one, other), stacks, strict=True)
        ]
        with pytest.raises(Misuse, match=r"left in another thread or task .* lock\.acquire\(\)"):
            stranger.submit(stacks[0].close).result()
        assert not any(lease.released for lease in leases)
        other.submit(stacks[1].close).result()
        assert [lease.released for lease in leases] == [False, True]
    leases[0].release()


def test_blocks_of_one_thread_end_in_their_order(locks: Leasehold) -> None:
    lock = locks.permits("p", of=3)
    with contextlib.ExitStack() as stack, lock as outer:
        first = stack.enter_context(lock)
        with lock as inner:
            assert not inner.released
        assert (inner.released, first.released, outer.released) == (True, False, False)
        stack.close()
        assert (first.released, outer.released) == (True, False)
    assert outer.released


def test_an_async_generator_that_another_task_closes_gives_back_its_own_lease(tmp_path: Path) -> None:
    async def rows(lock: Any) -> AsyncIterator[Any]:
        async with lock as lease:
            yield lease
            yield lease

    async def main() -> None:
        async with AsyncLeasehold(tmp_path / "leases.db") as locks:
            lock = locks.permits("p", of=2)
            under_way = rows(lock)
            lease = await anext(under_way)

            async def elsewhere() -> None:
                async with lock as own:
                    await under_way.aclose()  # type: ignore[attr-defined]
                    assert (lease.released, own.released) == (True, False)

            await asyncio.create_task(elsewhere())
            assert not lock._entered

    asyncio.run(main())


class TimeIsUpError(Exception):
    """As a signal handler of a worker raises it."""


@pytest.mark.parametrize("interruption", [TimeIsUpError, KeyboardInterrupt])
def test_a_signal_while_a_block_is_left_keeps_nobody_from_the_name(
    locks: Leasehold, monkeypatch: pytest.MonkeyPatch, interruption: type[BaseException]
) -> None:
    """Whatever it raises: a lock that is used again would else renew the lease for ever."""
    lock = locks.lock("n", ttl=30)

    def interrupted(*_: object) -> None:
        raise interruption

    with pytest.raises(interruption), lock:
        monkeypatch.setattr(Lease, "_leave", interrupted)
    monkeypatch.undo()
    locks.lock("n", wait=5).acquire().release()


def test_a_lock_can_be_taken_by_a_signal_handler_while_the_keeper_is_started(
    locks: Leasehold, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, nested = threading.Thread.start, list[bool]()

    def interrupted(thread: threading.Thread) -> None:
        if not nested:
            nested.append(True)
            with locks.lock("in the handler", wait=1):
                pass
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with locks.lock("n", ttl=1) as lease:
        time.sleep(1.5)
        lease.check()
    assert nested


def test_who_holds_when_its_client_is_closed_is_told_when_the_lease_is_over(locks: Leasehold) -> None:
    told = threading.Event()
    lease = locks.lock("n", ttl=0.5, on_lost=lambda _loss: told.set()).acquire()
    locks.close()
    assert told.wait(5)
    assert lease.lost


def test_a_body_is_cancelled_when_its_lease_is_over_also_after_its_client_was_closed(tmp_path: Path) -> None:
    async def main() -> None:
        locks = AsyncLeasehold(tmp_path / "leases.db")

        async def body() -> None:
            async with locks.lock("n", ttl=0.5, on_lost="cancel"):
                await asyncio.sleep(30)

        task = asyncio.create_task(body())
        await asyncio.sleep(0.2)
        await locks.close()
        with pytest.raises(LeaseLost):
            await asyncio.wait_for(task, 10)

    asyncio.run(main())


def test_closing_waits_neither_for_leases_nor_leaves_a_thread_that_has_none(locks: Leasehold) -> None:
    keeper = locks._desk.keeper
    lease = locks.lock("n", ttl=60).acquire()
    thread = keeper._thread
    assert thread is not None
    locks.close()
    assert thread.is_alive(), "it has to tell of the loss"
    lease.release()
    locks.lock("other").acquire().release()
    thread = keeper._thread
    assert thread is not None
    locks.close()
    assert not thread.is_alive()
