"""Locks: a name with its settings. A lock holds nothing; threads, tasks and forks may share it."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import TYPE_CHECKING, Generic, TypeVar

from leasehold.core.acquire import Attempt
from leasehold.core.worlds import run_blocking
from leasehold.desk import Desk
from leasehold.errors import NotAcquired, quoted
from leasehold.lease import AsyncLease, Lease
from leasehold.settings import Terms
from leasehold.several import AsyncLeases, Leases

if TYPE_CHECKING:
    from collections.abc import Callable

CLEAN_UP_WITHIN = 0.25
"""How long an interrupted blocking call waits for its clean-up; the keeper goes on with it afterwards."""

L = TypeVar("L")


class _Entered(Generic[L]):
    """The leases of blocks that are under way, for each thread or task that shares the lock."""

    __slots__ = ("_stacks",)

    def __init__(self) -> None:
        self._stacks: dict[int, list[L]] = {}

    def push(self, caller: int, lease: L) -> None:
        self._stacks.setdefault(caller, []).append(lease)

    def pop(self, caller: int) -> L:
        stack = self._stacks[caller]
        lease = stack.pop()
        if not stack:
            del self._stacks[caller]
        return lease


class _Named:
    """What the locks of both worlds have in common."""

    __slots__ = ("__weakref__", "_desk", "_terms")

    def __init__(self, desk: Desk, terms: Terms) -> None:
        self._desk, self._terms = desk, terms

    @property
    def name(self) -> str:
        """The name to be held."""
        return self._terms.name

    def __repr__(self) -> str:
        terms = self._terms
        return f"<{type(self).__name__} {quoted(terms.name)} {terms.mode} ttl={terms.ttl:g} wait={terms.wait:g}>"


class Lock(_Named):
    """A lock of the blocking world.

    Use it in a ``with`` block, which raises `NotAcquired` when the wait runs out: the body never runs unheld.
    """

    __slots__ = ("_entered",)

    def __init__(self, desk: Desk, terms: Terms) -> None:
        super().__init__(desk, terms)
        self._entered: _Entered[Lease] = _Entered()

    def acquire(self) -> Lease:
        """Take the lock within its wait, or raise `NotAcquired`."""
        attempt = self._desk.attempt(self._terms)
        try:
            return self._take(attempt, self._terms.wait)
        except BaseException as error:
            _clean_up(self._desk, [attempt], error)
            raise

    def try_acquire(self) -> Lease | None:
        """Take the lock if it is free now; None if it is not."""
        attempt = self._desk.attempt(self._terms)
        try:
            return self._take(attempt, 0.0)
        except NotAcquired:
            return None
        except BaseException as error:
            _clean_up(self._desk, [attempt], error)
            raise

    def _take(self, attempt: Attempt, wait: float) -> Lease:
        if not self._terms.reentrant:
            return run_blocking(self._desk.hold(self._terms, attempt, wait, Lease))
        caller = (threading.get_ident(), self._terms.name)
        lease: Lease | None = self._desk.reentrant.get(caller)
        if lease is not None:
            lease.check()
            lease._entries += 1
            return lease
        lease = run_blocking(self._desk.hold(self._terms, attempt, wait, Lease))
        self._desk.reentrant[caller] = lease
        lease._on_end = lambda: self._desk.reentrant.pop(caller, None)
        return lease

    def __enter__(self) -> Lease:
        """Hold the lock until the end of the block."""
        attempt = self._desk.attempt(self._terms)
        # A signal may arrive after the lease was granted and before the block has begun: until this method returns,
        # whatever was granted is given back.
        try:
            lease = self._take(attempt, self._terms.wait)
            self._entered.push(threading.get_ident(), lease)
            return lease
        except BaseException as error:
            _clean_up(self._desk, [attempt], error)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release. A loss is raised, unless the body raised: then it is added to that error as a note."""
        self._entered.pop(threading.get_ident()).__exit__(kind, error, trace)


class AsyncLock(_Named):
    """A lock of the asyncio world; see `Lock`."""

    __slots__ = ("_entered",)

    def __init__(self, desk: Desk, terms: Terms) -> None:
        super().__init__(desk, terms)
        self._entered: _Entered[AsyncLease] = _Entered()

    async def acquire(self) -> AsyncLease:
        """Take the lock within its wait, or raise `NotAcquired`."""
        attempt = self._desk.attempt(self._terms)
        try:
            return await self._take(attempt, self._terms.wait)
        except BaseException:
            self._desk.abandon([attempt])
            raise

    async def try_acquire(self) -> AsyncLease | None:
        """Take the lock if it is free now; None if it is not."""
        attempt = self._desk.attempt(self._terms)
        try:
            return await self._take(attempt, 0.0)
        except NotAcquired:
            return None
        except BaseException:
            self._desk.abandon([attempt])
            raise

    async def _take(self, attempt: Attempt, wait: float) -> AsyncLease:
        if not self._terms.reentrant:
            return await self._desk.hold(self._terms, attempt, wait, AsyncLease)
        caller = (_current_task(), self._terms.name)
        lease: AsyncLease | None = self._desk.reentrant.get(caller)
        if lease is not None:
            lease.check()
            lease._entries += 1
            return lease
        lease = await self._desk.hold(self._terms, attempt, wait, AsyncLease)
        self._desk.reentrant[caller] = lease
        lease._on_end = lambda: self._desk.reentrant.pop(caller, None)
        return lease

    async def __aenter__(self) -> AsyncLease:
        """Hold the lock until the end of the block."""
        lease = await self.acquire()
        if self._terms.on_lost == "cancel":
            lease.cancel_body_when_lost()
        self._entered.push(_current_task(), lease)
        return lease

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release. A loss is raised, unless the body raised: then it is added to that error as a note."""
        await self._entered.pop(_current_task()).__aexit__(kind, error, trace)


class _Names:
    """What the locks on several names have in common."""

    __slots__ = ("__weakref__", "_desk", "_terms", "_wait")

    def __init__(self, desk: Desk, terms: list[Terms]) -> None:
        self._desk, self._terms = desk, {one.name: one for one in terms}
        self._wait = terms[0].wait

    @property
    def names(self) -> tuple[str, ...]:
        """The names to be held together, in the order in which they are taken."""
        return tuple(sorted(self._terms))

    def _attempts(self) -> list[Attempt]:
        return [self._desk.attempt(self._terms[name]) for name in self.names]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {len(self._terms)} names wait={self._wait:g}>"


class Several(_Names):
    """Several names at once, all or nothing, without deadlock; in the blocking world."""

    __slots__ = ("_entered",)

    def __init__(self, desk: Desk, terms: list[Terms]) -> None:
        super().__init__(desk, terms)
        self._entered: _Entered[Leases] = _Entered()

    def acquire(self) -> Leases:
        """Take all names within the wait, or raise `NotAcquired` that names the one that was not free."""
        return self._guarded(self._wait, lambda _leases: None)

    def try_acquire(self) -> Leases | None:
        """Take all names if they are free now; None if one is not."""
        try:
            return self._guarded(0.0, lambda _leases: None)
        except NotAcquired:
            return None

    def _guarded(self, wait: float, enter: Callable[[Leases], object]) -> Leases:
        attempts = self._attempts()
        try:
            leases = Leases(run_blocking(self._desk.hold_several(self._terms, attempts, wait, Lease)))
            enter(leases)
            return leases
        except BaseException as error:
            _clean_up(self._desk, attempts, error)
            raise

    def __enter__(self) -> Leases:
        """Hold all names until the end of the block."""
        return self._guarded(self._wait, lambda leases: self._entered.push(threading.get_ident(), leases))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release all, in the opposite order."""
        self._entered.pop(threading.get_ident()).__exit__(kind, error, trace)


class AsyncSeveral(_Names):
    """Several names at once, all or nothing, without deadlock; in the asyncio world."""

    __slots__ = ("_entered",)

    def __init__(self, desk: Desk, terms: list[Terms]) -> None:
        super().__init__(desk, terms)
        self._entered: _Entered[AsyncLeases] = _Entered()

    async def acquire(self) -> AsyncLeases:
        """Take all names within the wait, or raise `NotAcquired` that names the one that was not free."""
        return await self._guarded(self._wait)

    async def try_acquire(self) -> AsyncLeases | None:
        """Take all names if they are free now; None if one is not."""
        try:
            return await self._guarded(0.0)
        except NotAcquired:
            return None

    async def _guarded(self, wait: float) -> AsyncLeases:
        attempts = self._attempts()
        try:
            return AsyncLeases(await self._desk.hold_several(self._terms, attempts, wait, AsyncLease))
        except BaseException:
            self._desk.abandon(attempts)
            raise

    async def __aenter__(self) -> AsyncLeases:
        """Hold all names until the end of the block."""
        leases = await self.acquire()
        for lease in leases:
            if self._terms[lease.name].on_lost == "cancel":
                lease.cancel_body_when_lost()
        self._entered.push(_current_task(), leases)
        return leases

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release all, in the opposite order."""
        await self._entered.pop(_current_task()).__aexit__(kind, error, trace)


def _clean_up(desk: Desk, attempts: list[Attempt], error: BaseException) -> None:
    """Hand to the keeper what is left. After Ctrl-C the process may end at once, so give the keeper a moment."""
    for done in desk.abandon(attempts):
        if not isinstance(error, Exception):
            done.wait(CLEAN_UP_WITHIN)


def _current_task() -> int:
    import asyncio

    return id(asyncio.current_task())
