"""Tests that failed while the machine itself stood still, or had far too much to do, are run again.

Leases have deadlines: on a machine that stands still for longer than a TTL they are lost, as they should be, and a test
that needed one fails. So the machine is watched: by a thread that sees how late it comes back from a short sleep and
a small write to the disk, and by the system's own account of how long processes waited for a processor. A test that
failed meanwhile is run again, at most twice, and the summary says so. A test that fails on a machine that did its part
has failed.

The system's account knows no priorities: simulated histories that run beside other tests, and give way to them, count
as processes that wait. So more is forgiven while those run than the machine is to blame for.
"""

from __future__ import annotations

import os
import re
import tempfile
import threading
import time
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol

GLANCE_EVERY = 0.02
LATE = 0.05
"""How late is too late, in seconds: a sixth of the shortest TTL that the tests use."""
CROWDED = 0.1
"""The share of the time during which processes may wait for a processor."""
MOST_REPEATS = 2
PRESSURE = Path("/proc/pressure/cpu")
PROPERTY = "run again"
STARTED = pytest.StashKey[tuple[float, float]]()


class Watch:
    """Notes when the machine stood still, and for how long."""

    def __init__(self) -> None:
        self._stalls: list[tuple[float, float]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="stall-watch", daemon=True)
        self._thread.start()

    def _look(self) -> None:
        with tempfile.TemporaryFile() as file:
            seen_at = time.monotonic()
            while not self._over.wait(GLANCE_EVERY):
                os.pwrite(file.fileno(), b"here", 0)
                os.fsync(file.fileno())
                now = time.monotonic()
                late = now - seen_at - GLANCE_EVERY
                if late > LATE:
                    self._stalls.append((now, late))
                seen_at = now

    def longest_since(self, start: float) -> float:
        """The longest stall since then, in seconds; 0 when there was none."""
        time.sleep(3 * GLANCE_EVERY)  # the watch itself has to come back first
        return max((late for at, late in self._stalls if at >= start), default=0.0)

    def end(self) -> None:
        self._over.set()
        self._thread.join()


def waited_for_processor() -> float:
    """For how many seconds some process had to wait for one since the system's start; 0 where nobody counts."""
    try:
        found = re.search(r"some .*total=(\d+)", PRESSURE.read_text())
    except OSError:
        return 0.0
    return int(found[1]) / 1e6 if found else 0.0


def note_start(item: pytest.Item) -> None:
    """Say that what this test is about begins now, before its own turn comes."""
    item.stash[STARTED] = time.monotonic(), waited_for_processor()


class Again:
    """The plugin."""

    def __init__(self) -> None:
        self._watch = Watch()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        """Run a test, and once more when it failed on a machine that did not do its part."""
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in self._run(item, nextitem):
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def _run(self, item: pytest.Item, nextitem: pytest.Item | None) -> list[pytest.TestReport]:
        excuses: list[str] = []
        while True:
            if STARTED not in item.stash or excuses:
                note_start(item)
            since, waited = item.stash[STARTED]
            reports: list[pytest.TestReport] = runtestprotocol(item, nextitem=nextitem, log=False)
            if len(excuses) == MOST_REPEATS or not any(report.failed for report in reports):
                break
            excuse = self._excuse(since, waited)
            if excuse is None:
                break
            excuses.append(f"{excuse}; {_headline(reports)}")
        reports[-1].user_properties += [(PROPERTY, excuse) for excuse in excuses]
        return reports

    def _excuse(self, since: float, waited: float) -> str | None:
        share = (waited_for_processor() - waited) / (time.monotonic() - since)
        stood_still = self._watch.longest_since(since)
        if stood_still:
            return f"the machine stood still for {stood_still:.2f} s"
        if share > CROWDED:
            return f"processes waited for a processor for {share:.0%} of the time"
        return None

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say which tests were run again."""
        for reports in terminalreporter.stats.values():
            for report in reports:
                for name, excuse in getattr(report, "user_properties", ()):
                    if name == PROPERTY and report.when == "teardown":
                        terminalreporter.write_line(f"RUN AGAIN {report.nodeid}: {excuse}")

    def pytest_unconfigure(self) -> None:
        self._watch.end()


def _headline(reports: list[pytest.TestReport]) -> str:
    """What went wrong, in a line: a bug that shows only on a busy machine is a bug."""
    failed = next(report for report in reports if report.failed)
    crash = getattr(failed.longrepr, "reprcrash", None)
    return " ".join(f"{crash.path}:{crash.lineno} {crash.message}".split())[:300] if crash else "no traceback"


def stalls_are_no_failures(config: pytest.Config) -> None:
    """Install it."""
    config.pluginmanager.register(Again(), "stalls")
