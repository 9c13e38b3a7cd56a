"""A member of a group in asyncio code: one task looks around, and one for each busy partition does the work."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from leasehold.client import AsyncLeasehold
from leasehold.errors import LeaseholdError, Misuse, quoted
from leasehold.keeping import log
from leasehold.lease import AsyncLease
from leasehold.names import check_wait
from leasehold.patterns.partitions.bells import Bell, Ear, Rounds
from leasehold.patterns.partitions.crew import Crew, Member
from leasehold.patterns.partitions.entities import Entities
from leasehold.patterns.partitions.inbox import EVERY, AsyncFeed, AsyncHandler, AsyncInbox
from leasehold.patterns.partitions.owned import Item, Owned, Writer
from leasehold.patterns.partitions.settings import SHORT_PAUSE, Group, MemberTerms, Settings
from leasehold.worlds import boot_clock

T = TypeVar("T")


class _Ground:
    """The locks of a group, by an asyncio client."""

    now = staticmethod(boot_clock)

    def __init__(self, locks: AsyncLeasehold, entities: Entities, settings: Settings) -> None:
        self._locks, self._entities, self._settings = locks, entities, settings
        # Not renewed by the keeper: the place of a member with a grace stays behind, for so long, when it leaves.
        self._place = locks.shared(entities.roster, ttl=settings.place_ttl, wait=settings.ttl, renew=False)

    async def enlist(self) -> AsyncLease:
        return await self._place.acquire()

    async def stay(self, place: AsyncLease) -> None:
        if place.remaining < place.ttl * 2 / 3:
            await place.extend()

    async def roster(self) -> list[Member]:
        return self._settings.members(await self._locks.status(self._entities.roster))

    async def take(self, partition: int) -> AsyncLease | None:
        return await self._locks.lock(self._entities.lock_of(partition), ttl=self._settings.ttl).try_acquire()

    async def release(self, lease: AsyncLease) -> None:
        await lease.release()


class AsyncPartitions(Group[AsyncLease]):
    """Membership in a group whose entities each have one writer at a time; see `Partitions`.

    It belongs to one event loop, and so does what is called with it: work is an async function that takes a writer.
    """

    def __init__(self, locks: AsyncLeasehold, entities: Entities, **terms: Unpack[MemberTerms]) -> None:
        """The settings are those of `MemberTerms`; `warm` and `cool` are async functions. Joins nothing yet."""
        if not isinstance(entities, Entities):
            raise Misuse(f"entities says what is shared: Entities('orders'), not {quoted(entities)}")
        self._entities = entities
        self._settings = Settings(**terms).checked(locks.facts.least_ttl)
        self._locks = locks
        self._crew = self._new_crew()
        self._wake, self._bell = asyncio.Event(), Bell()
        self._looking: asyncio.Task[None] | None = None
        self._leaving = False
        self._running: set[asyncio.Task[None]] = set()
        self.trouble = None

    def _new_crew(self) -> Crew[AsyncLease]:
        ground = _Ground(self._locks, self._entities, self._settings)
        me = self._settings.name_in(self._locks.about)
        return Crew(ground, self._entities, me, self._settings.pace, open_=self._open, close=self._close_one)

    async def join(self) -> None:
        """Become a member, and take partitions from now on, in the background."""
        if self._looking is not None:
            raise Misuse("this member has joined already; make another AsyncPartitions for another member")
        self._crew, self._leaving = self._new_crew(), False
        self._looking = asyncio.create_task(self._look_around(), name="leasehold-partitions")

    async def leave(self, *, within: float = 60.0) -> None:
        """Drain all partitions and give them back; see `Partitions.leave`."""
        looking = self._looking
        if looking is None:
            return
        give_up_at = time.monotonic() + check_wait(within, what="within")
        self._leaving = True
        self._wake.set()
        await asyncio.wait([looking])  # it may have been cancelled, as all are when a program ends
        while not await self._has_left():
            self._wake.clear()
            if time.monotonic() >= give_up_at:
                log().warning("%r leaves, and has work that does not end", self)
                break
            await self._pause(SHORT_PAUSE)
        place = self._crew.place
        if place is not None and not self._settings.grace:
            try:
                await place.release()
            except LeaseholdError as error:
                log().info("the place in the roster is left to run out: %s", error)
        self._looking = None

    async def _has_left(self) -> bool:
        try:
            return await self._crew.leave()
        except LeaseholdError as error:
            # What could not be released is given back by the keeper, or runs out; the others are still to be released.
            log().warning("%r could not release a partition while it leaves: %s", self, error)
            return False

    def submit(self, entity: str, work: Callable[[Writer], Coroutine[Any, Any, T]]) -> asyncio.Future[T]:
        """Have `work` done with the entity's writer, after all that was submitted for the entity before.

        Raises `Moved` when another member owns the entity's partition, and `QueueFull` when too much waits there. The
        future has `Moved`, too, when the partition moved before the work was begun: submit it again, then.
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._put(self._served(entity), Item(entity, work, future))
        return future

    async def wait_owned(self, count: int, *, within: float) -> None:
        """Return when this member serves so many partitions; for start-up, and for tests."""
        give_up_at = time.monotonic() + check_wait(within, what="within")
        while len(self.owned) < count:
            if time.monotonic() >= give_up_at:
                raise self._too_few(count, within)
            await asyncio.sleep(SHORT_PAUSE)

    async def serve(
        self, inbox: AsyncInbox, handle: AsyncHandler, *, until: asyncio.Event, every: float = EVERY
    ) -> None:
        """Handle what is put into an inbox for the partitions of this member, in order, until `until` is set.

        See `Partitions.serve`.
        """
        feed = AsyncFeed(inbox, lambda writer, message: _of_its_own(handle(writer, message)))
        bell, loop = asyncio.Event(), asyncio.get_running_loop()
        rounds = Rounds(check_wait(every, what="every"), feed.look_at)
        over = asyncio.create_task(until.wait())
        ear = Ear(inbox, lambda: loop.call_soon_threadsafe(bell.set))
        try:
            with self._bell.heard(bell.set):
                while not over.done():
                    bell.clear()
                    for number in rounds.wanted(await inbox.waiting()):
                        owned = self._crew.mine.get(number)
                        if owned is not None and owned.serves:
                            future: asyncio.Future[float] = loop.create_future()
                            future.add_done_callback(lambda one: bell.set() if rounds.has_gone_well(one) else None)
                            rounds.begin(number, future)
                            self._put_if_served(owned, Item(f"partition {number}", feed.work, future))
                    if await _either(bell, over, rounds.pause()):
                        rounds.rung()
        finally:
            over.cancel()
            await asyncio.to_thread(ear.close)

    def _future(self) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().create_future()

    def _start(self, owned: Owned) -> None:
        task = asyncio.create_task(self._run(owned))
        self._running.add(task)
        task.add_done_callback(functools.partial(self._has_stopped, owned))

    async def _run(self, owned: Owned) -> None:
        """Run items as long as there are some."""
        while (item := owned.next()) is not None:
            try:
                result = await _of_its_own(item.work(Writer(owned, item.entity)))
            except Exception as error:  # noqa: BLE001 - it is the caller's, who has the future
                item.hand_back(error)
            except BaseException as error:
                item.hand_back(_ended_with(error))
                raise
            else:
                if not item.future.done():
                    item.future.set_result(result)
            await asyncio.sleep(0)
        if owned.closing is not None:
            self._wake.set()

    def _has_stopped(self, owned: Owned, worker: asyncio.Task[None]) -> None:
        """Give a partition up whose worker was cancelled, or ended the program: nothing more is begun there."""
        self._running.discard(worker)
        if not worker.cancelled() and worker.exception() is None:
            return
        if owned.interrupted():
            self._start(owned)
        elif owned.closing is None:
            self._close_one(owned, "its worker was cancelled")
        self._wake.set()

    def _open(self, number: int, lease: AsyncLease) -> Owned:
        owned, warm = Owned(self._entities.group, number, lease, self._settings.most_queued), self._settings.warm

        async def work(writer: Writer) -> None:
            try:
                if warm is not None:
                    await warm(writer)
            except BaseException:
                owned.could_not_be_warmed()
                raise

        if warm is not None:
            self._put(owned, Item("", work, self._unawaited()))
        self._bell.ring()
        return owned

    async def _look_around(self) -> None:
        while not self._leaving:
            self._wake.clear()
            pause = self._settings.every
            try:
                if await self._crew.round():
                    pause = min(pause, SHORT_PAUSE)
                self.trouble = None
            except LeaseholdError as error:
                self.trouble = error
                log().warning("%r could not look around, and goes on with what it has: %s", self, error)
            if not self._leaving:
                await self._pause(pause)

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return

    async def __aenter__(self) -> Self:
        """Join."""
        await self.join()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave."""
        await self.leave()


async def _of_its_own(work: Coroutine[Any, Any, T]) -> T:
    """Await work. When what it waits for was cancelled, and not the task that does it, that is an error of the work."""
    try:
        return await work
    except asyncio.CancelledError as error:
        worker = asyncio.current_task()
        if worker is None or worker.cancelling():
            raise
        raise _ended_with(error) from error


def _ended_with(error: BaseException) -> LeaseholdError:
    return LeaseholdError(f"the work ended with {error!r}")


async def _either(bell: asyncio.Event, over: asyncio.Task[Any], seconds: float) -> bool:
    """Wait for either, for so many seconds; whether it was the bell."""
    ringing = asyncio.create_task(bell.wait())
    await asyncio.wait({ringing, over}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    ringing.cancel()
    return bell.is_set()
