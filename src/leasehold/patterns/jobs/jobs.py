"""`Jobs` and `AsyncJobs`: make a job of a function, and see how all jobs are doing."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from itertools import islice
from typing import Any, Final, Generic, NamedTuple, Protocol, TypedDict, TypeVar, Unpack

from leasehold.core.worlds import run_blocking
from leasehold.errors import Misuse, quoted
from leasehold.keeping import log
from leasehold.names import check_name, check_namespace, check_ttl, check_wait
from leasehold.patterns.idempotency.records import LARGEST_RESULT, packed, unpacked
from leasehold.patterns.jobs.book import (
    MOST_COUNTED,
    Book,
    CatchUp,
    Ended,
    Missed,
    Open,
    Overlap,
    State,
    Step,
    Terms,
    tick_of,
)
from leasehold.patterns.jobs.ledger import Begun, Ledger, all_books, forget
from leasehold.patterns.jobs.schedules import Cron, Every, Schedule, schedule_from
from leasehold.patterns.notes import Notes

MOST_AT_ONCE: Final = 100
"""Ticks that one call catches up with."""


class Outcome(NamedTuple):
    """What came of asking for a job."""

    state: State
    tick: datetime
    """The tick that it was about, in UTC."""
    result: Any = None
    """What the run of that tick gave, by whomever it was."""
    missed: tuple[Missed, ...] = ()
    """What this call has reported as missed."""


@dataclass(frozen=True)
class JobStatus:
    """How a job is doing."""

    name: str
    schedule: str
    settled: datetime | None
    """All ticks up to this one are done, or were reported as missed."""
    under_way: Open | None
    """The tick that is worked on, or is to be tried again."""
    is_alive: bool
    """Whether a run of it is under way and was heard of in time."""
    behind: int | None
    """How many ticks are due and not settled; None for a schedule of your own."""
    runs: tuple[Ended, ...]
    missed: tuple[Missed, ...]
    missed_in_all: int


class Settings(TypedDict, total=False):
    """How a job treats ticks that come late, overlap or fail; see `Jobs`."""

    catch_up: CatchUp
    overlap: Overlap
    at_most_for: float
    at_least_for: float
    attempts: int
    backoff: float
    grace: float


class _JobRun:
    """One run of a job: that of one tick."""

    def __init__(self, job: _Job[Any], begun: Begun) -> None:
        self._job, self._begun = job, begun
        self._over = False
        self._on: Any = None

    @property
    def key(self) -> str:
        """The tick as text, of a fixed form."""
        return self._begun.open.tick

    @property
    def tick(self) -> datetime:
        """The tick, in UTC."""
        return tick_of(self.key)

    @property
    def token(self) -> int:
        """Greater than that of every earlier run of this job, whatever its tick: a fence for what the job writes."""
        return self._begun.token

    @property
    def attempt(self) -> int:
        """How often this tick has been begun, this run included."""
        return self._begun.open.attempt

    @property
    def point(self) -> str | None:
        """The last recovery point that an earlier run of this tick has reached; None if it reached none."""
        return self._begun.open.point or None

    @property
    def data(self) -> Any:
        """What was left at that recovery point."""
        return json.loads(self._begun.open.data or "null")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {quoted(self._job.name)} at {self.key} token={self.token}>"

    async def _renew(self) -> None:
        await self._job._ledger.hear(self._begun)

    async def _reach(self, point: str, data: object) -> None:
        check_name(point, what="recovery point")
        text = packed(data, self._job._largest_result)
        if text[:1] != "j":
            raise Misuse("what is left at a recovery point is JSON, not bytes")
        await self._job._ledger.hear(self._begun, (point, text[1:]))

    async def _complete(self, result: object, on: Any) -> None:
        if not hasattr(self._job._ledger.notes, "set_note_on"):
            raise Misuse("only a store in a SQL database can take part in your transaction")
        text = packed(result, self._job._largest_result)
        self._over, self._on = True, on  # from here on the outcome is that of the caller's transaction
        await self._job._ledger.finish(self._begun, text, on=on)


class JobRun(_JobRun):
    """One run of a job, for blocking code."""

    def renew(self) -> None:
        """Say that the run is alive; raises `StaleToken` when its tick is not its any more."""
        run_blocking(self._renew())

    def reach(self, point: str, data: object = None) -> None:
        """Note that the run has come this far, for one that must go on after a crash; also a sign of life."""
        run_blocking(self._reach(point, data))

    def complete(self, result: object, *, on: Any) -> None:
        """Note that the tick is done in the transaction that is open on your own connection: both commit, or neither.

        Afterwards return the same result from the job.
        """
        run_blocking(self._complete(result, on))


class AsyncJobRun(_JobRun):
    """One run of a job, for async code; see `JobRun`."""

    async def renew(self) -> None:
        """Say that the run is alive; raises `StaleToken` when its tick is not its any more."""
        await self._renew()

    async def reach(self, point: str, data: object = None) -> None:
        """Note that the run has come this far, for one that must go on after a crash; also a sign of life."""
        await self._reach(point, data)

    async def complete(self, result: object, *, on: Any) -> None:
        """Note that the tick is done in the transaction that is open on your own async connection; see `JobRun`."""
        await self._complete(result, on)


WorkT = TypeVar("WorkT")


class _Job(Generic[WorkT]):
    """What jobs of both worlds have in common."""

    def __init__(self, ledger: Ledger, work: WorkT, largest_result: int) -> None:
        self._ledger, self._work, self._largest_result = ledger, work, largest_result

    @property
    def name(self) -> str:
        """The job's name."""
        return self._ledger.name

    @property
    def _rounds(self) -> int:
        return MOST_AT_ONCE if self._ledger.terms.catch_up == "all" else 1

    @staticmethod
    def _at_rest(step: Step) -> Outcome:
        book = step.book
        result = unpacked(book.result) if step.state == "done before" and book.done == step.about else None
        return Outcome(step.state, tick_of(step.about), result, step.reported)

    async def _ended(self, run: _JobRun, result: object, reported: tuple[Missed, ...]) -> Outcome:
        try:
            text = packed(result, self._largest_result)
        except Misuse as error:
            # It was carried out, and would be again; that its result cannot be kept is to be put right first.
            await self._failed(run, error)
            raise
        if not run._over:
            await self._ledger.finish(run._begun, text)
        return Outcome("ran", run.tick, unpacked(text), reported)

    async def _failed(self, run: _JobRun, error: BaseException) -> None:
        if run._over and self._ledger.is_open_on(run._on):
            # To say so would wait for that transaction, which may wait for this.
            log().warning("%r has failed, and the transaction that ends it is open: it counts as under way", run)
        else:
            await self._ledger.fail(run._begun, f"{type(error).__name__}: {error}")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {quoted(self.name)}>"


class Job(_Job[Callable[[JobRun], Any]]):
    """A job of blocking code. Call it on every instance, as often as you like."""

    def __call__(self) -> Outcome:
        """Do the work of the tick that is due, unless it was done or is under way."""
        outcome = None
        for _ in range(self._rounds):
            step, begun = run_blocking(self._ledger.begin())
            if begun is None:
                return outcome or self._at_rest(step)
            run = JobRun(self, begun)
            try:
                result = self._work(run)
            except BaseException as error:
                run_blocking(self._failed(run, error))
                raise
            outcome = run_blocking(self._ended(run, result, step.reported))
        assert outcome is not None
        return outcome


class AsyncJob(_Job[Callable[[AsyncJobRun], Awaitable[Any]]]):
    """A job of async code; see `Job`."""

    async def __call__(self) -> Outcome:
        """Do the work of the tick that is due, unless it was done or is under way."""
        outcome = None
        for _ in range(self._rounds):
            step, begun = await self._ledger.begin()
            if begun is None:
                return outcome or self._at_rest(step)
            run = AsyncJobRun(self, begun)
            try:
                result = await self._work(run)
            except BaseException as error:
                await self._failed(run, error)
                raise
            outcome = await self._ended(run, result, step.reported)
        assert outcome is not None
        return outcome


class _Decorator(Protocol):
    """Makes a job of a function of blocking code."""

    def __call__(self, work: Callable[[JobRun], Any], /) -> Job: ...


class _AsyncDecorator(Protocol):
    """Makes a job of a function of async code."""

    def __call__(self, work: Callable[[AsyncJobRun], Awaitable[Any]], /) -> AsyncJob: ...


DecoratorT = TypeVar("DecoratorT")


class _Jobs(ABC, Generic[DecoratorT]):
    """Jobs whose books are kept in one store."""

    def __init__(
        self, store: Notes, *, namespace: str = "", largest_result: int = LARGEST_RESULT, **settings: Unpack[Settings]
    ) -> None:
        """Keep the books of jobs in `store`. Each job may have settings of its own; these are the usual ones.

        `catch_up`: after ticks were missed, do the ``"latest"``, or ``"all"`` in their order, or ``"skip"`` what is
        later than `grace` seconds. `overlap`: a tick that comes while a run is under way goes into the ``"queue"``, or
        is left out (``"skip"``), or takes the place of the run (``"replace"``). A run is taken for crashed when it was
        silent for `at_most_for` seconds (``run.renew()`` and ``run.reach(…)`` are signs of life), and the next begins
        no sooner than `at_least_for` seconds after it began. A tick is begun at most `attempts` times, with at least
        `backoff` seconds in between at first and twice as many each time.
        """
        if type(largest_result) is not int or not 0 < largest_result <= 8 * 1024 * 1024:
            raise Misuse(f"largest_result is a number of bytes from 1 to 8388608, not {quoted(largest_result)}")
        self._store, self._namespace = store, check_namespace(namespace)
        self._largest_result, self._settings = largest_result, settings
        checked(settings)

    def _ledger(self, schedule: Schedule, name: str, settings: Settings) -> Ledger:
        if not callable(getattr(schedule, "latest", None)) or not callable(getattr(schedule, "after", None)):
            raise Misuse(f"a schedule is Every(…), Cron(…) or has the methods latest and after, not {quoted(schedule)}")
        terms = checked({**self._settings, **settings})
        return Ledger(self._store, check_name(name), namespace=self._namespace, schedule=schedule, terms=terms)

    def once_per(self, period: str | float, *, name: str, **settings: Unpack[Settings]) -> DecoratorT:
        """Make a job of a function: once for each period, such as ``"15m"`` or ``"1d"``."""
        return self.on(Every(period), name=name, **settings)

    def cron(self, expression: str, *, name: str, zone: tzinfo = UTC, **settings: Unpack[Settings]) -> DecoratorT:
        """Make a job of a function: once for each tick of a cron expression in a time zone."""
        return self.on(Cron(expression, zone), name=name, **settings)

    @abstractmethod
    def on(self, schedule: Schedule, *, name: str, **settings: Unpack[Settings]) -> DecoratorT:
        """Make a job of a function, on a schedule of your own."""


class Jobs(_Jobs[_Decorator]):
    """Jobs of blocking code."""

    def on(self, schedule: Schedule, *, name: str, **settings: Unpack[Settings]) -> _Decorator:
        """Make a job of a function, on a schedule of your own."""
        ledger = self._ledger(schedule, name, settings)
        return lambda work: Job(ledger, work, self._largest_result)

    def status(self) -> list[JobStatus]:
        """How all jobs are doing that were ever asked for."""
        return [status_of(*one) for one in books_by_name(*run_blocking(all_books(self._store, self._namespace)))]

    def forget(self, name: str, *, because: str) -> bool:
        """Begin a new book for a job, as an operator, with the tick of that moment; False when there is none."""
        return run_blocking(forget(self._store, self._namespace, check_name(name), check_name(because, what="because")))


class AsyncJobs(_Jobs[_AsyncDecorator]):
    """Jobs of async code."""

    def on(self, schedule: Schedule, *, name: str, **settings: Unpack[Settings]) -> _AsyncDecorator:
        """Make a job of an async function, on a schedule of your own."""
        ledger = self._ledger(schedule, name, settings)
        return lambda work: AsyncJob(ledger, work, self._largest_result)

    async def status(self) -> list[JobStatus]:
        """How all jobs are doing that were ever asked for."""
        return [status_of(*one) for one in books_by_name(*await all_books(self._store, self._namespace))]

    async def forget(self, name: str, *, because: str) -> bool:
        """Begin a new book for a job, as an operator; see `Jobs.forget`."""
        return await forget(self._store, self._namespace, check_name(name), check_name(because, what="because"))


def books_by_name(now: float, books: dict[str, Book]) -> list[tuple[str, Book, float]]:
    """One for each job."""
    return [(name, book, now) for name, book in sorted(books.items())]


def status_of(name: str, book: Book, now: float) -> JobStatus:
    """What a book says."""
    schedule = schedule_from(book.schedule)
    behind = None
    if schedule is not None and book.settled():
        moment = datetime.fromtimestamp(now, UTC)
        since = tick_of(book.cursor) if book.cursor else None
        ticks = schedule.after(since or tick_of(book.settled()))
        behind = sum(1 for _ in _until(moment, ticks)) + (since is None)
    return JobStatus(
        name=name,
        schedule=book.schedule,
        settled=tick_of(book.cursor) if book.cursor else None,
        under_way=book.open,
        is_alive=book.open is not None and book.open.is_alive(now),
        behind=behind,
        runs=book.runs,
        missed=book.missed,
        missed_in_all=book.missed_in_all,
    )


def _until(moment: datetime, ticks: Any) -> Any:
    for tick in islice(ticks, MOST_COUNTED):
        if tick > moment:
            return
        yield tick


def checked(settings: Settings) -> Terms:
    """The settings, or `Misuse` that says what is wrong with them."""
    unknown = set(settings) - set(Settings.__annotations__)
    if unknown:
        raise Misuse(f"there is no setting {quoted(min(unknown))}; there are {', '.join(Settings.__annotations__)}")
    terms = Terms(**settings)
    if terms.catch_up not in ("latest", "all", "skip"):
        raise Misuse(f"catch_up is 'latest', 'all' or 'skip', not {quoted(terms.catch_up)}")
    if terms.overlap not in ("queue", "skip", "replace"):
        raise Misuse(f"overlap is 'queue', 'skip' or 'replace', not {quoted(terms.overlap)}")
    if type(terms.attempts) is not int or not 1 <= terms.attempts <= 1_000_000:
        raise Misuse(f"attempts is an int from 1 to 1000000, not {quoted(terms.attempts)}")
    check_ttl(terms.at_most_for, what="at_most_for")
    for what in ("at_least_for", "backoff", "grace"):
        check_wait(getattr(terms, what), what=what)
    return terms
