"""The blocking and the asyncio world: clock, sleep, chance and nonce as the system gives them."""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable
from typing import Any


def _best_clock() -> Callable[[], float]:
    """A clock that nobody can set and that goes on while the machine sleeps.

    ``time.monotonic()`` stops on Linux during suspend, so a woken laptop would believe in a lease that is long over.
    """
    if hasattr(time, "CLOCK_BOOTTIME"):
        return functools.partial(time.clock_gettime, time.CLOCK_BOOTTIME)
    if sys.platform == "darwin":
        return functools.partial(time.clock_gettime, time.CLOCK_MONOTONIC)  # counts sleep there, unlike monotonic()
    if sys.platform == "win32":
        import ctypes

        ticks: Callable[[], int] = ctypes.windll.kernel32.GetTickCount64
        ticks.restype = ctypes.c_ulonglong  # type: ignore[attr-defined]
        return lambda: ticks() / 1000
    return time.monotonic


boot_clock: Callable[[], float] = _best_clock()
"""Seconds since boot, suspended time included where the system can tell."""


class _SystemWorld:
    now = staticmethod(boot_clock)
    process = staticmethod(os.getpid)

    @staticmethod
    def chance() -> float:
        """For jitter only."""
        import random

        return random.random()

    @staticmethod
    def nonce() -> str:
        """128 bits from the operating system; forked children never share them."""
        return os.urandom(16).hex()


class BlockingWorld(_SystemWorld):
    """Sleeping blocks the thread."""

    async def sleep(self, seconds: float) -> None:
        """Block the calling thread."""
        time.sleep(seconds)  # noqa: ASYNC251 -- in the blocking world nothing may suspend


class AsyncWorld(_SystemWorld):
    """Sleeping suspends the task."""

    def __init__(self) -> None:
        """Import asyncio only now: a blocking program never pays for it."""
        import asyncio

        self._sleep: Callable[[float], Any] = asyncio.sleep

    async def sleep(self, seconds: float) -> None:
        """Suspend the calling task."""
        await self._sleep(seconds)
