"""Schedulers that people have, two of each: both fire, and each tick is done once all the same."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from apscheduler.schedulers.background import BackgroundScheduler  # type: ignore[import-untyped]
from celery import Celery  # type: ignore[import-untyped]
from celery.beat import EmbeddedService  # type: ignore[import-untyped]
from celery.contrib.testing.worker import start_worker  # type: ignore[import-untyped]

from leasehold.patterns.idempotency import SqlKeys
from leasehold.patterns.jobs import JobRun, Jobs

PATIENT, FIRES_EVERY = 60.0, 0.1


class Exports:
    """A job that is due each second, and how often it was asked for and done."""

    def __init__(self, store: SqlKeys) -> None:
        self.asked, self.done = 0, list[str]()
        self._job = Jobs(store, catch_up="all").once_per("1s", name="export")(self._export)

    def _export(self, run: JobRun) -> None:
        self.done.append(run.key)

    def ask(self) -> str:
        self.asked += 1
        return self._job().state

    def wait_for(self, ticks: int) -> None:
        give_up_at = time.monotonic() + PATIENT
        while len(self.done) < ticks or self.asked < 2 * ticks:
            assert time.monotonic() < give_up_at, f"{len(self.done)} ticks are done, {self.asked} times it was asked"
            time.sleep(0.05)

    def judge(self) -> None:
        ticks = [datetime.fromisoformat(key) for key in self.done]
        assert ticks == [ticks[0] + timedelta(seconds=number) for number in range(len(ticks))], "each once, in order"


@pytest.fixture
def exports(tmp_path: Path) -> Iterator[Exports]:
    store = SqlKeys(tmp_path / "app.db")
    store.create()
    yield Exports(store)
    store.close()


def test_two_beats_of_celery(exports: Exports, tmp_path: Path) -> None:
    app: Any = Celery("app", broker="memory://", backend="cache+memory://")
    app.conf.beat_schedule = {"export": {"task": "export", "schedule": FIRES_EVERY}}

    @app.task(name="export")  # type: ignore[untyped-decorator]
    def export() -> str:
        return exports.ask()

    beats = [
        EmbeddedService(app, max_interval=FIRES_EVERY, thread=True, schedule_filename=str(tmp_path / f"beat-{number}"))
        for number in range(2)
    ]
    with start_worker(app, pool="solo", perform_ping_check=False):
        for beat in beats:
            beat.start()
        exports.wait_for(3)
        for beat in beats:
            beat.stop()
            beat.join(PATIENT)
    exports.judge()


def test_two_schedulers_of_apscheduler(exports: Exports) -> None:
    schedulers = [BackgroundScheduler(timezone="UTC") for _ in range(2)]
    for scheduler in schedulers:
        scheduler.add_job(exports.ask, "interval", seconds=FIRES_EVERY, max_instances=5)
        scheduler.start()
    exports.wait_for(3)
    for scheduler in schedulers:
        scheduler.shutdown()
    exports.judge()
