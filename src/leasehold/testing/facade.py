"""One way to write a scenario for both worlds.

A scenario is async code against `AsyncLeasehold`. In the asyncio world it gets just that. In the blocking world it
gets a real `Leasehold` in the same shape, whose calls are made in threads. Each task of the scenario has one thread of
its own, in which all of its blocking calls run; so what is one caller to the scenario (a task) is one caller to the
library as well (a thread, or a task), and ``with`` blocks are entered and left by the same one.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterable
from types import TracebackType
from typing import Any, ClassVar, Self, TypeVar, Unpack, cast

from leasehold import AsyncLeasehold, Facts, Lease, Leasehold, Leases, Lock, NameStatus, Several
from leasehold.settings import LockTerms, SeveralTerms

T = TypeVar("T")
_ExitArguments = tuple[type[BaseException] | None, BaseException | None, TracebackType | None]
LONG = 60.0


class _Caller:
    """A thread that makes the blocking calls of one task, one after the other."""

    _of_task: ClassVar[weakref.WeakKeyDictionary[asyncio.Task[Any], _Caller]] = weakref.WeakKeyDictionary()

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=self._work, args=(self._calls,), name="leasehold-caller", daemon=True).start()
        weakref.finalize(self, self._calls.put, None)

    @staticmethod
    def _work(calls: queue.SimpleQueue[Callable[[], None] | None]) -> None:
        while (call := calls.get()) is not None:
            call()
            del call  # or a lease in it would live until the next call

    @classmethod
    def current(cls) -> _Caller:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a blocking call of a scenario must be made in a task")
        if task not in cls._of_task:
            cls._of_task[task] = cls()
        return cls._of_task[task]

    async def call(self, function: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def run() -> None:
            try:
                result = function()
            except BaseException as error:  # noqa: BLE001 -- handed to the task, which raises it
                tell(answer.set_exception, error)
            else:
                tell(answer.set_result, result)

        def tell(setter: Callable[[Any], object], value: object) -> None:
            def on_loop() -> None:
                if not answer.done():
                    setter(value)

            with contextlib.suppress(RuntimeError):  # the scenario is over
                loop.call_soon_threadsafe(on_loop)

        self._calls.put(run)
        return await answer


async def in_thread(function: Callable[[], T]) -> T:
    """Run a blocking call in the current task's own thread."""
    return await _Caller.current().call(function)


class ThreadedLease:
    """A `Lease` of the blocking world, for a scenario."""

    def __init__(self, lease: Lease) -> None:
        """Keep nothing but the lease."""
        self.inner = lease

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def release(self) -> None:
        """`Lease.release`."""
        await in_thread(self.inner.release)

    async def extend(self, ttl: float | None = None) -> None:
        """`Lease.extend`."""
        await in_thread(lambda: self.inner.extend(ttl))

    async def wait_lost(self) -> bool:
        """`Lease.wait_lost`."""
        return await in_thread(lambda: self.inner.wait_lost(LONG))

    async def __aenter__(self) -> Self:
        await in_thread(self.inner.__enter__)
        return self

    async def __aexit__(self, *error: *_ExitArguments) -> None:  # noqa: PYI036 -- passed on as they come
        await in_thread(lambda: self.inner.__exit__(*error))


class ThreadedLeases:
    """`Leases` of the blocking world, for a scenario."""

    def __init__(self, leases: Leases) -> None:
        """Keep nothing but the leases."""
        self.inner = leases

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def release(self) -> None:
        """`Leases.release`."""
        await in_thread(self.inner.release)


class ThreadedLock:
    """A `Lock` (or `Several`) of the blocking world, for a scenario."""

    def __init__(self, lock: Lock | Several) -> None:
        """Keep nothing but the lock."""
        self.inner = lock

    async def acquire(self) -> Any:
        """`Lock.acquire`."""
        return _threaded(await in_thread(self.inner.acquire))

    async def try_acquire(self) -> Any:
        """`Lock.try_acquire`."""
        return _threaded(await in_thread(self.inner.try_acquire))

    async def __aenter__(self) -> Any:
        return _threaded(await in_thread(self.inner.__enter__))

    async def __aexit__(self, *error: *_ExitArguments) -> None:  # noqa: PYI036 -- passed on as they come
        await in_thread(lambda: self.inner.__exit__(*error))


def _threaded(got: Lease | Leases | None) -> ThreadedLease | ThreadedLeases | None:
    if got is None:
        return None
    return ThreadedLease(got) if isinstance(got, Lease) else ThreadedLeases(got)


class ThreadedLocks:
    """A `Leasehold`, for a scenario."""

    def __init__(self, client: Leasehold) -> None:
        """Keep nothing but the client."""
        self.inner = client

    @property
    def facts(self) -> Facts:
        """`Leasehold.facts`."""
        return self.inner.facts

    def lock(self, name: str, *, reentrant: bool = False, **terms: Unpack[LockTerms]) -> ThreadedLock:
        """`Leasehold.lock`."""
        return ThreadedLock(self.inner.lock(name, reentrant=reentrant, **terms))

    def shared(self, name: str, **terms: Unpack[LockTerms]) -> ThreadedLock:
        """`Leasehold.shared`."""
        return ThreadedLock(self.inner.shared(name, **terms))

    def permits(self, name: str, of: int, **terms: Unpack[LockTerms]) -> ThreadedLock:
        """`Leasehold.permits`."""
        return ThreadedLock(self.inner.permits(name, of, **terms))

    def several(self, names: Iterable[str], **terms: Unpack[SeveralTerms]) -> ThreadedLock:
        """`Leasehold.several`."""
        return ThreadedLock(self.inner.several(names, **terms))

    async def status(self, name: str) -> NameStatus | None:
        """`Leasehold.status`."""
        return await in_thread(lambda: self.inner.status(name))

    async def names(self) -> AsyncIterator[str]:
        """`Leasehold.names`."""
        for name in await in_thread(lambda: list(self.inner.names())):
            yield name

    async def force_release(self, name: str, *, because: str) -> int:
        """`Leasehold.force_release`."""
        return await in_thread(lambda: self.inner.force_release(name, because=because))

    async def close(self) -> None:
        """`Leasehold.close`."""
        await in_thread(self.inner.close)


def as_async(client: Leasehold | AsyncLeasehold) -> AsyncLeasehold:
    """See a client of either world as a scenario does."""
    return cast("AsyncLeasehold", ThreadedLocks(client)) if isinstance(client, Leasehold) else client
