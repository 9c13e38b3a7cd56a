"""Locks: a name with its settings. A lock holds nothing; threads, tasks and forks may share it."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Coroutine, Iterator
from types import CodeType, FrameType, TracebackType
from typing import Any, Generic, TypeVar

from leasehold.core.acquire import Attempt
from leasehold.core.worlds import run_blocking
from leasehold.desk import Desk
from leasehold.errors import Misuse, NotAcquired, quoted
from leasehold.lease import BY_HAND, AsyncLease, Lease, LeaseView
from leasehold.settings import Terms
from leasehold.several import AsyncLeases, Leases

CLEAN_UP_WITHIN = 0.25
"""How long an interrupted blocking call waits for its clean-up; the keeper goes on with it afterwards."""

L = TypeVar("L")
H = TypeVar("H", Lease, Leases)
A = TypeVar("A", AsyncLease, AsyncLeases)


Where = tuple[int, CodeType]
"""Which ``with`` statement it is: the frame that it runs in, which is the same when it is left, in whatever thread."""


class _Block(Generic[L]):
    """A ``with`` block under way, and the lease (or leases) that it holds."""

    __slots__ = ("__weakref__", "caller", "entry", "lease", "outer", "over", "where")

    def __init__(self, lease: L, entry: str | None, frame: FrameType) -> None:
        self.lease, self.entry, self.over = lease, entry, False
        self.where, self.caller = _where(frame), 0
        self.outer: _Block[L] | None = None


def _where(frame: FrameType) -> Where:
    return id(frame), frame.f_code


class _Entered(dict[int, _Block[L]], Generic[L]):
    """The innermost block under way, for each thread or task that shares the lock.

    An interruption may leave behind a block that is over; it is passed by.
    """

    __slots__ = ()

    def enter(self, caller: int, block: _Block[L]) -> None:
        block.caller, block.outer = caller, self.get(caller)
        self[caller] = block

    def left(self, caller: int, frame: FrameType) -> _Block[L]:
        """The block that is being left.

        A generator may be closed by another thread or task than the one that began it, which may be in a block of its
        own; so the statement counts, and the caller only where that does not tell, as with an ExitStack.
        """
        where, block = _where(frame), self.get(caller)
        if block is not None and not block.over and block.where == where:
            return block
        under_way = list(self.under_way())
        for one in under_way:
            if one.where == where:
                return one
        for one in under_way:
            if one.caller == caller:
                return one
        if len(under_way) == 1:
            return under_way[0]
        raise Misuse(
            "this block is left in another thread or task than it was entered in, and which of several it is cannot be "
            "told; use lease = lock.acquire() and lease.release() there, or a lock of its own for each block"
        )

    def under_way(self) -> Iterator[_Block[L]]:
        """All blocks, the innermost of each caller first."""
        for innermost in list(self.values()):
            block: _Block[L] | None = innermost
            while block is not None:
                if not block.over:
                    yield block
                block = block.outer

    def tidy(self, caller: int) -> None:
        block = self.get(caller)
        while block is not None and block.over:
            block = block.outer
        if block is None:
            self.pop(caller, None)
        else:
            self[caller] = block


class _BlockingBlocks(Generic[H]):
    """How ``with`` blocks of the blocking world end."""

    __slots__ = ()
    _entered: _Entered[H]

    def _drop(self, block: _Block[H]) -> None:
        """The block ends, whatever happened, and nobody may go on renewing for it."""
        block.over = True
        block.lease._drop(block.entry)
        self._entered.tidy(block.caller)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release. A loss is raised, unless the body raised: then it is added to that error as a note."""
        block = None
        try:
            block = self._entered.left(threading.get_ident(), sys._getframe(1))
            block.over = True
            block.lease._leave(block.entry, error)
            self._entered.tidy(block.caller)
        except Misuse:
            raise
        except BaseException:
            # It was lost, or cannot be given back; or a signal came, and who knows what it has kept from being done.
            self._drop(block or self._entered.left(threading.get_ident(), sys._getframe(1)))
            raise


class _AsyncBlocks(Generic[A]):
    """How ``async with`` blocks end."""

    __slots__ = ()
    _entered: _Entered[A]

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release. A loss is raised, unless the body raised: then it is added to that error as a note."""
        block = self._entered.left(id(_current_task()), sys._getframe(1))
        block.over = True
        self._entered.tidy(block.caller)
        await block.lease._leave(block.entry, error)


class _Named:
    """What the locks of both worlds have in common."""

    __slots__ = ("__weakref__", "_desk", "_terms")

    def __init__(self, desk: Desk, terms: Terms) -> None:
        self._desk, self._terms = desk, terms

    @property
    def name(self) -> str:
        """The name to be held."""
        return self._terms.name

    def _enter_again(self, caller: object, entry: str) -> Any:
        """The lease that this caller holds already, if the lock is reentrant; it has one more entry then."""
        leases = self._desk.reentrant.get(caller)
        lease = leases.get(self._terms.name) if leases is not None else None
        if lease is None or not lease._entries:
            return None
        lease.check()
        lease._entries.add(entry)
        return lease

    def _enter_first(self, caller: object, entry: str, lease: LeaseView) -> None:
        lease._entries = {entry}
        self._desk.reentrant.setdefault(caller, weakref.WeakValueDictionary())[self._terms.name] = lease

    def _withdraw(self, caller: object, attempt: Attempt) -> None:
        """After an interruption: whatever lease this attempt has entered, it does not hold it."""
        for lease in list(self._desk.reentrant.get(caller, {}).values()):
            lease._entries.discard(attempt.want.holder)
            lease._entries.discard(BY_HAND + attempt.want.holder)

    def __repr__(self) -> str:
        terms = self._terms
        return f"<{type(self).__name__} {quoted(terms.name)} {terms.mode} ttl={terms.ttl:g} wait={terms.wait:g}>"


class Lock(_BlockingBlocks[Lease], _Named):
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
            return self._take(attempt, self._terms.wait, BY_HAND)
        except BaseException as error:
            self._clean_up(attempt, error)
            raise

    def try_acquire(self) -> Lease | None:
        """Take the lock if it is free now; None if it is not."""
        attempt = self._desk.attempt(self._terms)
        try:
            return self._take(attempt, 0.0, BY_HAND)
        except NotAcquired:
            return None
        except BaseException as error:
            self._clean_up(attempt, error)
            raise

    def _take(self, attempt: Attempt, wait: float, how: str) -> Lease:
        if not self._terms.reentrant:
            return run_blocking(self._desk.hold(self._terms, attempt, wait, Lease))
        caller, entry = threading.current_thread(), how + attempt.want.holder
        lease: Lease | None = self._enter_again(caller, entry)
        if lease is None:
            lease = run_blocking(self._desk.hold(self._terms, attempt, wait, Lease))
            self._enter_first(caller, entry, lease)
        return lease

    def _clean_up(self, attempt: Attempt, error: BaseException) -> None:
        if self._terms.reentrant:
            self._withdraw(threading.current_thread(), attempt)
        _clean_up(self._desk, [attempt], error)

    def __enter__(self) -> Lease:
        """Hold the lock until the end of the block."""
        attempt = self._desk.attempt(self._terms)
        block = None
        # A signal may arrive after the lease was granted and before the block has begun: until this method returns,
        # whatever was granted is given back.
        try:
            terms = self._terms
            if terms.reentrant:
                lease = self._take(attempt, terms.wait, "")
            else:
                lease = run_blocking(self._desk.hold(terms, attempt, terms.wait, Lease))
            block = _Block(lease, attempt.want.holder, sys._getframe(1))
            if not terms.reentrant:
                # The block is what holds it, and lives no longer than its lock: who still has the lease only looks.
                lease._held.owner = weakref.ref(block)
            self._entered.enter(threading.get_ident(), block)
            return lease
        except BaseException as error:
            if block is not None:
                block.over = True
            self._clean_up(attempt, error)
            raise


class AsyncLock(_AsyncBlocks[AsyncLease], _Named):
    """A lock of the asyncio world; see `Lock`."""

    __slots__ = ("_entered",)

    def __init__(self, desk: Desk, terms: Terms) -> None:
        super().__init__(desk, terms)
        self._entered: _Entered[AsyncLease] = _Entered()

    async def acquire(self) -> AsyncLease:
        """Take the lock within its wait, or raise `NotAcquired`."""
        attempt = self._desk.attempt(self._terms)
        try:
            return await self._taking(attempt, self._terms.wait, BY_HAND)
        except BaseException:
            self._desk.abandon([attempt])
            raise

    async def try_acquire(self) -> AsyncLease | None:
        """Take the lock if it is free now; None if it is not."""
        attempt = self._desk.attempt(self._terms)
        try:
            return await self._taking(attempt, 0.0, BY_HAND)
        except NotAcquired:
            self._desk.abandon([attempt])
            return None
        except BaseException:
            self._desk.abandon([attempt])
            raise

    def _taking(self, attempt: Attempt, wait: float, how: str) -> Coroutine[Any, Any, AsyncLease]:
        """To be awaited. It is no coroutine of its own: each of thousands of waiting tasks would keep one."""
        if self._terms.reentrant:
            return self._take_again(attempt, wait, how)
        return self._desk.hold(self._terms, attempt, wait, AsyncLease)

    async def _take_again(self, attempt: Attempt, wait: float, how: str) -> AsyncLease:
        caller, entry = _current_task(), how + attempt.want.holder
        lease: AsyncLease | None = self._enter_again(caller, entry)
        if lease is None:
            lease = await self._desk.hold(self._terms, attempt, wait, AsyncLease)
            self._enter_first(caller, entry, lease)
        return lease

    async def __aenter__(self) -> AsyncLease:
        """Hold the lock until the end of the block."""
        attempt = self._desk.attempt(self._terms)
        try:
            lease = await self._taking(attempt, self._terms.wait, "")
        except BaseException:
            self._desk.abandon([attempt])
            raise
        if self._terms.on_lost == "cancel":
            lease.cancel_body_when_lost()
        self._entered.enter(id(_current_task()), _Block(lease, attempt.want.holder, sys._getframe(1)))
        return lease


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


class Several(_BlockingBlocks[Leases], _Names):
    """Several names at once, all or nothing, without deadlock; in the blocking world."""

    __slots__ = ("_entered",)

    def __init__(self, desk: Desk, terms: list[Terms]) -> None:
        super().__init__(desk, terms)
        self._entered: _Entered[Leases] = _Entered()

    def acquire(self) -> Leases:
        """Take all names within the wait, or raise `NotAcquired` that names the one that was not free."""
        return self._guarded(self._wait)

    def try_acquire(self) -> Leases | None:
        """Take all names if they are free now; None if one is not."""
        try:
            return self._guarded(0.0)
        except NotAcquired:
            return None

    def _guarded(self, wait: float, frame: FrameType | None = None) -> Leases:
        attempts = self._attempts()
        block = None
        try:
            leases = Leases(run_blocking(self._desk.hold_several(self._terms, attempts, wait, Lease)))
            if frame is not None:
                block = _Block(leases, None, frame)
                for lease in leases:
                    lease._held.owner = weakref.ref(block)
                self._entered.enter(threading.get_ident(), block)
            return leases
        except BaseException as error:
            if block is not None:
                block.over = True
            _clean_up(self._desk, attempts, error)
            raise

    def __enter__(self) -> Leases:
        """Hold all names until the end of the block."""
        return self._guarded(self._wait, sys._getframe(1))


class AsyncSeveral(_AsyncBlocks[AsyncLeases], _Names):
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
        self._entered.enter(id(_current_task()), _Block(leases, None, sys._getframe(1)))
        return leases


def _clean_up(desk: Desk, attempts: list[Attempt], error: BaseException) -> None:
    """Hand to the keeper what is left. After Ctrl-C the process may end at once, so give the keeper a moment."""
    for done in desk.abandon(attempts):
        if not isinstance(error, Exception):
            done.wait(CLEAN_UP_WITHIN)


def _current_task() -> object:
    import asyncio

    return asyncio.current_task()
