"""Tests that failed while the machine itself stood still are run again.

Leases have deadlines: on a machine that stands still for longer than a TTL they are lost, as they should be, and a test
that needed one fails. So the machine is watched from a thread: how late it comes back from a short sleep and a small
write to the disk. A test that failed while the machine was that late is run again, at most twice, and the summary says
so. A test that fails on a machine that did its part has failed.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time

import pytest
from _pytest.runner import runtestprotocol

GLANCE_EVERY = 0.02
LATE = 0.1
"""How late is too late, in seconds: a third of the shortest TTL that the tests use."""
MOST_REPEATS = 2


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


class Again:
    """The plugin."""

    def __init__(self) -> None:
        self._watch = Watch()
        self._repeated: list[str] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        """Run a test, and once more when it failed on a machine that stood still."""
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in self._run(item, nextitem):
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def _run(self, item: pytest.Item, nextitem: pytest.Item | None) -> list[pytest.TestReport]:
        repeats = 0
        while True:
            since = time.monotonic()
            reports: list[pytest.TestReport] = runtestprotocol(item, nextitem=nextitem, log=False)
            if repeats == MOST_REPEATS or not any(report.failed for report in reports):
                return reports
            stood_still = self._watch.longest_since(since)
            if not stood_still:
                return reports
            repeats += 1
            self._repeated.append(f"{item.nodeid}: the machine stood still for {stood_still:.2f} s")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say which tests were run again."""
        for line in self._repeated:
            terminalreporter.write_line(f"RUN AGAIN {line}")

    def pytest_unconfigure(self) -> None:
        self._watch.end()


def stalls_are_no_failures(config: pytest.Config) -> None:
    """Install it."""
    config.pluginmanager.register(Again(), "stalls")
