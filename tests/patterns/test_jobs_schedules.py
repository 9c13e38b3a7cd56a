"""Ticks are the same for everybody: by period and by cron expression, through DST, forwards and backwards."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise, takewhile
from zoneinfo import ZoneInfo

import pytest

from leasehold import Misuse
from leasehold.patterns.jobs import Cron, Every, seconds_of
from leasehold.patterns.jobs.book import key_of, tick_of
from leasehold.patterns.jobs.schedules import schedule_from

CHANGES = {
    "Europe/Berlin": (datetime(2026, 3, 28, tzinfo=UTC), datetime(2026, 10, 24, tzinfo=UTC)),
    "America/New_York": (datetime(2026, 3, 7, tzinfo=UTC), datetime(2026, 10, 31, tzinfo=UTC)),
    "Australia/Lord_Howe": (datetime(2026, 4, 3, tzinfo=UTC), datetime(2026, 10, 2, tzinfo=UTC)),
}


def test_cron_expressions_tick_in_their_time_zone_through_dst() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    closing = Cron("30 2 * * *", berlin)
    assert [key_of(tick)[:16] for tick in islice(closing.after(datetime(2026, 10, 23, 12, tzinfo=UTC)), 3)] == [
        "2026-10-24T00:30",
        "2026-10-25T00:30",  # 02:30 comes twice on that day, and counts once
        "2026-10-26T01:30",
    ]
    exactly = datetime(2026, 6, 1, 3, 0, tzinfo=berlin)
    assert Cron("0 3 * * *", berlin).latest(exactly) == exactly
    assert Cron("*/15 * * * *").latest(datetime(2026, 6, 1, 3, 29, 59, tzinfo=UTC)).minute == 15


@pytest.mark.parametrize("zone", CHANGES)
@pytest.mark.parametrize("expression", ["30 2 * * *", "*/20 2 * * *", "0 * * * *", "15 1-3 * * *", "59 1 * * 0"])
def test_looking_forward_and_back_one_sees_the_same_ticks(zone: str, expression: str) -> None:
    """At every change of clocks, from every tick and from every quarter of an hour."""
    schedule = Cron(expression, ZoneInfo(zone))
    for start in CHANGES[zone]:
        end = start + timedelta(days=3)
        ticks = list(takewhile(lambda tick, end=end: tick <= end, schedule.after(start)))  # type: ignore[misc]
        assert ticks == sorted(set(ticks))
        for tick, following in pairwise(ticks):
            assert next(schedule.after(tick)) == following
            assert schedule.latest(tick) == tick
            assert schedule.latest(following - timedelta(seconds=1)) == tick


def test_periods_are_exact_however_small_and_long_ago() -> None:
    for period in (0.1, 0.3, 0.007, "15m"):
        schedule = Every(period)
        tick = schedule.latest(datetime(2026, 11, 16, 4, 5, 6, 789_123, tzinfo=UTC))
        for _ in range(100):
            following = next(schedule.after(tick))
            assert tick_of(key_of(following)) == following
            assert schedule.latest(following) == following
            assert key_of(tick) < key_of(following)
            tick = following


def test_a_schedule_is_known_by_what_it_says_of_itself() -> None:
    now = datetime(2026, 11, 16, 4, 5, tzinfo=UTC)
    periods = (Every("90s"), Every(0.25), Every("2w"), Every("3000d"), Every("1h30m"), Every(1234567.891))
    for schedule in (*periods, Cron("0 3 * * 1"), Cron("0 3 * * 1", ZoneInfo("Europe/Berlin"))):
        known = schedule_from(str(schedule))
        assert known is not None
        assert (str(known), known.latest(now)) == (str(schedule), schedule.latest(now))
    for other in ("", "every", "every x", "cron", "cron * in Nowhere/Land", "<object>"):
        assert schedule_from(other) is None


def test_what_is_wrong_is_refused_at_once() -> None:
    for period in ("", "15", "15 m", "-1s", 0, -1, True, float("nan"), "9999999d"):
        with pytest.raises(Misuse):
            seconds_of(period)
        with pytest.raises(Misuse):
            Every(period)
    for expression in ("", "* * *", "61 * * * *", "hourly", 7):
        with pytest.raises(Misuse, match="no cron expression"):
            Cron(expression)  # type: ignore[arg-type]
    with pytest.raises(Misuse, match="time zone"):
        Cron("* * * * *", "Europe/Berlin")  # type: ignore[arg-type]
