"""Processes, threads and tasks that share a client: a fork owns nothing of its parent's, and nobody another's lease."""

from __future__ import annotations

import asyncio
import functools
import gc
import json
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from leasehold import AsyncLeasehold, Capability, Leasehold
from leasehold.testing.facade import as_async
from leasehold.testing.forking import PROGRAM
from leasehold.testing.stage import Stage, scenario
from leasehold.worlds import boot_clock


@scenario(Capability.INSPECT)
async def test_a_forked_child_owns_nothing_of_its_parents_and_can_start_anew(stage: Stage) -> None:
    name, ttl = stage.name(), max(stage.ttl * 2, 2.0)  # long enough for a machine that stands still for a moment
    settings = {"url": stage.engine.url, "namespace": stage.namespace, "world": stage.world, "name": name, "ttl": ttl}
    process = await asyncio.create_subprocess_exec(
        # Newer Pythons warn of forks in programs with threads; that this works is what is tested.
        sys.executable, "-W", "ignore::DeprecationWarning", "-m", PROGRAM, json.dumps(settings),
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    watching = asyncio.create_task(_watch(stage, name, process))
    said, _ = await process.communicate()
    report: dict[str, Any] = {}
    for line in said.splitlines():
        report |= json.loads(line)
    assert process.returncode == 0, report
    child = report["child"]
    assert child["lost"]
    assert child["remaining"] == 0
    assert [child["check"], child["extend"], child["release"]] == ["LeaseLost"] * 3
    assert child["busy"], "the child must not take what its parent holds"
    assert child["own"], "the child's own lease was to be renewed by a keeper of its own"
    assert report["parent_released"]
    assert await watching > 3, "the name was to be watched while parent and child were at work"
    await stage.free_within(name, 0)
    await stage.free_within(f"{name} of the child", 0)


async def _watch(stage: Stage, name: str, process: asyncio.subprocess.Process) -> int:
    """See that the parent's lease holds from when it was taken until its process ends; how often it was seen."""
    seen, tokens, locks = 0, set(), stage.client()
    while process.returncode is None:
        status = await locks.status(name)
        if status is not None and status.holders:
            seen += 1
            tokens.add(status.holders[0].token)
        await asyncio.sleep(0.05)
    assert len(tokens) == 1, "the lease was taken anew"
    return seen


def not_closed(test: Callable[[Stage], None]) -> Any:
    """Let Python say that nobody closed a client, which is what the test is about; and let it say so at once."""

    @functools.wraps(test)
    def and_collect(stage: Stage) -> None:
        test(stage)
        gc.collect()

    return pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")(and_collect)


@not_closed
@scenario()
async def test_a_lease_lives_on_when_its_lock_and_client_are_gone(stage: Stage) -> None:
    """Only the lease itself is in somebody's hands; it is renewed, and can be released."""
    name = stage.name()

    async def take() -> Any:
        kind = Leasehold if stage.world == "blocking" else AsyncLeasehold
        return await as_async(stage.open(kind)).lock(name, ttl=stage.ttl).acquire()

    lease = await take()
    gc.collect()
    await asyncio.sleep(stage.ttl * 1.5)
    lease.check()
    assert await stage.client().lock(name, ttl=stage.ttl).try_acquire() is None
    await lease.release()
    await stage.free_within(name, 0)


@not_closed
@scenario(alone=True)
async def test_a_client_that_nobody_has_any_more_takes_its_keeper_along(stage: Stage) -> None:
    before = {thread for thread in threading.enumerate() if "keeper" in thread.name}

    async def use() -> None:
        kind = Leasehold if stage.world == "blocking" else AsyncLeasehold
        async with as_async(stage.open(kind)).lock(stage.name(), ttl=stage.ttl):
            pass

    for _ in range(3):
        await asyncio.create_task(use())
    give_up_at = boot_clock() + 2 + stage.slack
    while {thread for thread in threading.enumerate() if "keeper" in thread.name} - before:
        assert boot_clock() < give_up_at, "keepers outlive their clients"
        gc.collect()
        await asyncio.sleep(0.02)


@scenario(Capability.PERMITS)
async def test_tasks_or_threads_that_share_a_lock_do_not_share_its_lease(stage: Stage) -> None:
    """Each leaves its own block, in whatever order the blocks end, and nobody frees another's lease."""
    lock, inside = stage.client().permits(stage.name(), 4, ttl=10, wait=10), []

    async def hold(seconds: float) -> None:
        async with lock as lease:
            inside.append(lease.token)
            await asyncio.sleep(seconds)
            lease.check()
            inside.remove(lease.token)

    await asyncio.gather(*(hold(seconds) for seconds in (0.2, 0.05, 0.15, 0.1, 0.02, 0.12)))
    assert not inside
    leases = [await lock.acquire() for _ in range(4)]
    for lease in leases:
        await lease.release()
