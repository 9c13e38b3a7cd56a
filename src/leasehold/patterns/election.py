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

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from leasehold.client import AsyncLeasehold, Leasehold
from leasehold.core.worlds import run_blocking
from leasehold.errors import EngineError, LeaseLost, Misuse, NotAcquired, quoted
from leasehold.keeping import log
from leasehold.names import check_name, check_ttl, check_wait
from leasehold.patterns.ranks import AsyncLeases, BlockingLeases, Leases, Ranks
from leasehold.patterns.terms import EXIT_CODE, LOOK_EVERY, AnyTerm, AsyncTerm, Leader, Term, end_process

if TYPE_CHECKING:
    import asyncio

    from leasehold.core.engine import NameStatus
    from leasehold.lease import AsyncLease, Lease
    from leasehold.lock import AsyncLock, Lock

__all__ = ["EXIT_CODE", "AsyncElection", "AsyncTerm", "Election", "Leader", "Term", "end_process"]

LONGEST_CAMPAIGN: Final = 3600.0
"""How long a candidate stays in the queue before it joins it anew."""

ClientT = TypeVar("ClientT")


class _Election(ABC, Generic[ClientT]):
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
        priority: int | None = None,
        candidate: str | None = None,
    ) -> None:
        """Choose `name` for what is led.

        A candidate whose `healthy` says no does not stand, and a leader whose `healthy` says no stops. Work that was
        told to stop has `stop_within` seconds, and never longer than its lease; `at_deadline` is called when it has not
        stopped by then: by default the process ends at once.

        With a `priority`, from 0 to 3, a candidate gives way to those of a higher one, also as a leader. `candidate` is
        the name by which a leader can resign in favour of this one.
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
        self._ranks = Ranks(self._leases(locks), name, self._ttl, priority=priority, candidate=candidate)

    @abstractmethod
    def _leases(self, locks: ClientT) -> Leases:
        """The leases of this election's world."""

    @property
    def name(self) -> str:
        """What is led."""
        return self._name

    @property
    def _courtesy(self) -> float:
        """How long one that gave way stays away before it comes back."""
        return min(self._ttl / 10, 0.5)

    async def _resign_if_outranked(self, term: AnyTerm) -> None:
        try:
            if await self._ranks.is_outranked():
                term.resign("a candidate of higher priority stands")
        except EngineError as error:
            log().debug("%r: no other candidate can be seen: %s", term, error)

    def _is_healthy(self) -> bool:
        return self._healthy is None or bool(self._healthy())

    def _may_stand(self) -> None:
        if not self._is_healthy():
            raise NotAcquired(self._name, wait=0.0, holder=None, token=None)

    def _look(self, term: AnyTerm) -> None:
        """Tell the work to stop when there is a reason, while there is still time to."""
        if term.stopping:
            return
        if term.remaining <= self._ttl / 3:
            # Renewals come at a third of the TTL: two of them are missing.
            term.resign("its lease was not renewed in time")
        elif not self._is_healthy():
            term.resign("it is not healthy")

    def _must_have_stopped(self, term: AnyTerm, told_at: float) -> bool:
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

    def _leases(self, locks: Leasehold) -> Leases:
        return BlockingLeases(locks)

    @contextmanager
    def lead(self, wait: float = LONGEST_CAMPAIGN) -> Iterator[Term]:
        """Lead for as long as the block runs, after at most `wait` seconds; raises `NotAcquired` when others lead.

        The block asks ``term.stopping`` (or waits with `Term.wait`) and ends when it is true; `LeaseLost` is raised at
        its end if it did not end in time.
        """
        self._may_stand()
        held = []
        try:
            with self._campaign(wait) as lease:
                term, over = Term(lease), threading.Event()
                watch = threading.Thread(target=self._watch, args=(term, over), name="leasehold-election", daemon=True)
                watch.start()
                self._look_up(term)
                try:
                    yield term
                finally:
                    over.set()
                    term.resign("its work has ended")
                    watch.join()
                    held = run_blocking(self._ranks.resign(term._favourite))
        finally:
            run_blocking(self._ranks.see_off(held))

    @contextmanager
    def _campaign(self, wait: float) -> Iterator[Lease]:
        """The lease of a leader, once there is nobody to give way to."""
        give_up_at = time.monotonic() + check_wait(wait)
        try:
            while True:
                run_blocking(self._ranks.stand())
                with self._lock(max(give_up_at - time.monotonic(), 0.0)) as lease:
                    self._may_stand()  # it may have fallen ill while it waited
                    if not run_blocking(self._ranks.gives_way()):
                        yield lease
                        return
                if time.monotonic() >= give_up_at:
                    raise NotAcquired(self._name, wait=wait, holder=None, token=None)
                time.sleep(self._courtesy)
        finally:
            run_blocking(self._ranks.leave())

    def _watch(self, term: Term, over: threading.Event) -> None:
        while not over.wait(LOOK_EVERY) and not term.stopping:
            self._look(term)

    def _look_up(self, term: Term) -> None:
        """Give way to a candidate of higher priority; beside all else, for an engine may take its time to answer."""

        def look() -> None:
            while not term.wait(self._ttl / 3):
                run_blocking(self._resign_if_outranked(term))

        if self._ranks.looks_up:
            threading.Thread(target=look, name="leasehold-ranks", daemon=True).start()

    def serve(self, work: Callable[[Term], object], *, until: threading.Event) -> None:
        """Stand for election again and again, and do `work` in each term, until `until` is set.

        The work has a thread of its own. An error that it raises ends the term and is raised here.
        """
        try:
            while not until.is_set():
                if not self._is_healthy():
                    run_blocking(self._ranks.leave())
                    until.wait(min(self._ttl / 3, 1.0))
                    continue
                run_blocking(self._ranks.stand())
                try:
                    lease = self._lock(min(self._ttl, LONGEST_CAMPAIGN)).acquire()
                except NotAcquired:
                    continue
                if until.is_set() or not self._is_healthy() or run_blocking(self._ranks.gives_way()):
                    lease.release()
                    until.wait(self._courtesy)
                    continue
                self._serve_term(work, Term(lease), lease, until)
        finally:
            run_blocking(self._ranks.leave())

    def _serve_term(self, work: Callable[[Term], object], term: Term, lease: Lease, until: threading.Event) -> None:
        self._look_up(term)
        try:
            self._do(work, term, until)
        finally:
            term.resign("its work has ended")
            held = run_blocking(self._ranks.resign(term._favourite))
            try:
                lease.release()
            except LeaseLost as loss:
                log().warning("%s", loss)
            run_blocking(self._ranks.see_off(held))

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

    def _leases(self, locks: AsyncLeasehold) -> Leases:
        return AsyncLeases(locks)

    def _lock(self, wait: float) -> AsyncLock:
        return self._locks.lock(self._name, ttl=self._ttl, wait=wait)

    @asynccontextmanager
    async def lead(self, wait: float = LONGEST_CAMPAIGN) -> AsyncIterator[AsyncTerm]:
        """Lead for as long as the block runs, after at most `wait` seconds; raises `NotAcquired` when others lead."""
        import asyncio

        self._may_stand()
        held = []
        try:
            async with self._campaign(wait) as lease:
                term = AsyncTerm(lease)
                tasks = [asyncio.create_task(self._watch(term)), asyncio.create_task(self._look_up(term))]
                try:
                    yield term
                finally:
                    term.resign("its work has ended")
                    for task in tasks:
                        task.cancel()
                    held = await self._ranks.resign(term._favourite)
        finally:
            await self._ranks.see_off(held)

    @asynccontextmanager
    async def _campaign(self, wait: float) -> AsyncIterator[AsyncLease]:
        """The lease of a leader, once there is nobody to give way to."""
        import asyncio

        give_up_at = time.monotonic() + check_wait(wait)
        try:
            while True:
                await self._ranks.stand()
                async with self._lock(max(give_up_at - time.monotonic(), 0.0)) as lease:
                    self._may_stand()  # it may have fallen ill while it waited
                    if not await self._ranks.gives_way():
                        yield lease
                        return
                if time.monotonic() >= give_up_at:
                    raise NotAcquired(self._name, wait=wait, holder=None, token=None)
                await asyncio.sleep(self._courtesy)
        finally:
            await self._ranks.leave()

    async def _watch(self, term: AsyncTerm) -> None:
        import asyncio

        while not term.stopping:
            await asyncio.sleep(LOOK_EVERY)
            self._look(term)

    async def _look_up(self, term: AsyncTerm) -> None:
        """Give way to a candidate of higher priority; beside all else, for an engine may take its time to answer."""
        while self._ranks.looks_up and not await term.wait(self._ttl / 3):
            await self._resign_if_outranked(term)

    async def serve(self, work: Callable[[AsyncTerm], Coroutine[Any, Any, object]], *, until: asyncio.Event) -> None:
        """Stand for election again and again, and do `work` in each term, until `until` is set.

        Work that was told to stop and goes on for `stop_within` seconds is cancelled, and has as long again to end. An
        error that it raises ends the term and is raised here.
        """
        import asyncio

        try:
            while not until.is_set():
                if not self._is_healthy():
                    await self._ranks.leave()
                    await asyncio.sleep(min(self._ttl / 3, 1.0))
                    continue
                await self._ranks.stand()
                try:
                    lease = await self._lock(min(self._ttl, LONGEST_CAMPAIGN)).acquire()
                except NotAcquired:
                    continue
                if until.is_set() or not self._is_healthy() or await self._ranks.gives_way():
                    await lease.release()
                    await asyncio.sleep(self._courtesy)
                    continue
                await self._serve_term(work, AsyncTerm(lease), lease, until)
        finally:
            await self._ranks.leave()

    async def _serve_term(
        self,
        work: Callable[[AsyncTerm], Coroutine[Any, Any, object]],
        term: AsyncTerm,
        lease: AsyncLease,
        until: asyncio.Event,
    ) -> None:
        import asyncio

        looking_up = asyncio.create_task(self._look_up(term))
        try:
            await self._do(work, term, until)
        finally:
            term.resign("its work has ended")
            looking_up.cancel()
            held = await self._ranks.resign(term._favourite)
            try:
                await lease.release()
            except LeaseLost as loss:
                log().warning("%s", loss)
            await self._ranks.see_off(held)

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
                if told_at is not None and self._must_have_stopped(term, told_at):
                    break
        finally:
            await self._end(task, term)
        if task.done() and not task.cancelled():
            task.result()

    async def _end(self, task: asyncio.Future[Any], term: AsyncTerm) -> None:
        """Cancel work that goes on, once, and wait until it has ended; the hard way out when it does not."""
        import asyncio

        if task.done():
            return
        term.resign("it was cancelled")
        task.cancel("its term has ended")
        await asyncio.wait([task], timeout=min(self._stop_within, term.remaining))
        if not task.done():
            self._at_deadline(term)

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
