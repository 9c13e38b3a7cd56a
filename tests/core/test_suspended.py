"""A machine that slept: the holder's clock counts that time, so it wakes up knowing that its lease is over."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

SLEPT = """
import asyncio, sys, time

true_clock, slept = time.clock_gettime, 0.0

def clock_gettime(which):
    return true_clock(which) + (slept if which == time.CLOCK_BOOTTIME else 0.0)

time.clock_gettime = clock_gettime  # before anything of Leasehold keeps it
from leasehold import AsyncLeasehold, Leasehold, LeaseLost

def look(lease, told):
    assert lease.lost and lease.remaining == 0 and not told, "by the clock alone, before anybody is told"
    try:
        lease.check()
    except LeaseLost:
        return
    raise AssertionError("it believes")

def blocking():
    global slept
    told = []
    with Leasehold(sys.argv[1]) as locks:
        lease = locks.lock("blocking", ttl=600, on_lost=told.append).acquire()
        time.sleep(1.2)  # the keeper has looked at it, and sleeps
        slept += 3600.0
        look(lease, told)
        assert lease.wait_lost(0.1)
        give_up_at = time.monotonic() + 3.0
        while not told:
            assert time.monotonic() < give_up_at, "nobody calls back"
            time.sleep(0.01)

async def in_asyncio():
    global slept
    told = []
    async with AsyncLeasehold(sys.argv[1]) as locks:
        lease = await locks.lock("asyncio", ttl=600, on_lost=told.append).acquire()
        slept += 3600.0
        look(lease, told)
        async with asyncio.timeout(3.0):
            assert await lease.wait_lost()
            while not told:
                await asyncio.sleep(0.01)

blocking()
asyncio.run(in_asyncio())
print("known")
"""


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="this system has no clock that counts suspended time")
def test_who_wakes_up_after_its_ttl_knows_it_at_once_and_is_told(tmp_path: Path) -> None:
    """All clocks but the one that counts suspended time stood still meanwhile, timers as well."""
    command = [sys.executable, "-c", SLEPT, f"sqlite:///{tmp_path / 'leases.db'}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == "known\n", done.stderr
