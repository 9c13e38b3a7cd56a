"""Leases in the tables of an SQL server: what is the same for every such server.

An exclusive lease on a free name costs one statement to take and one to give back; each engine writes these two in its
own words, and `renew` for many at once. Everything else is the lease table of `leasehold.core.table`: the name's row
is locked, the entry loaded, and what the lease table has changed is written, in two round trips where the server takes
several statements at a time.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from leasehold.core import table
from leasehold.core.engine import Busy, Facts, Grant, Incumbent, NameStatus, Purpose, Renewal, Suspect, Want
from leasehold.core.table import Ask, Place, Refused, Released, Taken
from leasehold.core.worlds import World
from leasehold.engines.sense import sensible
from leasehold.errors import EngineError, EngineUnavailable, LeaseholdError
from leasehold.keeping import log
from leasehold.wires.sql_table import SWEEP_AT_ONCE, WHOLE_QUEUE, LeaseTable, Raced, Record, Request, Row
from leasehold.wires.sqlite_rows import depth_for

LEAST_TTL = 0.05
RENEWED_AT_ONCE = 500
SWEEP_EVERY = 256
"""Takes after which some names are swept: at least as many names as can have been added meanwhile, twice over."""
MOST_CROWDED = 1024
"""Names that are remembered to be crowded."""
MOST_LAPSED_IN_A_SWEEP = 16
START = ("", "")

T = TypeVar("T")


class Line(Protocol):
    """One connection, for one transaction."""

    async def ask_all(self, requests: Sequence[Request], until: float, *, commits: bool) -> list[list[Row]]:
        """Send requests together and return their rows.

        Without an answer to those that do not commit, nothing was carried out. Raises `Raced` for a row that is there
        already.
        """
        ...


LineT = TypeVar("LineT", bound=Line)


class SqlWire(Protocol[LineT]):
    """Our path to the server, in one of the worlds."""

    @property
    def world(self) -> World:
        """The world that it blocks or suspends in."""
        ...

    async def lend(self, until: float) -> LineT:
        """A connection, to be given back in good order, or else dropped."""
        ...

    def give_back(self, line: LineT) -> None:
        """It is in no transaction, and owes no answer."""
        ...

    def drop(self, line: LineT, error: BaseException) -> None:
        """Close one that may be in a transaction, which undoes it; the error may say more about the others, too."""
        ...

    async def listen(self, holder: str, patience: float, until: float) -> str:
        """Be ready for the wake-ups of a holder, before it is queued; returns the address to queue it with.

        Whether one that will wait for so long is worth the effort is up to the wire.
        """
        ...

    def awaits(self, holder: str) -> bool:
        """Whether this holder listens: it was queued from here, and has neither left nor been handed the name."""
        ...

    def wait(self, holder: str, until: float) -> Coroutine[Any, Any, Grant | None]:
        """Return when this holder is woken or cannot be woken any more, or at `until`; with what it was handed."""
        ...

    def ignore(self, holder: str) -> None:
        """No more wake-ups for this holder."""
        ...

    def distrust(self) -> None:
        """An answer made no sense: close what is idle."""
        ...

    async def close(self) -> None:
        """Close connections."""
        ...


class Changed(NamedTuple, Generic[T]):
    """What the lease table did to an entry."""

    answer: T
    wake: Place | None = None
    lazy: bool = False
    """Whether a crash of the server may undo it without harm, so that nobody has to wait for the disk."""


Step = Callable[[Record], Changed[T]]


class SqlLeaseEngine(ABC, Generic[LineT]):
    """The operations, the same in both worlds and on every SQL server."""

    begin: Request
    commit: Request
    read: Request
    """Begins a transaction in which all reads see the same state."""
    lazily: Request | None = None
    """Makes a transaction not wait for the disk."""

    def __init__(self, facts: Facts, leases: LeaseTable, wire: SqlWire[LineT]) -> None:
        self.facts, self.world = facts, wire.world
        self._leases, self._wire = leases, wire
        # Names that were last seen with a queue or with several holders: there a single statement will not do.
        self._crowded: set[str] = set()
        self._takes_until_sweep = 1 + int(self.world.chance() * SWEEP_EVERY)
        self._swept_to = START

    # What each kind of server says in its own words

    @abstractmethod
    async def _take_free(self, want: Want, until: float) -> int:
        """Take a name that is free and that nobody waits for, in one statement; returns the token, or 0."""

    @abstractmethod
    async def _release_alone(self, name: str, holder: str, until: float) -> bool:
        """Give back an exclusive lease that nobody waits for, in one statement; False when it is not as simple."""

    async def _take_turn(self, want: Want, until: float) -> int:  # noqa: ARG002 -- the lease table does it as well
        """Take a free name as the head of its queue, where the server can do so at once; returns the token, or 0."""
        return 0

    async def _queue_at_once(self, name: str, ask: Ask, until: float) -> Refused | None:  # noqa: ARG002
        """Be put into the queue for a name that somebody else holds, where the server can do so at once.

        Returns what the lease table would say; None when it is not as simple.
        """
        return None

    async def _release_to_next(self, name: str, holder: str, until: float) -> Changed[bool] | None:  # noqa: ARG002
        """Give back an exclusive lease and wake the head of the queue, where the server can do so at once.

        It may also hand the name to the head, where the lease table may. Returns whether it is still crowded, and whom
        nobody hears for; None when it is not as simple.
        """
        return None

    @abstractmethod
    async def _renew_some(self, leases: Sequence[Renewal], until: float) -> list[bool]:
        """The lease table's `renew`, for many at once."""

    @abstractmethod
    def _wake_up(self, place: Place) -> Request | None:
        """A request that wakes a waiter when it is committed, and answers whether somebody is there to be woken."""

    def _nudges(self, place: Place) -> list[Request]:  # noqa: ARG002 -- most servers need none
        """What to send behind the commit, where a wake-up that is committed is not heard of by itself."""
        return []

    @abstractmethod
    async def check_purpose(self, purpose: Purpose, *, until: float) -> None:
        """Warn when this deployment cannot keep what the purpose needs."""

    @abstractmethod
    def forked(self) -> None:
        """In a forked child: let go of every inherited connection of the family."""

    # The operations

    def distrust(self) -> None:
        """An answer made no sense: go on with new connections."""
        self._wire.distrust()

    @sensible
    async def take(
        self, want: Want, *, until: float, patience: float | None = None, suspect: Suspect | None = None
    ) -> Grant | Busy:
        """Take the name and mint its token in one atomic step, or say why not."""
        self._takes_until_sweep -= 1
        if self._takes_until_sweep <= 0:
            self._takes_until_sweep = SWEEP_EVERY
            await self._sweep(until)
        if suspect is None and want.mode == "exclusive":
            token = await self._take_at_once(want, until)
            if token:
                return Grant(token)
        if patience is None:
            answer = await self._take_by_table(want, None, "", suspect, until)
        else:
            answer = await self._take_or_queue(want, patience, suspect, until)
        if isinstance(answer, Taken):
            return Grant(answer.token)
        seat = answer.incumbent
        incumbent = _incumbent(seat.token, seat.beat, seat.lasts, seat.about) if seat is not None else None
        return Busy(answer.ask_again / 1e6, incumbent)

    async def _take_at_once(self, want: Want, until: float) -> int:
        """Take the name in the cases that are usual and simple; returns the token, or 0."""
        if want.name not in self._crowded:
            return await self._take_free(want, until)
        if not self._wire.awaits(want.holder):
            return 0
        token = await self._take_turn(want, until)
        if token:
            self._wire.ignore(want.holder)
        return token

    async def _take_or_queue(
        self, want: Want, patience: float, suspect: Suspect | None, until: float
    ) -> Taken | Refused:
        """Listen first, and then be queued: no wake-up can come before somebody is there to hear it."""
        expected, comes_back = False, self._wire.awaits(want.holder)
        answer: Taken | Refused | None = None
        try:
            address = await self._wire.listen(want.holder, patience, until)
            if suspect is None and not comes_back:
                answer = await self._queue_at_once(want.name, Ask.of(want, patience, address, None), until)
            if answer is None:
                answer = await self._take_by_table(want, patience, address, suspect, until)
            else:
                self._note_crowd(want.name, crowded=True)
            expected = isinstance(answer, Refused)
        finally:
            if not expected:
                self._wire.ignore(want.holder)
        return answer

    async def _take_by_table(
        self, want: Want, patience: float | None, address: str, suspect: Suspect | None, until: float
    ) -> Taken | Refused:
        ask = Ask.of(want, patience, address, suspect)

        def take(record: Record) -> Changed[Taken | Refused]:
            answer = table.take(record.entry, ask, record.now, record.now)
            # A grant is on the disk before it is believed in; a place in the queue is taken again if it was lost.
            return Changed(answer, answer.wake) if isinstance(answer, Taken) else Changed(answer, lazy=True)

        return await self._change(
            want.name, want.holder, take, lambda record: depth_for(record.entry, ask, record.now), until
        )

    def wait(self, want: Want, until: float) -> Coroutine[Any, Any, Grant | None]:
        """Return when the queued asker is woken, or at `until`, with the grant where it was handed the name."""
        # No coroutine of its own: each of thousands of waiting tasks would keep one.
        return self._wire.wait(want.holder, until)

    @sensible
    async def renew(self, leases: Sequence[Renewal], *, until: float) -> list[bool]:
        """Prolong each lease that is still held; False for those that are not."""
        kept: list[bool] = []
        for start in range(0, len(leases), RENEWED_AT_ONCE):
            kept += await self._renew_some(leases[start : start + RENEWED_AT_ONCE], until)
        return kept

    @sensible
    async def release(self, name: str, holder: str, *, until: float) -> bool:
        """Give the name back, and leave its queue. False when it was not held by this holder any more."""
        self._wire.ignore(holder)
        if name not in self._crowded and await self._release_alone(name, holder, until):
            return True
        if (changed := await self._release_to_next(name, holder, until)) is not None:
            self._note_crowd(name, crowded=changed.answer)
            if changed.wake is not None:
                await self._wake_another(name, changed.wake, until)
            return True
        return (await self._release_by_table(name, holder, until)).held

    async def _release_by_table(self, name: str, holder: str, until: float) -> Released:
        def release(record: Record) -> Changed[Released]:
            answer = table.release(record.entry, holder, record.now)
            return Changed(answer, answer.wake, lazy=True)

        # The head of the queue is needed, and who follows if the head itself leaves.
        return await self._change(name, holder, release, lambda _: 2, until)

    @sensible
    async def status(self, name: str, *, until: float) -> NameStatus | None:
        """Who holds and who waits; None when the server knows nothing of this name."""
        load = self._leases.load(name, depth=WHOLE_QUEUE, lock=False)
        [_, *answers, _] = await self._ask_all([self.read, *load, self.commit], until)
        return self._leases.record(name, answers, depth=WHOLE_QUEUE).status()

    @sensible
    async def names(self, *, after: str | None, limit: int, until: float) -> list[str]:
        """Names that are held or waited for, in the order of their bytes, following `after`."""
        [rows] = await self._ask_all([self._leases.names(after or "", limit)], until)
        return [name for [name] in rows]

    @sensible
    async def force_release(self, name: str, *, until: float) -> int:
        """End every lease on the name and mint a token above theirs; returns that token."""

        def end_all(record: Record) -> Changed[int]:
            return Changed(*table.force_release(record.entry, record.now, record.now))

        return await self._change(name, "", end_all, lambda _: 1, until)

    async def close(self) -> None:
        """Give back connections. The engine may be used again and then reconnects."""
        await self._wire.close()

    # How an entry is changed

    async def _ask_all(self, requests: Sequence[Request], until: float, *, commits: bool = False) -> list[list[Row]]:
        """Send requests together, on any connection."""
        line = await self._wire.lend(until)
        try:
            answers = await line.ask_all(requests, until, commits=commits)
        except BaseException as error:
            self._wire.drop(line, error)
            raise
        self._wire.give_back(line)
        return answers

    async def _change(self, name: str, holder: str, step: Step[T], depth: Callable[[Record], int], until: float) -> T:
        """Change an entry, and see to it that somebody is woken who is to be woken."""
        changed, told = await self._change_and_tell(name, holder, step, depth, until)
        if changed.wake is not None and not told:
            await self._wake_another(name, changed.wake, until)
        return changed.answer

    async def _change_and_tell(
        self, name: str, holder: str, step: Step[T], depth: Callable[[Record], int], until: float
    ) -> tuple[Changed[T], bool]:
        """Lock an entry, let the lease table work on it, write what has changed, and tell who is to be woken.

        Returns also whether somebody was there to be woken.
        """
        while True:
            try:
                return await self._change_once(name, holder, step, depth, until, leases=self._leases)
            except Raced:
                if self.world.now() >= until:
                    raise EngineUnavailable(f"{self.facts.address}: others kept adding this name; try again") from None

    async def _change_once(
        self, name: str, holder: str, step: Step[T], depth: Callable[[Record], int], until: float, *, leases: LeaseTable
    ) -> tuple[Changed[T], bool]:
        """Returns also whether somebody was there to be woken."""
        line = await self._wire.lend(until)
        try:
            [_, *answers] = await line.ask_all([self.begin, *leases.load(name, holder)], until, commits=False)
            record = leases.record(name, answers)
            needed = depth(record)
            while (after := record.lacks(needed)) is not None:
                more = leases.places(name, holder, after=after, limit=needed)
                [rows] = await line.ask_all([more], until, commits=False)
                record.add_places(rows, needed)
            changed = step(record)
            wake = self._wake_up(changed.wake) if changed.wake is not None else None
            writes = [self.lazily] if self.lazily is not None and changed.lazy else []
            writes += record.changes()
            nudges = []
            if changed.wake is not None and wake is not None:
                writes.append(wake)
                nudges = self._nudges(changed.wake)
            answers = await line.ask_all([*writes, self.commit, *nudges], until, commits=True)
        except BaseException as error:
            self._wire.drop(line, error)
            raise
        self._wire.give_back(line)
        self._note_crowd(name, crowded=record.crowd != 0)
        return changed, wake is None or bool(answers[len(writes) - 1][0][0])

    def _note_crowd(self, name: str, *, crowded: bool) -> None:
        if not crowded:
            self._crowded.discard(name)
        elif len(self._crowded) < MOST_CROWDED:
            self._crowded.add(name)

    async def _wake_another(self, name: str, place: Place, until: float) -> None:
        """A waiter that nobody hears for any more leaves the queue, which wakes the next one; thousands may be gone.

        What led to this is done and cannot fail any more. A waiter that is not woken asks again by itself, later.
        """

        def pass_by(unheard: Place, record: Record) -> Changed[None]:
            return Changed(None, table.pass_by(record.entry, unheard, record.now), lazy=True)

        unheard: Place | None = place
        try:
            while unheard is not None:
                step = functools.partial(pass_by, unheard)
                changed, told = await self._change_and_tell(name, unheard.holder, step, lambda _: 2, until)
                unheard = None if told else changed.wake
        except LeaseholdError as error:
            log().warning("a waiter for %s could not be woken and will ask again later: %s", ascii(name), error)

    # Names that nobody uses any more

    async def _sweep(self, until: float) -> None:
        """Forget some names that nobody has used for a day, and put in order some that were left in disorder."""
        try:
            [page] = await self._ask_all([self._leases.page(self._swept_to)], until)
            forget = self._leases.forget(row for row in page if row[3])
            if forget:
                await self._ask_all([self.begin, *forget, self.commit], until, commits=True)
            for namespace, name, *_ in [row for row in page if row[4]][:MOST_LAPSED_IN_A_SWEEP]:
                await self._change_once(
                    name, "", _lapse, lambda _: WHOLE_QUEUE, until, leases=self._leases.within(namespace)
                )
            self._swept_to = page[-1][:2] if len(page) == SWEEP_AT_ONCE else START
        except EngineError as error:
            # The request that comes next meets the same trouble, and tells its caller.
            log().debug("names that nobody uses could not be swept: %s", error)


def _lapse(record: Record) -> Changed[None]:
    record.lapse()
    return Changed(None, lazy=True)


@functools.lru_cache(maxsize=64)
def _incumbent(token: int, beat: int, lasts: int, about: str) -> Incumbent:
    """Who holds the name; thousands of tasks that wait for it keep one answer between them."""
    return Incumbent(token, beat, lasts / 1e6, about)
