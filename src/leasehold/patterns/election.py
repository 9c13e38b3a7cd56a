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
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from leasehold.client import AsyncLeasehold, Leasehold
from leasehold.core.worlds import run_blocking
from leasehold.errors import EngineError, LeaseholdError, LeaseLost, NotAcquired
from leasehold.keeping import log
from leasehold.names import check_wait
from leasehold.patterns.candidates import AnyElection
from leasehold.patterns.ranks import AsyncLeases, BlockingLeases, Leases
from leasehold.patterns.terms import EXIT_CODE, LOOK_EVERY, AsyncTerm, Leader, Term, end_process

if TYPE_CHECKING:
    import asyncio

    from leasehold.core.engine import NameStatus
    from leasehold.lease import AsyncLease, Lease
    from leasehold.lock import AsyncLock, Lock

__all__ = ["EXIT_CODE", "AsyncElection", "AsyncTerm", "Election", "Leader", "Term", "end_process"]

LONGEST_CAMPAIGN: Final = 3600.0
"""How long a candidate stays in the queue before it joins it anew."""


def _leader(status: NameStatus | None) -> Leader | None:
    if status is None or not status.holders:
        return None
    return Leader(status.holders[0].token, status.holders[0].about)


class Election(AnyElection[Leasehold]):
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

        The work has a thread of its own. An error that it raises ends the term and is raised here. While the engine
        does not answer it goes on trying; only what does not get better by itself, such as a `Misuse`, is raised.
        """
        failures = 0
        try:
            while not until.is_set():
                try:
                    lease = self._elected(until)
                    failures = 0
                except LeaseholdError as error:
                    until.wait(self._pause_after(error, failures))
                    failures += 1
                    continue
                if lease is not None:
                    self._serve_term(work, Term(lease), lease, until)
        finally:
            run_blocking(self._ranks.leave())

    def _elected(self, until: threading.Event) -> Lease | None:
        """Stand once, for a TTL; None when others lead, or are to."""
        if not self._is_healthy():
            run_blocking(self._ranks.leave())
            until.wait(min(self._ttl / 3, 1.0))
            return None
        run_blocking(self._ranks.stand())
        try:
            lease = self._lock(min(self._ttl, LONGEST_CAMPAIGN)).acquire()
        except NotAcquired:
            return None
        if until.is_set() or not self._is_healthy() or run_blocking(self._ranks.gives_way()):
            lease.release()
            until.wait(self._courtesy)
            return None
        return lease

    def _serve_term(self, work: Callable[[Term], object], term: Term, lease: Lease, until: threading.Event) -> None:
        self._look_up(term)
        try:
            self._do(work, term, until)
        finally:
            term.resign("its work has ended")
            held = run_blocking(self._ranks.resign(term._favourite))
            try:
                lease.release()
            except (LeaseLost, EngineError) as error:
                log().warning("%s", error)  # it has run out, or will
            run_blocking(self._ranks.see_off(held))

    def _do(self, work: Callable[[Term], object], term: Term, until: threading.Event) -> None:
        failures: list[BaseException] = []
        # It begins when whoever is to see it end is there. Of a thread whose `join` was interrupted, Python may say
        # that it has ended while it goes on: it says so itself.
        may_begin, ended = threading.Event(), threading.Event()

        def in_thread() -> None:
            while not may_begin.wait(LOOK_EVERY):
                if term.stopping:
                    return
            try:
                work(term)
            except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits for this one
                failures.append(error)
            finally:
                ended.set()

        threading.Thread(target=in_thread, name=f"leader-{term.token}", daemon=True).start()
        interruption = self._see_it_end(may_begin, ended, term, until)
        if not ended.is_set():
            self._at_deadline(term)
        if interruption is not None:
            for failure in failures:
                log().error("%r: its work failed, too", term, exc_info=failure)
            raise interruption
        for failure in failures:
            raise failure

    def _see_it_end(
        self, may_begin: threading.Event, ended: threading.Event, term: Term, until: threading.Event
    ) -> BaseException | None:
        """Let the work begin, and wait until it has ended, or its time is over; returns what has interrupted that.

        Ctrl-C, or a handler of signals that raises, ends the term as `until` does: not before the work has ended.
        """
        interruptions: list[BaseException] = []
        while True:
            try:
                for interruption in interruptions[:1]:
                    term.resign(f"it was interrupted by {type(interruption).__name__}")
                may_begin.set()
                while not ended.wait(LOOK_EVERY) and not self._must_have_stopped(term):
                    if until.is_set():
                        term.resign("this instance is to stop")
                    self._look(term)
                return next(iter(interruptions), None)
            except BaseException as error:  # noqa: BLE001 - the caller raises it, when the work has ended
                interruptions.append(error)  # nothing else: the next one may come here

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


class AsyncElection(AnyElection[AsyncLeasehold]):
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
        error that it raises ends the term and is raised here. An engine that does not answer is tried again.
        """
        failures = 0
        try:
            while not until.is_set():
                try:
                    lease = await self._elected(until)
                    failures = 0
                except LeaseholdError as error:
                    await _wait(until, self._pause_after(error, failures))
                    failures += 1
                    continue
                if lease is not None:
                    await self._serve_term(work, AsyncTerm(lease), lease, until)
        finally:
            await self._ranks.leave()

    async def _elected(self, until: asyncio.Event) -> AsyncLease | None:
        """Stand once, for a TTL; None when others lead, or are to."""
        if not self._is_healthy():
            await self._ranks.leave()
            await _wait(until, min(self._ttl / 3, 1.0))
            return None
        await self._ranks.stand()
        try:
            lease = await self._lock(min(self._ttl, LONGEST_CAMPAIGN)).acquire()
        except NotAcquired:
            return None
        if until.is_set() or not self._is_healthy() or await self._ranks.gives_way():
            await lease.release()
            await _wait(until, self._courtesy)
            return None
        return lease

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
            except (LeaseLost, EngineError) as error:
                log().warning("%s", error)  # it has run out, or will
            await self._ranks.see_off(held)

    async def _do(
        self, work: Callable[[AsyncTerm], Coroutine[Any, Any, object]], term: AsyncTerm, until: asyncio.Event
    ) -> None:
        import asyncio

        task = asyncio.ensure_future(work(term))
        try:
            while not task.done() and not self._must_have_stopped(term):
                await asyncio.wait([task], timeout=LOOK_EVERY)
                if until.is_set():
                    term.resign("this instance is to stop")
                self._look(term)
        finally:
            await self._end(task, term)
        if task.done() and not task.cancelled():
            task.result()

    async def _end(self, task: asyncio.Future[Any], term: AsyncTerm) -> None:
        """Cancel work that goes on, once, and wait until it has ended; the hard way out when it does not.

        Who is cancelled meanwhile, once more or for the first time, waits all the same: the work has its time.
        """
        import asyncio

        if task.done():
            return
        term.resign("it was cancelled")
        task.cancel("its term has ended")
        give_up_at, cancelled = time.monotonic() + min(self._stop_within, term.remaining), None
        while not task.done() and (left := give_up_at - time.monotonic()) > 0:
            try:
                await asyncio.wait([task], timeout=left)
            except asyncio.CancelledError as error:
                cancelled = error
        if not task.done():
            self._at_deadline(term)
        if cancelled is not None:
            raise cancelled

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


async def _wait(until: asyncio.Event, seconds: float) -> None:
    """Pause, but not beyond the moment when there is nothing more to do."""
    import asyncio

    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await until.wait()
