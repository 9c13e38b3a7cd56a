"""Every tick is done once, whoever asks, however often; missed ticks are caught up with; crashed ones done again."""

from __future__ import annotations

import asyncio
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from leasehold import Misuse
from leasehold.patterns.idempotency import AsyncRun, InThreads, Run, SqlKeys
from leasehold.patterns.jobs import AsyncJobs, Cron, Every, Jobs, Outcome, seconds_of


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlKeys]:
    keys = SqlKeys(tmp_path / "app.db")
    keys.create()
    yield keys
    keys.close()


class Ticks:
    """A schedule that the test moves on."""

    def __init__(self, number: int = 1) -> None:
        self.number = number

    def until(self, _now: datetime) -> Iterator[datetime]:
        for number in range(self.number, -10_000, -1):
            yield datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=number)


def test_a_tick_is_done_once_by_whoever_comes_first(store: SqlKeys) -> None:
    ticks, runs = Ticks(), list[int]()

    def export(run: Run) -> int:
        runs.append(run.token)
        return len(runs)

    instances = [Jobs(store).on(ticks, name="export")(export) for _ in range(3)]
    states = [[instance().state for instance in instances]]
    ticks.number += 1
    states.append([instance().state for instance in instances])
    assert states == [["ran", "done before", "done before"]] * 2
    assert len(runs) == 2


def test_who_comes_while_it_is_under_way_leaves_it(store: SqlKeys) -> None:
    began, go_on = threading.Event(), threading.Event()

    @Jobs(store).on(Ticks(), name="export")
    def export(_run: Run) -> None:
        began.set()
        assert go_on.wait(20)

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(export)
        assert began.wait(20)
        assert export().state == "under way"
        go_on.set()
        assert first.result(20).state == "ran"


def test_a_failed_tick_is_tried_again_by_the_next_who_asks(store: SqlKeys) -> None:
    attempts = []

    @Jobs(store).on(Ticks(), name="export")
    def export(_run: Run) -> str:
        attempts.append(1)
        if len(attempts) == 1:
            raise ConnectionError
        return "exported"

    with pytest.raises(ConnectionError):
        export()
    assert export() == Outcome("ran", datetime(2026, 1, 1, 1, tzinfo=UTC), "exported")


def test_missed_ticks_are_caught_up_with_in_their_order_or_passed_by(store: SqlKeys) -> None:
    ticks, done = Ticks(), dict[str, list[int]](latest=[], all=[])
    jobs = Jobs(store)
    latest = jobs.on(ticks, name="latest")(lambda _run: done["latest"].append(ticks.number))
    every = jobs.on(ticks, name="all", catch_up="all")(
        lambda run: done["all"].append(datetime.fromisoformat(run.key).hour)
    )
    for number in (1, 2, 6):
        ticks.number = number
        latest()
        every()
    assert done == {"latest": [1, 2, 6], "all": [1, 2, 3, 4, 5, 6]}


INSTANCE = """
import os, pathlib, random, sqlite3, sys, time
from leasehold.patterns.idempotency import SqlKeys
from leasehold.patterns.jobs import Jobs

path = pathlib.Path(sys.argv[1])
database = sqlite3.connect(path, timeout=30, isolation_level=None)

@Jobs(SqlKeys(path), at_most_for=0.5).once_per(0.1, name="export", catch_up="all")
def export(run):
    database.execute("INSERT INTO began VALUES (?, ?)", (run.key, os.getpid()))
    time.sleep(random.random() * 0.05)
    database.execute("BEGIN IMMEDIATE")
    database.execute("INSERT INTO ended VALUES (?, ?)", (run.key, run.token))
    run.complete("exported", on=database)
    database.execute("COMMIT")
    return "exported"

print("ready", flush=True)
while True:
    try:
        export()
    except Exception as error:
        if database.in_transaction:
            database.execute("ROLLBACK")
    time.sleep(0.02)
"""


def test_five_instances_with_kills_and_pauses_end_every_tick_once(store: SqlKeys, tmp_path: Path) -> None:
    database = sqlite3.connect(tmp_path / "app.db", timeout=30, isolation_level=None)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("CREATE TABLE began (tick TEXT, pid INTEGER)")
    database.execute("CREATE TABLE ended (tick TEXT, token INTEGER)")

    def started() -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", INSTANCE, str(tmp_path / "app.db")], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    def one_at_work() -> int:
        """The index of an instance in the middle of a run; any one when none is caught at it within a second."""
        until = time.monotonic() + 1
        while time.monotonic() < until:
            for (pid,) in database.execute("SELECT pid FROM began WHERE tick NOT IN (SELECT tick FROM ended)"):
                for number, process in enumerate(instances):
                    if process.pid == pid:
                        return number
            time.sleep(0.002)
        return chance.randrange(5)

    def most_begins_of_a_tick() -> int:
        return max((count for (count,) in database.execute("SELECT count(*) FROM began GROUP BY tick")), default=0)

    def enough() -> bool:
        ((ticks,),) = database.execute("SELECT count(*) FROM ended")
        return bool(ticks >= 120 and most_begins_of_a_tick() > 1)

    chance = random.Random(7)
    instances = [started() for _ in range(5)]
    began_at = time.monotonic()
    try:
        while not enough() and time.monotonic() < began_at + 60:
            time.sleep(1 + chance.random() * 0.1)  # time to catch up
            number = one_at_work()
            if chance.random() < 0.5:
                instances[number].kill()
                instances[number].communicate()
                instances[number] = started()
            else:
                instances[number].send_signal(signal.SIGSTOP)
                time.sleep(0.7)  # longer than a run may keep silent
                instances[number].send_signal(signal.SIGCONT)
        time.sleep(1.5)
    finally:
        for process in instances:
            process.kill()
            process.communicate()
    ended = Counter(tick for (tick,) in database.execute("SELECT tick FROM ended"))
    disturbed = most_begins_of_a_tick() > 1
    database.close()
    assert set(ended.values()) == {1}, "a tick was ended twice"
    assert disturbed, "nothing was disturbed, so nothing was shown"
    due = sorted(ended)
    first, last = (datetime.fromisoformat(due[number]).timestamp() for number in (0, -1))
    assert len(due) == round((last - first) / 0.1) + 1, "a tick is missing"
    assert len(due) >= 100


def test_cron_expressions_tick_in_their_time_zone_through_dst() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    autumn = list(islice(Cron("30 2 * * *", berlin).until(datetime(2026, 10, 26, 12, tzinfo=UTC)), 3))
    assert [tick.isoformat() for tick in autumn] == [
        "2026-10-26T01:30:00+00:00",
        "2026-10-25T00:30:00+00:00",  # 02:30 comes twice on that day, and counts once
        "2026-10-24T00:30:00+00:00",
    ]
    exactly = datetime(2026, 6, 1, 3, 0, tzinfo=berlin)
    assert next(Cron("0 3 * * *", berlin).until(exactly)) == exactly
    assert next(Cron("*/15 * * * *").until(datetime(2026, 6, 1, 3, 29, 59, tzinfo=UTC))).minute == 15


def test_async_jobs_do_the_same(store: SqlKeys) -> None:
    async def run() -> None:
        ticks, done = Ticks(), list[int]()

        @AsyncJobs(InThreads(store)).on(ticks, name="export", catch_up="all")
        async def export(run: AsyncRun) -> str:
            done.append(datetime.fromisoformat(run.key).hour)
            await run.reach("begun")
            return "exported"

        for number in (1, 1, 4):
            ticks.number = number
            await asyncio.gather(export(), export())
        await export()
        assert sorted(done) == [1, 2, 3, 4]
        assert (await export()).state == "done before"
        assert (await AsyncJobs(InThreads(store)).once_per("1d", name="daily")(export._work)()).state == "ran"
        assert (await AsyncJobs(InThreads(store)).cron("* * * * *", name="cron")(export._work)()).state == "ran"

    asyncio.run(run())


def test_jobs_by_period_and_by_cron(store: SqlKeys) -> None:
    jobs = Jobs(store)
    assert [job().state for job in [jobs.once_per("1w", name="weekly")(lambda _run: 1)] * 2] == ["ran", "done before"]
    assert [job().state for job in [jobs.cron("0 0 1 1 *", name="yearly")(lambda _run: 1)] * 2] == [
        "ran",
        "done before",
    ]


def test_what_is_wrong_is_refused_at_once(store: SqlKeys) -> None:
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
    with pytest.raises(Misuse):
        Jobs(store).once_per("1d", name="")(lambda _run: None)
    with pytest.raises(Misuse):
        Jobs(store).once_per("1d", name="a", catch_up="some")(lambda _run: None)  # type: ignore[arg-type]
