"""Leasehold as the subject of a run: its blocking client, as any program would use it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import ClassVar, Final

from leasehold import Lease, Leasehold, LeaseLost, NotAcquired
from leasehold.chaos.subject import Held, Mode

_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Of a lease's deadline."""


def _ahead() -> float:
    """By how much that clock is ahead of `time.monotonic()`: from the quickest of a few looks at both.

    On a busy machine a second may pass between two looks, and a deadline would seem to be that much too early.
    """
    looks = []
    for _ in range(5):
        before, other, after = time.monotonic(), time.clock_gettime(_CLOCK), time.monotonic()
        looks.append((after - before, other - before))
    return min(looks)[1]


class HeldLease:
    """One lease."""

    def __init__(self, lease: Lease) -> None:
        """It was just granted."""
        self._lease = lease

    @property
    def token(self) -> int:
        """Its fencing token."""
        return self._lease.token

    @property
    def until(self) -> float:
        """When the belief in it ends unless it is renewed, or ended, on `time.monotonic()`."""
        return self._lease.valid_until - _ahead()

    def believes(self) -> bool:
        """Whether it may still be held."""
        return not self._lease.lost

    def release(self) -> bool:
        """Give it back; False when it was not held any more."""
        try:
            self._lease.release()
        except LeaseLost:
            return False
        return True


class LeaseholdSubject:
    """A client in a worker process."""

    name: ClassVar[str] = "leasehold"
    modes: ClassVar[frozenset[Mode]] = frozenset({"exclusive", "shared", "permit"})

    def __init__(self, url: str, namespace: str) -> None:
        """Nothing is sent yet."""
        self.locks = Leasehold(url, namespace=namespace)

    def take(
        self,
        name: str,
        *,
        ttl: float,
        wait: float,
        told: Callable[[], None],
        mode: Mode = "exclusive",
        permits: int = 1,
    ) -> Held | None:
        """Take the lock, or None when it was busy all the while."""

        def on_lost(_loss: LeaseLost) -> None:
            told()

        if mode == "shared":
            lock = self.locks.shared(name, ttl=ttl, wait=wait, on_lost=on_lost)
        elif mode == "permit":
            lock = self.locks.permits(name, permits, ttl=ttl, wait=wait, on_lost=on_lost)
        else:
            lock = self.locks.lock(name, ttl=ttl, wait=wait, on_lost=on_lost)
        try:
            return HeldLease(lock.acquire())
        except NotAcquired:
            return None

    def take_several(
        self, names: Sequence[str], *, ttl: float, wait: float, told: Callable[[str], None]
    ) -> list[Held] | None:
        """Take all of them, or None when one was busy all the while."""
        several = self.locks.several(names, ttl=ttl, wait=wait, on_lost=lambda loss: told(str(loss.name)))
        try:
            leases = several.acquire()
        except NotAcquired:
            return None
        return [HeldLease(leases[name]) for name in names]

    def close(self) -> None:
        """Close connections."""
        self.locks.close()
