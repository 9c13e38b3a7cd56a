"""A program that forks while it holds a lease, and reports what parent and child see of it.

    python -m leasehold.testing.forking '{"url": "…", "namespace": "…", "world": "blocking", "name": "…", "ttl": 1.0}'

Forking needs a process of its own: one that runs tests has threads of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from typing import Any

from leasehold import AsyncLeasehold, Leasehold, LeaseholdError, LeaseLost

Report = dict[str, Any]
PROGRAM = "leasehold.testing.forking"


def _outcome(act: Callable[[], object]) -> str:
    """What came of it: the name of the error, or nothing."""
    try:
        act()
    except LeaseholdError as error:
        return type(error).__name__
    return ""


def _say(report: Report) -> None:
    sys.stdout.write(json.dumps(report) + "\n")
    sys.stdout.flush()


def blocking(url: str, namespace: str, name: str, ttl: float) -> None:
    """Fork inside of a ``with`` block, which the child leaves as well."""
    locks = Leasehold(url, namespace=namespace)
    child = 0
    try:
        with locks.lock(name, ttl=ttl) as lease:
            child = os.fork()
            if child:
                os.waitpid(child, 0)
                lease.check()
            else:
                report: Report = {"lost": lease.lost, "check": _outcome(lease.check), "remaining": lease.remaining}
                report |= {"extend": _outcome(lease.extend), "release": _outcome(lease.release)}
                report["busy"] = locks.lock(name, ttl=ttl).try_acquire() is None
                own = locks.lock(f"{name} of the child", ttl=ttl / 2, wait=2).acquire()
                report["own"] = own.token > 0 and not own.wait_lost(ttl * 0.8)
                own.release()
                _say({"child": report})
    except LeaseLost:
        if child:
            raise
        locks.close()
        return  # the child has left its copy of the block, and ends as any program does
    _say({"parent_released": lease.released})
    locks.close()


async def in_asyncio(url: str, namespace: str, name: str, ttl: float) -> None:
    """Fork inside of an ``async with`` block, and let the parent go on."""
    locks = AsyncLeasehold(url, namespace=namespace)
    async with locks.lock(name, ttl=ttl) as lease:
        child = os.fork()
        if not child:
            report: Report = {"lost": lease.lost, "check": _outcome(lease.check), "remaining": lease.remaining}
            asyncio.events._set_running_loop(None)  # the parent's loop cannot go on here
            report |= asyncio.run(_in_child(locks, lease, name, ttl))
            _say({"child": report})
            os._exit(0)
        await asyncio.to_thread(os.waitpid, child, 0)
        lease.check()
    _say({"parent_released": lease.released})
    await locks.close()


async def _in_child(locks: AsyncLeasehold, lease: Any, name: str, ttl: float) -> Report:
    async def outcome(act: Callable[[], Any]) -> str:
        try:
            await act()
        except LeaseholdError as error:
            return type(error).__name__
        return ""

    report: Report = {"extend": await outcome(lease.extend), "release": await outcome(lease.release)}
    report["busy"] = await locks.lock(name, ttl=ttl).try_acquire() is None
    own = await locks.lock(f"{name} of the child", ttl=ttl / 2, wait=2).acquire()
    await asyncio.sleep(ttl * 0.8)
    report["own"] = own.token > 0 and not own.lost
    await own.release()
    await locks.close()
    return report


if __name__ == "__main__":
    settings = json.loads(sys.argv[1])
    if settings.pop("world") == "blocking":
        blocking(**settings)
    else:
        asyncio.run(in_asyncio(**settings))
