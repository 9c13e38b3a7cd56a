"""Who gives way to whom in an election: priorities, and a leader that resigns in favour of somebody.

All of it is made of leases, so it works on every engine. A candidate with a priority holds the lease of its rank while
it stands: who leads, or is about to, looks at the ranks above its own and gives way. A leader that resigns in favour of
somebody holds two more for a moment: "there is a favourite", and "it is this one"; and the favourite takes another when
it leads: "it has come". Giving way is a courtesy and never a matter of safety: at most one leads, whatever is seen or
missed here.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, Protocol

from leasehold.errors import EngineError, LeaseholdError, Misuse, NotAcquired, quoted
from leasehold.keeping import log
from leasehold.names import check_name

if TYPE_CHECKING:
    from leasehold.client import AsyncLeasehold, Leasehold
    from leasehold.core.engine import NameStatus
    from leasehold.lease import AsyncLease, Lease

HIGHEST: Final = 3
PATIENT_FOR: Final = 10
"""After it gave way in vain, a candidate looks at nobody's rank for so many TTLs."""


class Leases(Protocol):
    """Leases in one world. In the blocking world its coroutines never suspend."""

    async def take(self, name: str, ttl: float, *, renew: bool) -> Any:
        """A lease, if it can be had at once; else `NotAcquired`."""
        ...

    async def give_back(self, lease: Any) -> None:
        """Release it."""
        ...

    async def token_of(self, name: str) -> int | None:
        """The token of who holds a name; None when nobody does."""
        ...

    async def pause(self, seconds: float) -> None:
        """Sleep in this world."""
        ...


def check_priority(priority: object) -> int | None:
    """The priority, or None for a candidate that takes no part in it."""
    if priority is not None and (type(priority) is not int or not 0 <= priority <= HIGHEST):
        raise Misuse(f"priority is an int from 0 to {HIGHEST} (the highest), or None, not {quoted(priority)}")
    return priority


class Ranks:
    """One candidate's view of those to whom it gives way."""

    def __init__(self, leases: Leases, name: str, ttl: float, *, priority: int | None, candidate: str | None) -> None:
        self._leases, self._name, self._ttl = leases, name, ttl
        self._priority = check_priority(priority)
        self._candidate = None if candidate is None else check_name(candidate, what="candidate")
        self._standing: Any = None
        self._come: Any = None
        self._came_before: int | None = None
        self._gave_way_at = self._ignores_until = self._stands_from = 0.0
        check_name(self._rank(HIGHEST))

    def _rank(self, priority: int) -> str:
        return f"{self._name}/rank/{priority}"

    def _favour(self, candidate: str | None = None) -> str:
        return f"{self._name}/favour" if candidate is None else f"{self._name}/favour/{candidate}"

    async def stand(self) -> None:
        """Let those of lower priority see that this candidate is there."""
        if not self._priority or time.monotonic() < self._stands_from:
            return
        if self._standing is not None and not self._standing.lost:
            return
        try:
            self._standing = await self._leases.take(self._rank(self._priority), self._ttl, renew=True)
        except NotAcquired:
            self._standing = None  # another one of this rank is seen, and that is enough

    async def leave(self) -> None:
        """Stand no longer."""
        standing, self._standing = self._standing, None
        if standing is not None:
            await self._give_back(standing)

    async def resign(self, favourite: str | None) -> list[Any]:
        """Let others lead for a while, whatever their rank, and this one first; what is held for it."""
        await self.leave()
        self._stands_from = time.monotonic() + self._ttl
        come, self._come = self._come, None
        if come is not None:
            await self._give_back(come)
        return [] if favourite is None else await self._favour_this(favourite)

    async def gives_way(self) -> bool:
        """Whether a candidate that could lead now is to let another one do so."""
        try:
            return await self._gives_way()
        except EngineError as error:
            log().debug("%s: nobody to give way to can be seen: %s", ascii(self._name), error)
            return False

    async def _gives_way(self) -> bool:
        now = time.monotonic()
        favoured = await self._favoured()
        if favoured == "this":
            await self._say_that_it_has_come()
            return False
        if now < self._ignores_until or not (favoured or await self.is_outranked()):
            return False
        since = now - self._gave_way_at
        if self._gave_way_at and self._ttl < since < 3 * self._ttl:
            # Whoever it gave way to has not come: better this one than none.
            self._ignores_until = now + PATIENT_FOR * self._ttl
            return False
        if not self._gave_way_at or since >= 3 * self._ttl:
            self._gave_way_at = now
        return True

    @property
    def looks_up(self) -> bool:
        """Whether there can be anybody of higher priority."""
        return self._priority is not None and self._priority < HIGHEST

    async def is_outranked(self) -> bool:
        """Whether a candidate of higher priority stands."""
        if self._priority is None or time.monotonic() < self._ignores_until:
            return False
        for priority in range(HIGHEST, self._priority, -1):
            if await self._leases.token_of(self._rank(priority)) is not None:
                return True
        return False

    async def _favoured(self) -> str:
        """Whether there is a favourite: ``"this"`` candidate, ``"another"``, or nobody: empty."""
        if await self._leases.token_of(self._favour()) is None:
            return ""
        mine = None if self._candidate is None else await self._leases.token_of(self._favour(self._candidate))
        return "another" if mine is None else "this"

    async def _say_that_it_has_come(self) -> None:
        try:
            self._come = await self._leases.take(self._favour("/come"), self._ttl, renew=False)
        except NotAcquired:
            log().debug("%s: another favourite has come just now", ascii(self._name))

    async def _favour_this(self, candidate: str) -> list[Any]:
        held: list[Any] = []
        try:
            self._came_before = await self._leases.token_of(self._favour("/come"))
            for name in (self._favour(candidate), self._favour()):  # the favourite first: it must never give way
                held.append(await self._leases.take(name, self._ttl, renew=False))  # noqa: PERF401 - what was taken counts
        except LeaseholdError as error:
            log().warning("%s could not be left to %s: %s", ascii(self._name), ascii(candidate), error)
        return held

    async def see_off(self, held: list[Any]) -> None:
        """Wait until the favourite leads, for a TTL at most; from then on it is one as any other.

        That somebody holds the lease says nothing: it may be about to give way.
        """
        if not held:
            return
        give_up_at = time.monotonic() + self._ttl
        try:
            while time.monotonic() < give_up_at:
                if await self._leases.token_of(self._favour("/come")) not in (None, self._came_before):
                    break
                await self._leases.pause(min(0.05, self._ttl / 10))
        except EngineError as error:
            log().debug("%s: nobody can see whether the favourite leads: %s", ascii(self._name), error)
        finally:
            for lease in held:
                await self._give_back(lease)

    async def _give_back(self, lease: Any) -> None:
        try:
            await self._leases.give_back(lease)
        except (LeaseholdError, EngineError) as error:
            log().debug("%s", error)  # it has run out by itself, or will


class BlockingLeases:
    """Leases of blocking code."""

    def __init__(self, locks: Leasehold) -> None:
        self._locks = locks

    async def take(self, name: str, ttl: float, *, renew: bool) -> Lease:
        """See `Leases`."""
        return self._locks.lock(name, ttl=ttl, wait=0, renew=renew).acquire()

    async def give_back(self, lease: Lease) -> None:
        """See `Leases`."""
        lease.release()

    async def token_of(self, name: str) -> int | None:
        """See `Leases`."""
        return _token(self._locks.status(name))

    async def pause(self, seconds: float) -> None:
        """See `Leases`."""
        time.sleep(seconds)  # noqa: ASYNC251 - these block


class AsyncLeases:
    """Leases of async code."""

    def __init__(self, locks: AsyncLeasehold) -> None:
        self._locks = locks

    async def take(self, name: str, ttl: float, *, renew: bool) -> AsyncLease:
        """See `Leases`."""
        return await self._locks.lock(name, ttl=ttl, wait=0, renew=renew).acquire()

    async def give_back(self, lease: AsyncLease) -> None:
        """See `Leases`."""
        await lease.release()

    async def token_of(self, name: str) -> int | None:
        """See `Leases`."""
        return _token(await self._locks.status(name))

    async def pause(self, seconds: float) -> None:
        """See `Leases`."""
        import asyncio

        await asyncio.sleep(seconds)


def _token(status: NameStatus | None) -> int | None:
    return status.holders[0].token if status is not None and status.holders else None
