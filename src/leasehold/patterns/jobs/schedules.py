"""When a job is due: at each multiple of a period, or by a cron expression in a time zone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import takewhile
from typing import Any, Final, Protocol

from leasehold.errors import Misuse, quoted

LONGEST_PERIOD: Final = 3660 * 86400.0
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
_SECONDS: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_LOOK_BACK: Final = timedelta(hours=3)
"""Before the tick that is looked for: longer than any change of a zone's clocks."""


class Schedule(Protocol):
    """When a job is due. Both questions must be answered from one and the same sequence of ticks."""

    def latest(self, now: datetime) -> datetime:
        """The last tick up to now, in UTC."""
        ...

    def after(self, tick: datetime) -> Iterator[datetime]:
        """The ticks after a moment, in UTC, the earliest first; endless."""
        ...


class Every:
    """A tick at each multiple of a period since 1970, in UTC.

    >>> Every("15m").latest(datetime(2026, 3, 1, 12, 44, tzinfo=UTC)).isoformat()
    '2026-03-01T12:30:00+00:00'
    >>> str(Every(5400))
    'every 1h30m'
    """

    def __init__(self, period: str | float) -> None:
        # In whole microseconds: ticks must be the same for everybody, to the last digit.
        self._micros = round(seconds_of(period) * 1_000_000)

    def latest(self, now: datetime) -> datetime:
        """The last tick up to now."""
        return self._tick(self._number(now))

    def after(self, tick: datetime) -> Iterator[datetime]:
        """The ticks after a moment, the earliest first."""
        number = self._number(tick)
        while True:
            number += 1
            yield self._tick(number)

    def _number(self, moment: datetime) -> int:
        return (moment - EPOCH) // timedelta(microseconds=1) // self._micros

    def _tick(self, number: int) -> datetime:
        return EPOCH + timedelta(microseconds=number * self._micros)

    def __str__(self) -> str:
        text, rest = "every ", self._micros
        for unit in ("d", "h", "m", "s"):
            count, rest = divmod(rest, round(_SECONDS[unit] * 1_000_000))
            text += f"{count}{unit}" if count else ""
        return f"{text}{rest / 1000:g}ms" if rest else text


class Cron:
    """The ticks of a cron expression in a time zone: through DST changes as Debian's cron does it.

    >>> from zoneinfo import ZoneInfo
    >>> late = datetime(2026, 3, 29, 23, tzinfo=UTC)
    >>> Cron("30 2 * * *", ZoneInfo("Europe/Berlin")).latest(late).isoformat()  # there is no 02:30 on that day
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
        self._ticks: Any = CronSim
        self._expression, self._zone = expression, zone

    def latest(self, now: datetime) -> datetime:
        """The last tick up to now."""
        # Looking back finds about where it is. Which it is the way forward says: in an hour that comes twice the two
        # ways do not always agree, and ticks must be the same for everybody.
        start = now.astimezone(self._zone).replace(second=0, microsecond=0) + timedelta(minutes=1)
        for about in self._ticks(self._expression, start, reverse=True):
            ticks = list(takewhile(lambda tick: tick <= now, self.after(about.astimezone(UTC) - _LOOK_BACK)))
            if ticks:
                return ticks[-1]
        raise AssertionError

    def after(self, tick: datetime) -> Iterator[datetime]:
        """The ticks after a moment, the earliest first."""
        for one in self._ticks(self._expression, tick.astimezone(self._zone)):
            found = one.astimezone(UTC)
            if found > tick:
                yield found

    def __str__(self) -> str:
        return f"cron {self._expression} in {self._zone}"


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
    if isinstance(period, str) and re.fullmatch(r"\d+(\.\d+)?", period):
        raise Misuse(f"{quoted(period)} may be seconds or minutes: say '{period}s' or '{period}m'")
    if not 0.001 <= seconds <= LONGEST_PERIOD:
        raise Misuse(f"a period is a number of seconds or a text such as '15m' or '1h30m', not {quoted(period)}")
    return seconds


def schedule_from(text: str) -> Schedule | None:
    """The schedule that describes itself like this; None for those of other people.

    >>> [str(schedule_from("every 900s")), str(schedule_from("cron 0 3 * * * in Europe/Berlin"))]
    ['every 15m', 'cron 0 3 * * * in Europe/Berlin']
    """
    from zoneinfo import ZoneInfo

    kind, _, rest = text.partition(" ")
    try:
        if kind == "every":
            return Every(rest)
        if kind == "cron":
            expression, _, zone = rest.rpartition(" in ")
            return Cron(expression, UTC if zone == "UTC" else ZoneInfo(zone))
    except (Misuse, ValueError, LookupError, OSError):
        return None
    return None
