"""The book of one job: which ticks are settled, which one is worked on, and what was missed. Pure functions.

A tick is settled when its run has ended well, or when it was reported as missed. The book holds a cursor, up to which
all ticks are settled, and at most one tick beyond it that is open: begun, and neither done nor given up. Whoever writes
the book does so on the condition that nobody else has since it was read, so every change here is one atomic step.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final, Literal

from leasehold.patterns.jobs.schedules import Schedule

CatchUp = Literal["latest", "all", "skip"]
Overlap = Literal["queue", "skip", "replace"]
State = Literal["ran", "done before", "under way", "waiting", "missed"]

MOST_RUNS, MOST_MISSED = 20, 50
"""How many of the last runs and of the last reports the book keeps."""
MOST_COUNTED: Final = 10_000
LONGEST_BACKOFF: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Terms:
    """How a job treats ticks that come late, overlap or fail."""

    catch_up: CatchUp = "latest"
    overlap: Overlap = "queue"
    at_most_for: float = 3600.0
    at_least_for: float = 0.0
    attempts: int = 10
    backoff: float = 10.0
    grace: float = 60.0


@dataclass(frozen=True, slots=True)
class Missed:
    """Ticks that were not done and will not be: reported, once."""

    first: str
    last: str
    count: int
    """How many they are; `MOST_COUNTED` stands for that many or more."""
    why: str
    at: float
    """When that was found out, by the store's clock."""


@dataclass(frozen=True, slots=True)
class Ended:
    """One run that has ended, well or not."""

    tick: str
    run: str
    state: Literal["done", "failed", "crashed", "replaced"]
    by: str
    began: float
    ended: float
    attempt: int
    error: str = ""
    overran: bool = False
    """Whether it took longer than there is time until the next tick."""


@dataclass(frozen=True, slots=True)
class Open:
    """The tick that is worked on, or is to be tried again."""

    tick: str
    attempt: int
    run: str = ""
    """Empty when its last run has ended, and failed."""
    by: str = ""
    began: float = 0.0
    expires: float = 0.0
    """A run of which nothing was heard until then is taken for crashed."""
    not_before: float = 0.0
    error: str = ""
    point: str = ""
    data: str = ""

    def is_alive(self, now: float) -> bool:
        """Whether a run is under way."""
        return bool(self.run) and self.expires > now


@dataclass(frozen=True, slots=True)
class Book:
    """All that is known of a job."""

    schedule: str = ""
    cursor: str = ""
    """All ticks up to this one are done, or were reported; empty before the first."""
    passed: str = ""
    """Ticks beyond the open one, up to this one, were reported as missed already; empty: none."""
    open: Open | None = None
    token: int = 0
    """How many runs were begun; the last one's token."""
    quiet_until: float = 0.0
    done: str = ""
    """The last tick that was done, and its result."""
    result: str = ""
    runs: tuple[Ended, ...] = ()
    missed: tuple[Missed, ...] = ()
    missed_in_all: int = 0

    def settled(self) -> str:
        """The last tick of which nothing more is to be done, once the open one has been settled."""
        return max(self.open.tick if self.open else "", self.passed, self.cursor)


def as_text(book: Book) -> str:
    """The book as it is stored: in ASCII, which every store can take, whatever stands in the error of a run."""
    return json.dumps(asdict(book), separators=(",", ":"))


def from_text(text: str) -> Book:
    """The book as it was stored; an empty one when nothing was."""
    if not text:
        return Book()
    kept: dict[str, Any] = json.loads(text)
    kept["open"] = Open(**kept["open"]) if kept["open"] else None
    kept["runs"] = tuple(Ended(**one) for one in kept["runs"])
    kept["missed"] = tuple(Missed(**one) for one in kept["missed"])
    return Book(**kept)


def key_of(tick: datetime) -> str:
    """A tick as text: of a fixed form, so that texts compare as the ticks do.

    >>> key_of(datetime(2026, 3, 1, 12, 30, tzinfo=UTC))
    '2026-03-01T12:30:00.000000+00:00'
    """
    return tick.astimezone(UTC).isoformat(timespec="microseconds")


def tick_of(key: str) -> datetime:
    """The tick again."""
    return datetime.fromisoformat(key)


@dataclass(frozen=True, slots=True)
class Step:
    """What comes of asking for a job: the book as it is to be now, and what that means for who asked."""

    book: Book
    state: State
    about: str
    begun: Open | None = None
    """What the one who asked is to do."""
    reported: tuple[Missed, ...] = field(default=())


class Asking:
    """One instance asks what there is to do."""

    def __init__(self, book: Book, schedule: Schedule, terms: Terms, now: float) -> None:
        self._book, self._schedule, self._terms, self._now = _bounded(book, terms, now), schedule, terms, now
        self._latest = key_of(schedule.latest(datetime.fromtimestamp(now, UTC)))
        self._reported: list[Missed] = []

    def decide(self, run: str, by: str) -> Step:
        """Begin what is due, by this run, or say why nothing is begun."""
        tick = self._open_tick()
        if isinstance(tick, Step):
            return tick
        if tick is None:
            tick = self._next_tick()
        return tick if isinstance(tick, Step) else self._begin(tick, run, by)

    # What is open

    def _open_tick(self) -> Open | Step | None:
        """The open tick if it is to be tried again; None when nothing is open any more."""
        one = self._book.open
        if one is None:
            return None
        if one.is_alive(self._now):
            return self._beside(one)
        if one.run:
            one = self._crashed(one)
        if one.attempt >= self._terms.attempts:
            self._give_up(one, f"given up after {one.attempt} attempts: {one.error}")
            return None
        if self._terms.catch_up != "all" and self._latest > self._book.settled():
            self._give_up(one, f"a later tick has come: {one.error}")
            return None
        if self._is_too_late(one.tick):
            self._give_up(one, f"too late for another attempt: {one.error}")
            return None
        return self._rest("waiting", one.tick) if self._now < one.not_before else one

    def _beside(self, one: Open) -> Step | None:
        """Another run is under way."""
        newer, overlap = self._latest > self._book.settled(), self._terms.overlap
        if newer and overlap == "replace":
            self._book = with_run(self._book, ended(one, "replaced", self._now, "a later tick has come"))
            self._give_up(one, "replaced by a later tick")
            return None
        if newer and overlap == "skip":
            self._report(self._book.settled(), self._latest, "another run was under way")
            self._book = replace(self._book, passed=self._latest)
        return self._rest("under way", one.tick)

    def _crashed(self, one: Open) -> Open:
        gone = ended(one, "crashed", self._now, "nothing was heard of it any more")
        one = replace(one, run="", error="crashed")  # `at_most_for` was pause enough
        self._book = replace(with_run(self._book, gone), open=one)
        return one

    def _give_up(self, one: Open, why: str) -> None:
        self._add(Missed(one.tick, one.tick, 1, why, self._now))
        self._book = replace(self._book, cursor=self._book.settled(), open=None, passed="")

    # What comes next

    def _next_tick(self) -> Open | Step:
        """The next tick, when nothing is open."""
        cursor, latest = self._book.cursor, self._latest
        if cursor and latest <= cursor:
            return self._rest("done before" if self._book.done >= latest else "missed", latest)
        if self._now < self._book.quiet_until:
            return self._rest("waiting", latest)
        if self._is_too_late(latest):
            # Before a job is known for the first time, nothing can be missed.
            if cursor:
                self._report(cursor, latest, "nobody asked in time")
            self._book = replace(self._book, cursor=latest)
            return self._rest("missed", latest)
        if not cursor:
            return Open(latest, 0)
        first = key_of(next(self._schedule.after(tick_of(cursor))))
        if self._terms.catch_up == "all":
            return Open(first, 0)
        if first < latest:
            self._report(cursor, latest, "a later tick has come", including=False)
        return Open(latest, 0)

    def _is_too_late(self, tick: str) -> bool:
        return self._terms.catch_up == "skip" and self._now - tick_of(tick).timestamp() > self._terms.grace

    def _begin(self, one: Open, run: str, by: str) -> Step:
        begun = replace(
            one,
            attempt=one.attempt + 1,
            run=run,
            by=by,
            began=self._now,
            expires=self._now + self._terms.at_most_for,
            not_before=0.0,
        )
        book = replace(self._book, open=begun, token=self._book.token + 1, schedule=str(self._schedule))
        return Step(book, "ran", one.tick, begun, tuple(self._reported))

    def _rest(self, state: State, about: str) -> Step:
        return Step(self._book, state, about, reported=tuple(self._reported))

    # Reports

    def _report(self, after: str, last: str, why: str, *, including: bool = True) -> None:
        count, first, end = 0, "", ""
        for tick in islice(self._schedule.after(tick_of(after)), MOST_COUNTED):
            key = key_of(tick)
            if key > last or (key == last and not including):
                break
            count, first, end = count + 1, first or key, key
        self._add(Missed(first, last if count == MOST_COUNTED else end, count, why, self._now))

    def _add(self, missed: Missed) -> None:
        self._reported.append(missed)
        book = self._book
        self._book = replace(
            book,
            missed=(*book.missed, missed)[-MOST_MISSED:],
            missed_in_all=book.missed_in_all + missed.count,
        )


def _bounded(book: Book, terms: Terms, now: float) -> Book:
    """When the store's clock was set back, nobody waits for longer than anybody ever would."""
    quiet_until = min(book.quiet_until, now + terms.at_least_for)
    one = book.open
    if one is not None:
        expires = min(one.expires, now + terms.at_most_for)
        not_before = min(one.not_before, now + _backoff(terms, one.attempt))
        one = replace(one, expires=expires, not_before=not_before)
    return replace(book, open=one, quiet_until=quiet_until)


def _backoff(terms: Terms, attempt: int) -> float:
    return min(terms.backoff * 2.0 ** min(attempt - 1, 30), max(LONGEST_BACKOFF, terms.backoff))


def ended(one: Open, state: Any, now: float, error: str = "", *, overran: bool = False) -> Ended:
    """The end of a run, for the record."""
    return Ended(one.tick, one.run, state, one.by, one.began, now, one.attempt, error, overran)


def with_run(book: Book, run: Ended) -> Book:
    """The book with one more run in it."""
    return replace(book, runs=(*book.runs, run)[-MOST_RUNS:])


def has_ended(book: Book, run: str) -> bool:
    """Whether this run has ended already: its word was heard, and the answer was lost."""
    return any(one.run == run and one.state in ("done", "failed") for one in book.runs)


def finish(book: Book, run: str, now: float, *, result: str, schedule: Schedule, terms: Terms) -> Book | None:
    """The open tick is done; None when it is not this run's any more."""
    one = book.open
    if one is None or one.run != run:
        return None
    tick = tick_of(one.tick)
    overran = now - one.began > (next(schedule.after(tick)) - tick).total_seconds()
    return replace(
        with_run(book, ended(one, "done", now, overran=overran)),
        cursor=book.settled(),
        passed="",
        open=None,
        done=one.tick,
        result=result,
        quiet_until=one.began + terms.at_least_for,
    )


def fail(book: Book, run: str, now: float, error: str, terms: Terms) -> tuple[Book, Missed | None] | None:
    """The run has failed; its tick is tried again later, or given up and reported. None when it is not its any more."""
    one = book.open
    if one is None or one.run != run:
        return None
    book = with_run(book, ended(one, "failed", now, error))
    if one.attempt >= terms.attempts:
        missed = Missed(one.tick, one.tick, 1, f"given up after {one.attempt} attempts: {error}", now)
        book = replace(
            book,
            cursor=book.settled(),
            passed="",
            open=None,
            missed=(*book.missed, missed)[-MOST_MISSED:],
            missed_in_all=book.missed_in_all + 1,
        )
        return book, missed
    waits = replace(one, run="", error=error, not_before=now + _backoff(terms, one.attempt))
    return replace(book, open=waits), None


def hear(book: Book, run: str, now: float, terms: Terms, reached: tuple[str, str] | None = None) -> Book | None:
    """A sign of life of a run, and the recovery point that it has reached; None when it was taken for crashed."""
    one = book.open
    if one is None or one.run != run:
        return None
    point, data = reached or (one.point, one.data)
    return replace(book, open=replace(one, expires=now + terms.at_most_for, point=point, data=data))


def disbelieve(book: Book, now: float, why: str) -> Book:
    """A run that is under way is over, whatever it may believe: its tick can be begun again at once."""
    one = book.open
    if one is None or not one.run:
        return book
    gone = ended(one, "crashed", now, why)
    return replace(with_run(book, gone), open=replace(one, run="", error="crashed", not_before=now))
