"""Every tick is done once, whoever asks, however often; what was missed is caught up with or reported."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio
from tests.support.postgres_server import PostgresServer
from tests.support.redis_server import RedisServer

import leasehold
from leasehold import Misuse, StaleToken
from leasehold.events import Keyed, Missed
from leasehold.patterns.idempotency import AsyncRedisKeys, InThreads, SqlKeys
from leasehold.patterns.jobs import AsyncJobRun, AsyncJobs, Every, JobRun, Jobs, Outcome
from leasehold.patterns.jobs.book import Asking, Book, Step, Terms


@pytest.fixture
def file(tmp_path: Path) -> Iterator[SqlKeys]:
    keys = SqlKeys(tmp_path / "app.db")
    keys.create()
    yield keys
    keys.close()


FIRST = datetime(2026, 1, 1, tzinfo=UTC)


class Ticks:
    """A schedule that the test moves on."""

    def __init__(self, number: int = 1) -> None:
        self.number = number

    def latest(self, _now: datetime) -> datetime:
        return FIRST + timedelta(hours=self.number)

    def after(self, tick: datetime) -> Iterator[datetime]:
        for number in itertools.count(int((tick - FIRST) / timedelta(hours=1)) + 1):
            yield FIRST + timedelta(hours=number)


def test_a_tick_is_done_once_by_whoever_comes_first(store: Any) -> None:
    ticks, runs = Ticks(), list[int]()

    def export(run: JobRun) -> int:
        runs.append(run.token)
        return len(runs)

    instances = [Jobs(store).on(ticks, name="export")(export) for _ in range(3)]
    states = [[instance().state for instance in instances]]
    ticks.number += 1
    states.append([instance().state for instance in instances])
    assert states == [["ran", "done before", "done before"]] * 2
    assert len(runs) == 2


def test_who_comes_while_it_is_under_way_leaves_it(store: Any) -> None:
    began, go_on = threading.Event(), threading.Event()

    @Jobs(store).on(Ticks(), name="export")
    def export(_run: JobRun) -> None:
        began.set()
        assert go_on.wait(20)

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(export)
        assert began.wait(20)
        assert export().state == "under way"
        go_on.set()
        assert first.result(20).state == "ran"


def test_a_failed_tick_is_tried_again_by_the_next_who_asks(store: Any) -> None:
    attempts = []

    @Jobs(store, backoff=0).on(Ticks(), name="export")
    def export(_run: JobRun) -> str:
        attempts.append(1)
        if len(attempts) == 1:
            raise ConnectionError
        return "exported"

    with pytest.raises(ConnectionError):
        export()
    assert export() == Outcome("ran", datetime(2026, 1, 1, 1, tzinfo=UTC), "exported")


def test_missed_ticks_are_caught_up_with_in_their_order_or_passed_by_and_reported(file: SqlKeys) -> None:
    ticks, done = Ticks(), dict[str, list[int]](latest=[], all=[])
    jobs = Jobs(file)
    latest = jobs.on(ticks, name="latest")(lambda _run: done["latest"].append(ticks.number))
    every = jobs.on(ticks, name="all", catch_up="all")(
        lambda run: done["all"].append(datetime.fromisoformat(run.key).hour)
    )
    for ticks.number in (1, 2):
        latest()
        every()
    ticks.number = 6
    missed = latest().missed
    every()
    assert done == {"latest": [1, 2, 6], "all": [1, 2, 3, 4, 5, 6]}
    assert [(one.first[:13], one.last[:13], one.count) for one in missed] == [("2026-01-01T03", "2026-01-01T05", 3)]
    assert [status.missed_in_all for status in jobs.status()] == [0, 3]


def test_a_job_that_fell_far_behind_catches_up_oldest_first_and_loses_nothing(file: SqlKeys) -> None:
    ticks, done = Ticks(0), list[int]()

    @Jobs(file).on(ticks, name="export", catch_up="all")
    def export(run: JobRun) -> None:
        done.append(int((run.tick - FIRST) / timedelta(hours=1)))

    export()
    ticks.number = 250  # more than one call does
    for _ in range(3):
        export()
    assert done == list(range(251))
    assert export().state == "done before"


def test_what_is_later_than_its_grace_is_skipped_and_reported() -> None:
    hour, terms, book = 3600.0, Terms(catch_up="skip", grace=60), Book()
    start = FIRST.timestamp()

    def ask(hours: float) -> Step:
        return Asking(book, Every("1h"), terms, start + hours * hour).decide("run", "host:1")

    first = ask(0.5)
    assert (first.state, first.reported) == ("missed", ()), "before it is known, a job has missed nothing"
    book = first.book
    on_time = ask(3 + 50 / hour)
    assert [(one.first[11:16], one.last[11:16], one.count) for one in on_time.reported] == [("01:00", "02:00", 2)]
    assert (on_time.state, on_time.about[11:16]) == ("ran", "03:00")
    late = ask(3 + 70 / hour)
    assert (late.state, [one.count for one in late.reported]) == ("missed", [3])
    book = late.book
    assert (ask(3.9).state, ask(3.9).reported) == ("missed", ()), "it is told once"


def test_a_clock_that_was_set_back_makes_nobody_wait_for_long() -> None:
    terms = Terms(at_most_for=10, at_least_for=5, backoff=2, catch_up="all")
    start = FIRST.timestamp()
    begun = Asking(Book(), Every("1h"), terms, start).decide("run", "host:1").book
    beside = Asking(begun, Every("1h"), terms, start - 3600).decide("other", "host:2")
    assert beside.state == "under way"
    assert beside.book.open is not None
    assert beside.book.open.expires == start - 3600 + 10
    taken = Asking(beside.book, Every("1h"), terms, start - 3600 + 11).decide("other", "host:2")
    assert taken.state == "ran"
    assert taken.book.token == 2


def test_a_tick_that_keeps_failing_is_given_up_and_reported(file: SqlKeys) -> None:
    ticks, attempts = Ticks(), list[int]()
    jobs = Jobs(file, attempts=3, backoff=0, catch_up="all")

    @jobs.on(ticks, name="export")
    def export(run: JobRun) -> str:
        attempts.append(run.attempt)
        if run.tick == FIRST + timedelta(hours=1):
            raise ConnectionError("no route")
        return "exported"

    for _ in range(3):
        with pytest.raises(ConnectionError):
            export()
    assert export().state == "missed"
    ticks.number = 2
    assert export().state == "ran", "one bad tick does not stop the next"
    assert attempts == [1, 2, 3, 1]
    [status] = jobs.status()
    [missed] = status.missed
    assert missed.why == "given up after 3 attempts: ConnectionError: no route"
    assert [run.state for run in status.runs] == ["failed", "failed", "failed", "done"]
    assert status.behind is None


def test_who_comes_before_the_backoff_is_over_waits(file: SqlKeys) -> None:
    @Jobs(file, backoff=3600).on(Ticks(), name="export")
    def export(_run: JobRun) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        export()
    assert export().state == "waiting"


def test_the_next_run_begins_no_sooner_than_at_least_for(file: SqlKeys) -> None:
    ticks = Ticks()
    job = Jobs(file, at_least_for=3600).on(ticks, name="export")(lambda _run: None)
    assert job().state == "ran"
    ticks.number += 1
    assert job().state == "waiting"


def _during(job: Any, ticks: Ticks) -> tuple[Any, list[str]]:
    """Ask again for a job while it is under way and the next tick has come; what came of both."""
    began, go_on, states = threading.Event(), threading.Event(), list[str]()
    job._work = _stopping(job._work, began, go_on)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(job)
        assert began.wait(20)
        ticks.number += 1
        states += [job().state, job().state]
        go_on.set()
        with contextlib.suppress(StaleToken):
            states.append(first.result(20).state)
        return first, states


def _stopping(work: Any, began: threading.Event, go_on: threading.Event) -> Any:
    def stop_in_the_first(run: JobRun) -> Any:
        if not began.is_set():
            began.set()
            assert go_on.wait(20)
        return work(run)

    return stop_in_the_first


def test_a_tick_that_comes_during_a_run_is_queued(file: SqlKeys) -> None:
    ticks, done = Ticks(), list[str]()
    job = Jobs(file).on(ticks, name="export")(lambda run: done.append(run.key))
    assert _during(job, ticks)[1] == ["under way", "under way", "ran"]
    assert job().state == "ran"
    assert len(set(done)) == 2


def test_a_tick_that_comes_during_a_run_is_left_out_and_reported(file: SqlKeys) -> None:
    ticks, jobs, done = Ticks(), Jobs(file, overlap="skip"), list[str]()
    job = jobs.on(ticks, name="export")(lambda run: done.append(run.key))
    assert _during(job, ticks)[1] == ["under way", "under way", "ran"]
    assert job().state == "missed"
    [status] = jobs.status()
    assert [(one.count, one.why) for one in status.missed] == [(1, "another run was under way")]
    ticks.number += 1
    assert job().state == "ran"
    assert len(set(done)) == 2


def test_a_tick_that_comes_during_a_run_takes_its_place(file: SqlKeys) -> None:
    ticks, jobs, tokens = Ticks(), Jobs(file, overlap="replace"), list[int]()
    job = jobs.on(ticks, name="export")(lambda run: tokens.append(run.token))
    first, states = _during(job, ticks)
    assert states == ["ran", "done before"]
    with pytest.raises(StaleToken, match="token 1 is stale for 'job export': token 2"):
        first.result(0)
    assert tokens == [2, 1], "the new one has the higher token, with which a fence refuses the old one"
    [status] = jobs.status()
    assert [(one.count, one.why) for one in status.missed] == [(1, "replaced by a later tick")]


def test_a_crashed_run_is_taken_over_where_it_was(store: Any) -> None:
    ticks, seen = Ticks(), list[Any]()
    jobs = Jobs(store, at_most_for=1.0)
    crashed = jobs.on(ticks, name="export")(lambda run: run.reach("half", {"rows": 500}))
    _step, begun = _begin(crashed)
    run = JobRun(crashed, begun)
    crashed._work(run)
    job = jobs.on(ticks, name="export")(lambda run: seen.append((run.point, run.data, run.token, run.attempt)))
    while job().state == "under way":
        time.sleep(0.05)
    assert seen == [("half", {"rows": 500}, 2, 2)]
    with pytest.raises(StaleToken):
        run.renew()
    with pytest.raises(StaleToken):
        _blocking(crashed._ledger.finish(begun, "j1"))
    assert [run.state for run in jobs.status()[0].runs] == ["crashed", "done"]


def _blocking(coroutine: Any) -> Any:
    from leasehold.core.worlds import run_blocking

    return run_blocking(coroutine)


def _begin(job: Any) -> Any:
    return _blocking(job._ledger.begin())


def test_what_the_job_writes_and_that_it_is_done_commit_together(file: SqlKeys, tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "app.db", isolation_level=None)) as database:
        database.execute("CREATE TABLE export (tick TEXT)")
        ends = ["ROLLBACK", "COMMIT"]

        @Jobs(file, at_most_for=1).on(Ticks(), name="export")
        def export(run: JobRun) -> str:
            database.execute("BEGIN IMMEDIATE")
            database.execute("INSERT INTO export VALUES (?)", (run.key,))
            run.complete("exported", on=database)
            database.execute(ends[run.attempt - 1])
            return "exported"

        export()
        assert database.execute("SELECT count(*) FROM export").fetchone() == (0,)
        while export().state == "under way":  # until the first run is taken for crashed
            time.sleep(0.05)
        assert database.execute("SELECT count(*) FROM export").fetchone() == (1,)
        assert export() == Outcome("done before", FIRST + timedelta(hours=1), "exported")


def test_an_operator_can_begin_a_new_book(file: SqlKeys) -> None:
    ticks, jobs = Ticks(9), Jobs(file)
    job = jobs.on(ticks, name="export")(lambda run: run.token)
    assert job().result == 1
    ticks.number = 1  # the store's clock was set back
    assert job().state == "done before"
    assert jobs.forget("export", because="the clock is right again")
    assert not jobs.forget("nothing", because="there is none")
    assert job().result == 2, "tokens go on"


FORKS = """
import os, sys, psycopg
from leasehold.patterns.idempotency import SqlKeys
from leasehold.patterns.jobs import Jobs

made = []

def connect():
    made.append(os.getpid())
    return psycopg.connect(sys.argv[1])

store = SqlKeys(connect, table="forked_key")
store.create()
job = Jobs(store).once_per("3000d", name="export")(lambda run: "exported")
job()
child = os.fork()
if child == 0:
    assert job().result == "exported" and made[-1] == os.getpid()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert job().result == "exported" and set(made) == {os.getpid()}, "the parent's connections are as they were"
store.close()
"""


def test_a_forked_child_has_connections_of_its_own(postgres_server: PostgresServer) -> None:
    command = [sys.executable, "-W", "error", "-c", FORKS, postgres_server.url]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stderr


def test_what_comes_of_asking_can_be_watched(file: SqlKeys) -> None:
    seen = list[Any]()
    ticks = Ticks()
    job = Jobs(file, backoff=0).on(ticks, name="export")(lambda run: 1 / (ticks.number - 1))
    with leasehold.watch(seen.append):
        with pytest.raises(ZeroDivisionError):
            job()
        ticks.number = 2
        job()
        job()
    assert [(event.scope, event.outcome) for event in seen if isinstance(event, Keyed)] == [
        ("job/export", "failed"),
        ("job/export", "ran"),
        ("job/export", "replayed"),
    ]


def test_missed_ticks_are_an_event_and_a_warning(file: SqlKeys, caplog: pytest.LogCaptureFixture) -> None:
    seen, ticks = list[Any](), Ticks()
    job = Jobs(file, attempts=1).on(ticks, name="export")(lambda _run: 1 / (ticks.number - 9))
    with leasehold.watch(seen.append), caplog.at_level(logging.WARNING, "leasehold"):
        for ticks.number in (8, 9, 13):
            with contextlib.suppress(ZeroDivisionError):
                job()
    told = [(one.scope, one.first[11:13], one.last[11:13], one.count) for one in seen if isinstance(one, Missed)]
    assert told == [("job/export", "09", "09", 1), ("job/export", "10", "12", 3)]
    assert ["job 'export': " in record.message for record in caplog.records] == [True, True]


def test_namespaces_are_kept_apart(file: SqlKeys) -> None:
    ticks = Ticks()
    for namespace in ("", "blue", "green"):
        jobs = Jobs(file, namespace=namespace)
        assert jobs.on(ticks, name="export")(lambda _run: None)().state == "ran"
        assert [status.name for status in jobs.status()] == ["export"]


def test_async_jobs_do_the_same(file: SqlKeys) -> None:
    async def run() -> None:
        ticks, done = Ticks(), list[int]()

        @AsyncJobs(InThreads(file)).on(ticks, name="export", catch_up="all")
        async def export(run: AsyncJobRun) -> str:
            done.append(datetime.fromisoformat(run.key).hour)
            await run.reach("begun")
            return "exported"

        for number in (1, 1, 4):
            ticks.number = number
            await asyncio.gather(export(), export())
        await export()
        assert sorted(done) == [1, 2, 3, 4]
        assert (await export()).state == "done before"
        assert (await AsyncJobs(InThreads(file)).once_per("1d", name="daily")(export._work)()).state == "ran"
        assert (await AsyncJobs(InThreads(file)).cron("* * * * *", name="cron")(export._work)()).state == "ran"

    asyncio.run(run())


def test_async_jobs_on_redis(redis_server: RedisServer) -> None:
    async def run() -> None:
        async with redis.asyncio.Redis(port=redis_server.port) as client:
            jobs = AsyncJobs(AsyncRedisKeys(client), namespace="async", at_most_for=60)

            @jobs.on(Ticks(), name="export")
            async def export(run: AsyncJobRun) -> int:
                await run.renew()
                return run.token

            assert [(await export()).state for _ in range(2)] == ["ran", "done before"]
            assert [status.name for status in await jobs.status()] == ["export"]
            assert await jobs.forget("export", because="once more")
            assert (await export()).result == 2

    asyncio.run(run())


def test_jobs_by_period_and_by_cron(file: SqlKeys) -> None:
    jobs = Jobs(file)
    assert [job().state for job in [jobs.once_per("1w", name="weekly")(lambda _run: 1)] * 2] == ["ran", "done before"]
    assert [job().state for job in [jobs.cron("0 0 1 1 *", name="yearly")(lambda _run: 1)] * 2] == [
        "ran",
        "done before",
    ]


def test_what_is_wrong_is_refused_at_once(file: SqlKeys) -> None:
    with pytest.raises(Misuse):
        Jobs(file).once_per("1d", name="")(lambda _run: None)
    settings = (
        {"catch_up": "some"},
        {"overlap": "allow"},
        {"attempts": 0},
        {"attempts": True},
        {"at_most_for": 0},
        {"at_least_for": -1},
        {"backoff": "long"},
        {"grace": None},
        {"keep": 3},
    )
    wrong: Any
    for wrong in settings:
        with pytest.raises(Misuse):
            Jobs(file, **wrong)
        with pytest.raises(Misuse):
            Jobs(file).once_per("1d", name="a", **wrong)
    with pytest.raises(Misuse, match="latest and after"):
        Jobs(file).on("1d", name="a")  # type: ignore[arg-type]
    with pytest.raises(Misuse, match="neither bytes nor JSON"):
        Jobs(file).once_per("1d", name="a")(lambda _run: object())()
