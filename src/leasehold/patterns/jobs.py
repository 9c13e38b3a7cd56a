"""Once-only jobs: a scheduled job on many instances runs once for each tick.

A run is keyed by its tick, in the time of the store that all instances share, not by an instance's own "now": clocks
that differ, schedulers that fire late or twice, and instances that start at the same second make no second run.

What it does not promise: that a run which crashed half way was not begun. The tick is run again by the next instance
that asks, with a higher token, and learns from recovery points how far the first one came.

>>> import pathlib, tempfile
>>> from leasehold.patterns.idempotency import SqlKeys
>>> store = SqlKeys(pathlib.Path(tempfile.mkdtemp()) / "app.db")
>>> store.create()
>>> @Jobs(store).once_per("1d", name="nightly-export")
... def export(run):
...     return "exported"
>>> [export().state, export().state]
['ran', 'done before']
>>> store.close()
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import islice
from typing import Any, Final, Generic, Literal, NamedTuple, Protocol, TypeVar

from leasehold.core.worlds import run_blocking
from leasehold.errors import InProgress, Misuse, quoted
from leasehold.names import check_name
from leasehold.patterns.idempotency.keys import DAY, AsyncIdempotency, AsyncRun, Idempotency, Run
from leasehold.patterns.idempotency.records import Store

CatchUp = Literal["latest", "all"]
MOST_MISSED: Final = 100
"""Ticks that are caught up with at a time, the oldest first."""
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
_SECONDS: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
LONGEST_PERIOD: Final = 3660 * DAY


class Outcome(NamedTuple):
    """What came of asking for a job."""

    state: Literal["ran", "done before", "under way"]
    tick: datetime
    """The tick that it was about, in UTC."""
    result: Any = None
    """What the run of that tick gave, by whomever it was."""


class Schedule(Protocol):
    """When a job is due."""

    def until(self, now: datetime) -> Iterator[datetime]:
        """The ticks up to now, the latest first; endless."""
        ...


class Every:
    """A tick at each multiple of a period since 1970, in UTC.

    >>> next(Every("15m").until(datetime(2026, 3, 1, 12, 44, tzinfo=UTC))).isoformat()
    '2026-03-01T12:30:00+00:00'
    """

    def __init__(self, period: str | float) -> None:
        self._period = seconds_of(period)

    def until(self, now: datetime) -> Iterator[datetime]:
        """The ticks up to now, the latest first."""
        number = int(now.timestamp() / self._period)
        while True:
            yield datetime.fromtimestamp(number * self._period, UTC)
            number -= 1


class Cron:
    """The ticks of a cron expression in a time zone: through DST changes as Debian's cron does it.

    >>> from zoneinfo import ZoneInfo
    >>> late = datetime(2026, 3, 29, 23, tzinfo=UTC)
    >>> next(Cron("30 2 * * *", ZoneInfo("Europe/Berlin")).until(late)).isoformat()  # there is no 02:30 on that day
    '2026-03-29T01:00:00+00:00'
    """

    def __init__(self, expression: str, zone: tzinfo = UTC) -> None:
        try:
            from cronsim import CronSim, CronSimError
        except ImportError:
            raise Misuse("cron expressions need the package cronsim: pip install 'leasehold[jobs]'") from None
        if not isinstance(zone, tzinfo):
            raise Misuse(f"a time zone is a tzinfo such as ZoneInfo('Europe/Berlin'), not {quoted(zone)}")
        try:
            CronSim(expression, datetime.now(zone))
        except (CronSimError, TypeError, AttributeError) as error:
            raise Misuse(f"{quoted(expression)} is no cron expression: {quoted(str(error))}") from None
        self._ticks, self._expression, self._zone = CronSim, expression, zone

    def until(self, now: datetime) -> Iterator[datetime]:
        """The ticks up to now, the latest first."""
        # It looks for ticks before the time that it is given, and this minute's own may be one.
        after = now.astimezone(self._zone).replace(second=0, microsecond=0) + timedelta(minutes=1)
        for tick in self._ticks(self._expression, after, reverse=True):
            yield tick.astimezone(UTC)


def seconds_of(period: str | float) -> float:
    """A period as people write it.

    >>> [seconds_of("15m"), seconds_of("1h30m"), seconds_of(0.5)]
    [900.0, 5400.0, 0.5]
    """
    if isinstance(period, str) and re.fullmatch(f"(?:{_PART.pattern})+", period):
        seconds = sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(period))
    elif type(period) in (int, float):
        seconds = float(period)
    else:
        seconds = 0.0
    if not 0.001 <= seconds <= LONGEST_PERIOD:
        raise Misuse(f"a period is a number of seconds or a text such as '15m' or '1h30m', not {quoted(period)}")
    return seconds


def _key(tick: datetime) -> str:
    return tick.isoformat(timespec="milliseconds")


class _Job:
    """What jobs of both worlds have in common."""

    def __init__(self, name: str, schedule: Schedule, catch_up: CatchUp) -> None:
        self.name, self._schedule, self._catch_up = check_name(name), schedule, catch_up
        if catch_up not in ("latest", "all"):
            raise Misuse(f"catch_up is 'latest' or 'all', not {quoted(catch_up)}")

    def _due(self, now: float, since: str | None) -> list[datetime]:
        """The ticks to be asked for, in their order: the latest, or all since the job was first asked for."""
        ticks = self._schedule.until(datetime.fromtimestamp(now, UTC))
        if since is None:
            return [next(ticks)]
        first = datetime.fromisoformat(since)
        due = []
        for tick in islice(ticks, MOST_MISSED):
            if tick < first:
                break
            due.append(tick)
        return due[::-1]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {quoted(self.name)}>"


class Job(_Job):
    """A job of blocking code. Call it on every instance, as often as you like."""

    def __init__(self, keys: Idempotency, work: Callable[[Run], Any], name: str, schedule: Schedule, catch_up: CatchUp):
        super().__init__(name, schedule, catch_up)
        self._keys, self._work = keys, work

    def __call__(self) -> Outcome:
        """Do the work of this tick unless it was done, or is under way; with ``catch_up="all"`` missed ticks first."""
        now = run_blocking(self._keys.store.now())
        [latest] = self._due(now, None)
        since = self._keys.once("since", lambda _run: _key(latest), wait=5) if self._catch_up == "all" else None
        outcome = Outcome("under way", latest)
        for tick in self._due(now, since):
            outcome = self._ask(tick)
            if outcome.state == "under way":
                break  # ticks are done in their order
        return outcome

    def _ask(self, tick: datetime) -> Outcome:
        ran = []

        def work(run: Run) -> Any:
            ran.append(run)
            return self._work(run)

        try:
            result = self._keys.once(_key(tick), work)
        except InProgress:
            return Outcome("under way", tick)
        return Outcome("ran" if ran else "done before", tick, result)


class AsyncJob(_Job):
    """A job of async code; see `Job`."""

    def __init__(
        self,
        keys: AsyncIdempotency,
        work: Callable[[AsyncRun], Awaitable[Any]],
        name: str,
        schedule: Schedule,
        catch_up: CatchUp,
    ) -> None:
        super().__init__(name, schedule, catch_up)
        self._keys, self._work = keys, work

    async def __call__(self) -> Outcome:
        """Do the work of this tick unless it was done, or is under way; with ``catch_up="all"`` missed ticks first."""
        now = await self._keys.store.now()
        [latest] = self._due(now, None)

        async def first(_run: AsyncRun) -> str:
            return _key(latest)

        since = await self._keys.once("since", first, wait=5) if self._catch_up == "all" else None
        outcome = Outcome("under way", latest)
        for tick in self._due(now, since):
            outcome = await self._ask(tick)
            if outcome.state == "under way":
                break
        return outcome

    async def _ask(self, tick: datetime) -> Outcome:
        ran = []

        async def work(run: AsyncRun) -> Any:
            ran.append(run)
            return await self._work(run)

        try:
            result = await self._keys.once(_key(tick), work)
        except InProgress:
            return Outcome("under way", tick)
        return Outcome("ran" if ran else "done before", tick, result)


StoreT = TypeVar("StoreT", bound=Store)


class _Jobs(Generic[StoreT]):
    """Jobs whose runs are kept in one store."""

    def __init__(self, store: StoreT, *, at_most_for: float = 3600.0, keep: float = 30 * DAY, **settings: Any) -> None:
        """Take a run for crashed after `at_most_for` seconds without a word, and keep what came of it for `keep`.

        The work says that it is alive with ``run.renew()`` or ``run.reach(…)``; `settings` are those of `Idempotency`.
        """
        self._store = store
        self._settings = {"lease": at_most_for, "keep": keep, **settings}


class Jobs(_Jobs[Store]):
    """Jobs of blocking code."""

    def once_per(
        self, period: str | float, *, name: str, catch_up: CatchUp = "latest"
    ) -> Callable[[Callable[[Run], Any]], Job]:
        """Make a job of a function: once for each period, such as ``"15m"`` or ``"1d"``."""
        return self.on(Every(period), name=name, catch_up=catch_up)

    def cron(
        self, expression: str, *, name: str, zone: tzinfo = UTC, catch_up: CatchUp = "latest"
    ) -> Callable[[Callable[[Run], Any]], Job]:
        """Make a job of a function: once for each tick of a cron expression in a time zone."""
        return self.on(Cron(expression, zone), name=name, catch_up=catch_up)

    def on(
        self, schedule: Schedule, *, name: str, catch_up: CatchUp = "latest"
    ) -> Callable[[Callable[[Run], Any]], Job]:
        """Make a job of a function, on a schedule of your own."""
        keys = Idempotency(self._store, scope=f"job/{check_name(name)}", **self._settings)
        return lambda work: Job(keys, work, name, schedule, catch_up)


class AsyncJobs(_Jobs[Store]):
    """Jobs of async code."""

    def once_per(
        self, period: str | float, *, name: str, catch_up: CatchUp = "latest"
    ) -> Callable[[Callable[[AsyncRun], Awaitable[Any]]], AsyncJob]:
        """Make a job of an async function: once for each period, such as ``"15m"`` or ``"1d"``."""
        return self.on(Every(period), name=name, catch_up=catch_up)

    def cron(
        self, expression: str, *, name: str, zone: tzinfo = UTC, catch_up: CatchUp = "latest"
    ) -> Callable[[Callable[[AsyncRun], Awaitable[Any]]], AsyncJob]:
        """Make a job of an async function: once for each tick of a cron expression in a time zone."""
        return self.on(Cron(expression, zone), name=name, catch_up=catch_up)

    def on(
        self, schedule: Schedule, *, name: str, catch_up: CatchUp = "latest"
    ) -> Callable[[Callable[[AsyncRun], Awaitable[Any]]], AsyncJob]:
        """Make a job of an async function, on a schedule of your own."""
        keys = AsyncIdempotency(self._store, scope=f"job/{check_name(name)}", **self._settings)
        return lambda work: AsyncJob(keys, work, name, schedule, catch_up)
