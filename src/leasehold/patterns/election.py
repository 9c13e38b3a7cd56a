"""Leader election: of many instances one leads, and the next one takes over when it stops, stalls or dies.

What it does not promise: that the old leader has stopped when the new one starts. A stalled process stops nothing. So
the leader's writes carry the token of its term, and a fence at the resource refuses those of an earlier term. What it
does promise: a leader that is told to stop, or that can no longer renew its lease, is given time to stop its work, and
gives its lease back only after the work has ended.

>>> import pathlib, tempfile, leasehold
>>> with leasehold.Leasehold(pathlib.Path(tempfile.mkdtemp()) / "leases.db") as locks:
...     election = Election(locks, "billing/leader", ttl=10)
...     with election.lead() as term:
...         leader = election.leader()
...         (leader.token == term.token, term.stopping)
(True, False)
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from leasehold import watching
from leasehold.client import AsyncLeasehold, Leasehold
from leasehold.errors import LeaseLost, Misuse, NotAcquired, quoted
from leasehold.keeping import log
from leasehold.names import check_name, check_ttl, check_wait

if TYPE_CHECKING:
    import asyncio

    from leasehold.core.engine import NameStatus
    from leasehold.lease import LeaseView
    from leasehold.lock import AsyncLock, Lock

EXIT_CODE: Final = 77
"""With which a process ends whose work has not stopped when its lease ran out."""
LOOK_EVERY: Final = 0.05
"""How often a leader looks for a reason to stop, in seconds; asking costs nothing."""
LONGEST_CAMPAIGN: Final = 3600.0
"""How long a candidate stays in the queue before it joins it anew."""

ClientT = TypeVar("ClientT")


class Leader(NamedTuple):
    """Who leads, as others see it. It may have changed since."""

    token: int
    holder: str
    """Who that is, for people: ``label@host:pid``."""


class _Term:
    """What the terms of both worlds have in common."""

    __slots__ = ("_lease", "_stop", "why")

    def __init__(self, lease: LeaseView) -> None:
        self._lease = lease
        self._stop = threading.Event()
        self.why: str | None = None
        """Why it is to stop; None as long as it is not."""
        watching.elected(lease.name, lease.token)

    @property
    def token(self) -> int:
        """The fencing token: greater than that of every earlier term."""
        return self._lease.token

    @property
    def remaining(self) -> float:
        """Seconds until the lease runs out unless it is renewed."""
        return self._lease.remaining

    @property
    def stopping(self) -> bool:
        """Whether the work is to end, and soon."""
        return self._stop.is_set()

    def check(self) -> None:
        """Raise `LeaseLost` unless this is still the leader, as far as its own clock can tell."""
        self._lease.check()

    def resign(self, why: str = "it resigned") -> None:
        """Ask the work to end. The lease is given back when it has."""
        if not self._stop.is_set():
            self.why = why
            self._stop.set()
            watching.resigned(self._lease.name, self.token, why)

    def __repr__(self) -> str:
        state = f"stopping: {self.why}" if self.stopping else f"{self.remaining:.3g} s left"
        return f"<{type(self).__name__} {quoted(self._lease.name)} token={self.token} {state}>"


class Term(_Term):
    """One leader's time in office. Its token fences what the leader writes."""

    __slots__ = ()

    def wait(self, seconds: float) -> bool:
        """Pause the work, but not beyond the moment when it is to end; returns whether it is."""
        return self._stop.wait(check_wait(seconds, what="seconds"))


class AsyncTerm(_Term):
    """One leader's time in office, in async code; see `Term`."""

    __slots__ = ()

    async def wait(self, seconds: float) -> bool:
        """Pause the work, but not beyond the moment when it is to end; returns whether it is."""
        import asyncio

        ends = time.monotonic() + check_wait(seconds, what="seconds")
        while not self.stopping and (left := ends - time.monotonic()) > 0:  # noqa: ASYNC110 - any thread may resign
            await asyncio.sleep(min(LOOK_EVERY, left))
        return self.stopping


def end_process(term: _Term) -> None:
    """The hard way out: work that goes on without its lease is worse than no work. Nothing is cleaned up."""
    log().critical("%r: its work has not stopped, so this process ends now", term)
    os._exit(EXIT_CODE)


class _Election(Generic[ClientT]):
    """What elections of both worlds have in common."""

    def __init__(
        self,
        locks: ClientT,
        name: str,
        *,
        ttl: float = 15.0,
        healthy: Callable[[], bool] | None = None,
        stop_within: float = 10.0,
        at_deadline: Callable[[Any], object] = end_process,
    ) -> None:
        """Choose `name` for what is led.

        A candidate whose `healthy` says no does not stand, and a leader whose `healthy` says no stops. Work that was
        told to stop has `stop_within` seconds, and never longer than its lease; `at_deadline` is called when it has not
        stopped by then: by default the process ends at once.
        """
        self._name = check_name(name)
        self._ttl = check_ttl(ttl)
        self._stop_within = check_wait(stop_within, what="stop_within")
        if healthy is not None and not callable(healthy):
            raise Misuse(f"healthy is a function that answers True or False, not {quoted(healthy)}")
        if not callable(at_deadline):
            raise Misuse(f"at_deadline is a function that takes the term, not {quoted(at_deadline)}")
        self._locks: ClientT = locks
        self._healthy, self._at_deadline = healthy, at_deadline

    @property
    def name(self) -> str:
        """What is led."""
        return self._name

    def _is_healthy(self) -> bool:
        return self._healthy is None or bool(self._healthy())

    def _may_stand(self) -> None:
        if not self._is_healthy():
            raise NotAcquired(self._name, wait=0.0, holder=None, token=None)

    def _look(self, term: _Term) -> None:
        """Tell the work to stop when there is a reason, while there is still time to."""
        if term.stopping:
            return
        if term.remaining <= self._ttl / 3:
            # Renewals come at a third of the TTL: two of them are missing.
            term.resign("its lease was not renewed in time")
        elif not self._is_healthy():
            term.resign("it is not healthy")

    def _must_have_stopped(self, term: _Term, told_at: float) -> bool:
        """Whether the time is over that work has which was told to stop; never longer than its lease."""
        return term.remaining <= 0 or time.monotonic() >= told_at + self._stop_within

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {quoted(self._name)} ttl={self._ttl:g}>"


def _leader(status: NameStatus | None) -> Leader | None:
    if status is None or not status.holders:
        return None
    return Leader(status.holders[0].token, status.holders[0].about)


class Election(_Election[Leasehold]):
    """An election for blocking code. Threads may share it."""

    def _lock(self, wait: float) -> Lock:
        return self._locks.lock(self._name, ttl=self._ttl, wait=wait)

    @contextmanager
    def lead(self, wait: float = LONGEST_CAMPAIGN) -> Iterator[Term]:
        """Lead for as long as the block runs, after at most `wait` seconds; raises `NotAcquired` when others lead.

        The block asks ``term.stopping`` (or waits with `Term.wait`) and ends when it is true; `LeaseLost` is raised at
        its end if it did not end in time.
        """
        self._may_stand()
        with self._lock(wait) as lease:
            term, over = Term(lease), threading.Event()
            watch = threading.Thread(target=self._watch, args=(term, over), name="leasehold-election", daemon=True)
            watch.start()
            try:
                yield term
            finally:
                over.set()
                term.resign("its work has ended")
                watch.join()

    def _watch(self, term: Term, over: threading.Event) -> None:
        while not over.wait(LOOK_EVERY) and not term.stopping:
            self._look(term)

    def serve(self, work: Callable[[Term], object], *, until: threading.Event) -> None:
        """Stand for election again and again, and do `work` in each term, until `until` is set.

        The work has a thread of its own. An error that it raises ends the term and is raised here.
        """
        while not until.is_set():
            if not self._is_healthy():
                until.wait(min(self._ttl / 3, 1.0))
                continue
            try:
                lease = self._lock(min(self._ttl, LONGEST_CAMPAIGN)).acquire()
            except NotAcquired:
                continue
            term = Term(lease)
            try:
                self._do(work, term, until)
            finally:
                try:
                    lease.release()
                except LeaseLost as loss:
                    log().warning("%s", loss)

    def _do(self, work: Callable[[Term], object], term: Term, until: threading.Event) -> None:
        failures: list[BaseException] = []

        def in_thread() -> None:
            try:
                work(term)
            except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits for this one
                failures.append(error)

        worker = threading.Thread(target=in_thread, name=f"leader-{term.token}", daemon=True)
        worker.start()
        told_at = None
        while worker.is_alive():
            worker.join(LOOK_EVERY)
            if until.is_set():
                term.resign("this instance is to stop")
            self._look(term)
            told_at = told_at or (time.monotonic() if term.stopping else None)
            if told_at is not None and worker.is_alive() and self._must_have_stopped(term, told_at):
                self._at_deadline(term)
                break
        for failure in failures:
            raise failure

    def leader(self) -> Leader | None:
        """Who leads now; None when nobody does."""
        return _leader(self._locks.status(self._name))

    def observe(self, every: float = 1.0) -> Iterator[Leader | None]:
        """The leader now, and then each new one (None: nobody leads), looked for every so many seconds; endless."""
        pause = check_wait(every, what="every")
        seen: Leader | object | None = _UNSEEN
        while True:
            leader = self.leader()
            if leader != seen:
                seen = leader
                yield leader
            time.sleep(pause)


class AsyncElection(_Election[AsyncLeasehold]):
    """An election for async code; see `Election`."""

    def _lock(self, wait: float) -> AsyncLock:
        return self._locks.lock(self._name, ttl=self._ttl, wait=wait)

    @asynccontextmanager
    async def lead(self, wait: float = LONGEST_CAMPAIGN) -> AsyncIterator[AsyncTerm]:
        """Lead for as long as the block runs, after at most `wait` seconds; raises `NotAcquired` when others lead."""
        import asyncio

        self._may_stand()
        async with self._lock(wait) as lease:
            term = AsyncTerm(lease)
            watch = asyncio.create_task(self._watch(term))
            try:
                yield term
            finally:
                term.resign("its work has ended")
                watch.cancel()

    async def _watch(self, term: AsyncTerm) -> None:
        import asyncio

        while not term.stopping:
            await asyncio.sleep(LOOK_EVERY)
            self._look(term)

    async def serve(self, work: Callable[[AsyncTerm], Coroutine[Any, Any, object]], *, until: asyncio.Event) -> None:
        """Stand for election again and again, and do `work` in each term, until `until` is set.

        Work that was told to stop and goes on for `stop_within` seconds is cancelled. An error that it raises ends the
        term and is raised here.
        """
        import asyncio

        while not until.is_set():
            if not self._is_healthy():
                await asyncio.sleep(min(self._ttl / 3, 1.0))
                continue
            try:
                lease = await self._lock(min(self._ttl, LONGEST_CAMPAIGN)).acquire()
            except NotAcquired:
                continue
            term = AsyncTerm(lease)
            try:
                await self._do(work, term, until)
            finally:
                try:
                    await lease.release()
                except LeaseLost as loss:
                    log().warning("%s", loss)

    async def _do(
        self, work: Callable[[AsyncTerm], Coroutine[Any, Any, object]], term: AsyncTerm, until: asyncio.Event
    ) -> None:
        import asyncio

        task = asyncio.ensure_future(work(term))
        told_at = None
        try:
            while not task.done():
                await asyncio.wait([task], timeout=LOOK_EVERY)
                if until.is_set():
                    term.resign("this instance is to stop")
                self._look(term)
                told_at = told_at or (time.monotonic() if term.stopping else None)
                if told_at is None or task.done():
                    continue
                if time.monotonic() >= told_at + self._stop_within:
                    task.cancel("its term has ended")
                if term.remaining <= 0:
                    self._at_deadline(term)
                    return
            if not task.cancelled():
                task.result()
        finally:
            task.cancel()

    async def leader(self) -> Leader | None:
        """Who leads now; None when nobody does."""
        return _leader(await self._locks.status(self._name))

    async def observe(self, every: float = 1.0) -> AsyncIterator[Leader | None]:
        """The leader now, and then each new one (None: nobody leads), looked for every so many seconds; endless."""
        import asyncio

        pause = check_wait(every, what="every")
        seen: Leader | object | None = _UNSEEN
        while True:
            leader = await self.leader()
            if leader != seen:
                seen = leader
                yield leader
            await asyncio.sleep(pause)


_UNSEEN: Final = object()
