"""A member of a group in blocking code: one thread looks around, others do the work."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from leasehold.client import Leasehold
from leasehold.core.worlds import run_blocking
from leasehold.errors import LeaseholdError, Misuse, quoted
from leasehold.keeping import log
from leasehold.lease import Lease
from leasehold.names import check_wait
from leasehold.patterns.partitions.bells import Bell, Ear, Rounds
from leasehold.patterns.partitions.crew import Crew, Member
from leasehold.patterns.partitions.entities import Entities
from leasehold.patterns.partitions.inbox import EVERY, Feed, Handler, Inbox
from leasehold.patterns.partitions.owned import Item, Owned, Writer
from leasehold.patterns.partitions.settings import SHORT_PAUSE, Group, MemberTerms, Settings
from leasehold.worlds import boot_clock

T = TypeVar("T")


class _Ground:
    """The locks of a group, by a blocking client."""

    now = staticmethod(boot_clock)

    def __init__(self, locks: Leasehold, entities: Entities, settings: Settings) -> None:
        self._locks, self._entities, self._settings = locks, entities, settings
        # Not renewed by the keeper: the place of a member with a grace stays behind, for so long, when it leaves.
        self._place = locks.shared(entities.roster, ttl=settings.place_ttl, wait=settings.ttl, renew=False)

    async def enlist(self) -> Lease:
        return self._place.acquire()

    async def stay(self, place: Lease) -> None:
        if place.remaining < place.ttl * 2 / 3:
            place.extend()

    async def roster(self) -> list[Member]:
        return self._settings.members(self._locks.status(self._entities.roster))

    async def take(self, partition: int) -> Lease | None:
        return self._locks.lock(self._entities.lock_of(partition), ttl=self._settings.ttl).try_acquire()

    async def release(self, lease: Lease) -> None:
        lease.release()


class Partitions(Group[Lease]):
    """Membership in a group whose entities each have one writer at a time. Threads may share it.

    >>> import pathlib, tempfile, leasehold
    >>> orders = Entities("orders", partitions=8)
    >>> with leasehold.Leasehold(pathlib.Path(tempfile.mkdtemp()) / "leases.db") as locks:
    ...     with Partitions(locks, orders) as member:
    ...         member.wait_owned(8, within=30)
    ...         member.submit("customer-42", lambda writer: writer.entity).result()
    'customer-42'
    """

    def __init__(self, locks: Leasehold, entities: Entities, *, workers: int = 8, **terms: Unpack[MemberTerms]) -> None:
        """Do the work in `workers` threads; the other settings are those of `MemberTerms`. Joins nothing yet."""
        if not isinstance(entities, Entities):
            raise Misuse(f"entities says what is shared: Entities('orders'), not {quoted(entities)}")
        if type(workers) is not int or not 1 <= workers <= 1000:
            raise Misuse(f"workers is an int from 1 to 1000, not {quoted(workers)}")
        self._entities = entities
        self._settings = Settings(**terms).checked(locks.facts.least_ttl)
        self._workers = workers
        self._locks = locks
        self._crew = self._new_crew()
        self._wake, self._over, self._bell = threading.Event(), threading.Event(), Bell()
        self._looking: threading.Thread | None = None
        self._pool: ThreadPoolExecutor | None = None
        self.trouble = None

    def _new_crew(self) -> Crew[Lease]:
        ground = _Ground(self._locks, self._entities, self._settings)
        me = self._settings.name_in(self._locks.about)
        return Crew(ground, self._entities, me, self._settings.pace, open_=self._open, close=self._close_one)

    def join(self) -> None:
        """Become a member, and take partitions from now on, in the background."""
        if self._looking is not None:
            raise Misuse("this member has joined already; make another Partitions for another member")
        self._over.clear()
        self._crew = self._new_crew()
        self._pool = ThreadPoolExecutor(self._workers, thread_name_prefix="leasehold-partition")
        self._looking = threading.Thread(target=self._look_around, name="leasehold-partitions", daemon=True)
        self._looking.start()

    def leave(self, *, within: float = 60.0) -> None:
        """Drain all partitions and give them back; with a grace, the place is kept for the next process.

        Work that has not ended `within` so many seconds keeps its lease, and so its partition, while it goes on.
        """
        looking, pool = self._looking, self._pool
        if looking is None or pool is None:
            return
        give_up_at = time.monotonic() + check_wait(within, what="within")
        self._over.set()
        self._wake.set()
        looking.join(max(give_up_at - time.monotonic(), 0.1))
        while not self._has_left():
            self._wake.clear()
            if time.monotonic() >= give_up_at:
                log().warning("%r leaves, and has work that does not end", self)
                break
            self._wake.wait(SHORT_PAUSE)
        pool.shutdown(wait=not self._crew.mine)
        place = self._crew.place
        if place is not None and not self._settings.grace:
            try:
                place.release()
            except LeaseholdError as error:
                log().info("the place in the roster is left to run out: %s", error)
        self._looking = None

    def _has_left(self) -> bool:
        try:
            return run_blocking(self._crew.leave())
        except LeaseholdError as error:
            # What could not be released is given back by the keeper, or runs out; the others are still to be released.
            log().warning("%r could not release a partition while it leaves: %s", self, error)
            return False

    def submit(self, entity: str, work: Callable[[Writer], T]) -> Future[T]:
        """Have `work` done with the entity's writer, after all that was submitted for the entity before.

        Raises `Moved` when another member owns the entity's partition, and `QueueFull` when too much waits there. The
        future has `Moved`, too, when the partition moved before the work was begun: submit it again, then.
        """
        future: Future[T] = Future()
        self._put(self._served(entity), Item(entity, work, future))
        return future

    def wait_owned(self, count: int, *, within: float) -> None:
        """Return when this member serves so many partitions; for start-up, and for tests."""
        give_up_at = time.monotonic() + check_wait(within, what="within")
        while len(self.owned) < count:
            if time.monotonic() >= give_up_at:
                raise self._too_few(count, within)
            time.sleep(SHORT_PAUSE)

    def serve(self, inbox: Inbox, handle: Handler, *, until: threading.Event, every: float = EVERY) -> None:
        """Handle what is put into an inbox for the partitions of this member, in order, until `until` is set.

        It is told of new messages where the inbox can tell, and looks every so many seconds, or sooner, where not.
        """
        feed, bell = Feed(inbox, handle), threading.Event()
        rounds = Rounds(check_wait(every, what="every"), feed.look_at)
        ear = Ear(inbox, bell.set)
        try:
            with self._bell.heard(bell.set):
                while not until.is_set():
                    bell.clear()
                    for number in rounds.wanted(inbox.waiting()):
                        owned = self._crew.mine.get(number)
                        if owned is not None and owned.serves:
                            future: Future[float] = Future()
                            future.add_done_callback(lambda one: bell.set() if rounds.has_gone_well(one) else None)
                            rounds.begin(number, future)
                            self._put_if_served(owned, Item(f"partition {number}", feed.work, future))
                    if _either(bell, until, rounds.pause()):
                        rounds.rung()
        finally:
            ear.close()

    def _future(self) -> Future[Any]:
        return Future()

    def _start(self, owned: Owned) -> None:
        if self._pool is not None:
            self._pool.submit(self._run, owned)

    def _run(self, owned: Owned) -> None:
        """Run one item, and let other partitions have their turn before the next one."""
        item = owned.next()
        while item is not None:
            if item.future.set_running_or_notify_cancel():
                try:
                    result = item.work(Writer(owned, item.entity))
                except BaseException as error:  # noqa: BLE001 - it is the caller's, who has the future
                    item.future.set_exception(error)
                else:
                    item.future.set_result(result)
            if not self._over.is_set():
                self._start(owned)
                return
            item = owned.next()  # the pool may be shut down, and nothing comes after what is left
        if owned.closing is not None:
            self._wake.set()

    def _open(self, number: int, lease: Lease) -> Owned:
        owned, warm = Owned(self._entities.group, number, lease, self._settings.most_queued), self._settings.warm

        def work(writer: Writer) -> None:
            try:
                if warm is not None:
                    warm(writer)
            except BaseException:
                owned.could_not_be_warmed()
                raise

        if warm is not None:
            self._put(owned, Item("", work, self._unawaited()))
        self._bell.ring()
        return owned

    def _look_around(self) -> None:
        while not self._over.is_set():
            self._wake.clear()
            pause = self._settings.every
            try:
                if run_blocking(self._crew.round()):
                    pause = min(pause, SHORT_PAUSE)
                self.trouble = None
            except LeaseholdError as error:
                self.trouble = error
                log().warning("%r could not look around, and goes on with what it has: %s", self, error)
            self._wake.wait(pause)

    def __enter__(self) -> Self:
        """Join."""
        self.join()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave."""
        self.leave()


def _either(bell: threading.Event, until: threading.Event, seconds: float) -> bool:
    """Wait for either, for so many seconds; whether it was the bell."""
    give_up_at = time.monotonic() + seconds
    while not until.is_set() and (left := give_up_at - time.monotonic()) > 0:
        if bell.wait(min(left, SHORT_PAUSE)):
            return True
    return False
