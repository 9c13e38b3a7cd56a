"""Five instances, two hundred ticks, kills and pauses in the middle of runs: every tick is done once, or reported."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from leasehold.patterns.idempotency import SqlKeys
from leasehold.patterns.jobs import Every, Jobs

TICKS, PERIOD = 200, 0.05
NEVER_WELL = 77
"""The tick, counted from the first one, whose work always fails."""

INSTANCE = """
import os, pathlib, sqlite3, sys, time
from leasehold import StaleToken
from leasehold.patterns.idempotency import SqlKeys
from leasehold.patterns.jobs import Every, Jobs

path, last, bad = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
database = sqlite3.connect(path, timeout=30, isolation_level=None)

class Until(Every):
    def latest(self, now):
        return min(super().latest(now), __import__("datetime").datetime.fromisoformat(last))

jobs = Jobs(SqlKeys(path), at_most_for=1.0, attempts=3, backoff=0.01, catch_up="all")

@jobs.on(Until(0.05), name="export")
def export(run):
    global at_work
    at_work = run.key
    database.execute("INSERT INTO began VALUES (?, ?)", (run.key, os.getpid()))
    if database.execute("UPDATE hold SET pid = ? WHERE tick = ? AND pid = 0", (os.getpid(), run.key)).rowcount:
        while database.execute("SELECT 1 FROM hold WHERE tick = ?", (run.key,)).fetchone():
            time.sleep(0.01)  # here it is killed, or stopped
    if run.key == bad:
        raise ValueError("never well")
    database.execute("BEGIN IMMEDIATE")
    database.execute("INSERT INTO ended VALUES (?, ?)", (run.key, run.token))
    run.complete("exported", on=database)
    database.execute("COMMIT")
    return "exported"

print("ready", flush=True)
while os.getppid() == int(sys.argv[4]):
    try:
        export()
    except (StaleToken, ValueError, sqlite3.OperationalError) as error:
        if database.in_transaction:
            database.execute("ROLLBACK")
        if isinstance(error, StaleToken):
            database.execute("INSERT INTO refused VALUES (?, ?)", (at_work, os.getpid()))
    time.sleep(0.01)
"""


class Site:
    """The instances, and the database in which they leave their traces."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "app.db"
        self.database = sqlite3.connect(self.path, timeout=30, isolation_level=None)
        self.database.execute("PRAGMA journal_mode = WAL")
        for table in (
            "began (tick TEXT, pid INTEGER)",
            "ended (tick TEXT, token INTEGER)",
            "refused (tick TEXT, pid INTEGER)",
        ):
            self.database.execute(f"CREATE TABLE {table}")
        self.database.execute("CREATE TABLE hold (tick TEXT, pid INTEGER)")
        self.instances: list[subprocess.Popen[str]] = []

    def start(self, last: str, bad: str) -> None:
        process = subprocess.Popen(
            [sys.executable, "-c", INSTANCE, str(self.path), last, bad, str(os.getpid())],
            stdout=subprocess.PIPE,
            text=True,
        )
        self.instances.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"

    def count(self, sql: str) -> int:
        [(count,)] = self.database.execute(sql)
        return int(count)

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        give_up_at = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < give_up_at, what
            time.sleep(0.005)

    def held_at(self, tick: str) -> subprocess.Popen[str]:
        """The instance that is held in the middle of its run of this tick."""
        pid = f"SELECT coalesce(sum(pid), 0) FROM hold WHERE tick = '{tick}'"
        self.wait_for(lambda: self.count(pid) != 0, "nobody came to this tick")
        return next(process for process in self.instances if process.pid == self.count(pid))

    def let_go(self, tick: str) -> None:
        self.database.execute("DELETE FROM hold WHERE tick = ?", (tick,))

    def kill(self, process: subprocess.Popen[str]) -> None:
        self.instances.remove(process)
        process.kill()
        process.communicate()

    def end(self) -> None:
        for process in [*self.instances]:
            self.kill(process)
        self.database.close()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    try:
        yield site
    finally:
        site.end()


def test_every_tick_is_done_once_or_reported(site: Site) -> None:
    store = SqlKeys(site.path)
    store.create()
    jobs = Jobs(store)
    schedule = Every(PERIOD)
    # The job was last asked for ten seconds ago, so that all ticks are due: nothing depends on the machine's speed.
    before = schedule.latest(datetime.now(UTC) - timedelta(seconds=TICKS * PERIOD + 5))

    class Once(Every):
        def latest(self, _now: datetime) -> datetime:
            return before

    assert jobs.on(Once(PERIOD), name="export")(lambda _run: None)().state == "ran"
    ticks = [before + timedelta(seconds=PERIOD) * number for number in range(1, TICKS + 1)]
    keys = [tick.isoformat(timespec="microseconds") for tick in ticks]
    disturbed = keys[15:160:15]
    site.database.executemany("INSERT INTO hold VALUES (?, 0)", [(key,) for key in disturbed])
    for _ in range(5):
        site.start(keys[-1], keys[NEVER_WELL])
    for number, tick in enumerate(disturbed):
        process = site.held_at(tick)
        if number % 2:
            site.kill(process)
            site.let_go(tick)
            site.start(keys[-1], keys[NEVER_WELL])
        else:
            process.send_signal(signal.SIGSTOP)
            site.let_go(tick)
            ended = f"SELECT count(*) FROM ended WHERE tick = '{tick}'"
            site.wait_for(lambda ended=ended: site.count(ended) == 1, "nobody took over")  # type: ignore[misc]
            process.send_signal(signal.SIGCONT)
            refused = f"SELECT count(*) FROM refused WHERE pid = {process.pid} AND tick = '{tick}'"
            site.wait_for(lambda refused=refused: site.count(refused) == 1, "the late one was not refused")  # type: ignore[misc]
    site.wait_for(lambda: jobs.status()[0].settled == ticks[-1], "not all is settled")
    done = Counter(tick for (tick,) in site.database.execute("SELECT tick FROM ended"))
    begun = Counter(tick for (tick,) in site.database.execute("SELECT tick FROM began"))
    tokens = [token for (token,) in site.database.execute("SELECT token FROM ended ORDER BY tick")]
    [status] = jobs.status()
    store.close()
    reported = [one.first for one in status.missed]
    assert keys[NEVER_WELL] in reported
    assert status.missed_in_all == len(reported)
    assert sorted([*done.elements(), *reported]) == keys, "every tick is done once, or reported"
    assert tokens == sorted(set(tokens)), "tokens rise from run to run, whatever the tick"
    assert all(begun[tick] > 1 for tick in (*disturbed, keys[NEVER_WELL])), "nothing was shown"
