"""Scheduled jobs, in a file of SQLite: APScheduler with its SQLAlchemy job store, and Leasehold's once-only jobs."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from leasehold.bench.patterns import Comparison
from leasehold.bench.places import Place
from leasehold.patterns.idempotency import SqlKeys
from leasehold.patterns.jobs import Jobs

LIBRARY, OURS = "APScheduler, SQLAlchemyJobStore", "Leasehold Jobs"
RUN_NOTE = (
    "A job that is due is found, run, and noted as done. APScheduler's is added, run by its executor for debugging, in "
    "this thread, and removed; its documentation forbids that two schedulers share the store, so nothing keeps a "
    "second instance from running it too."
)
IDLE_NOTE = "What an instance pays when it looks and there is nothing to do."
ran: list[int] = []


def work(number: int = 0) -> None:
    """What a job does; a function of a module, as the library's job store wants it."""
    ran.append(number)


def _scheduler(place: Place) -> Any:
    base = importlib.import_module("apscheduler.schedulers.base").BaseScheduler
    store = importlib.import_module("apscheduler.jobstores.sqlalchemy").SQLAlchemyJobStore
    debug = importlib.import_module("apscheduler.executors.debug").DebugExecutor

    class Stepped(base):  # type: ignore[misc, valid-type]
        """Looks for work when it is told to, as its documentation lets schedulers do."""

        def wakeup(self) -> None:
            """Nothing sleeps."""

        def shutdown(self, wait: bool = True) -> None:
            """End it."""
            super().shutdown(wait)

        def look(self) -> None:
            """Run what is due."""
            self._process_jobs()

    scheduler = Stepped(
        jobstores={"default": store(url=f"sqlite:///{place.folder / 'apscheduler.db'}")},
        executors={"default": debug()},
        timezone=UTC,
    )
    scheduler.start()
    return scheduler


@contextlib.contextmanager
def comparisons(place: Place, _runner: asyncio.Runner) -> Iterator[list[Comparison]]:
    """A run that is due, and a look that finds nothing due."""
    scheduler = _scheduler(place)
    store = SqlKeys(place.folder / "jobs.db")
    store.create()
    jobs = Jobs(store)
    daily = jobs.once_per("1d", name="daily")(lambda _run: work())
    daily()
    scheduler.add_job(work, "interval", days=1, id="daily")

    def run_theirs(number: int) -> None:
        before = len(ran)
        scheduler.add_job(work, "date", run_date=datetime.now(UTC), args=[number], misfire_grace_time=None)
        scheduler.look()
        if len(ran) != before + 1:
            raise RuntimeError("the job did not run")

    def run_ours(number: int) -> None:
        outcome = jobs.once_per("1d", name=f"job-{number}")(lambda _run: work(number))()
        if outcome.state != "ran":
            raise RuntimeError(f"the job did not run: {outcome.state}")

    try:
        yield [
            Comparison("Jobs: one run", {LIBRARY: run_theirs, OURS: run_ours}, [RUN_NOTE]),
            Comparison(
                "Jobs: nothing to do",
                {LIBRARY: lambda _number: scheduler.look(), OURS: lambda _number: daily()},
                [IDLE_NOTE],
            ),
        ]
    finally:
        scheduler.shutdown()
        store.close()
