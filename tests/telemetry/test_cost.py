"""While nobody watches, nothing is made, imported or asked; and the benchmark of it runs."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from leasehold.bench import run
from leasehold.bench.effort import QUICK
from leasehold.bench.watching import NOBODY, RATIO

UNWATCHED = """
import sys, leasehold
with leasehold.Leasehold(sys.argv[1]) as locks:
    with locks.lock("x"):
        assert locks.lock("x").try_acquire() is None
    lost = locks.lock("x").acquire()
    locks.lock("y").acquire().release()
print([name for name in ("leasehold.events", "prometheus_client", "opentelemetry") if name in sys.modules])
"""


def test_no_event_is_defined_while_nobody_watches(tmp_path: Path) -> None:
    command = [sys.executable, "-c", UNWATCHED, f"sqlite:///{tmp_path}/leases.db"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_the_benchmark_of_watching_runs(tmp_path: Path) -> None:
    effort = replace(QUICK, rounds=2, pairs=20)
    results = run(f"sqlite:///{tmp_path}/leases.db", ["watching"], effort, quiet=True)
    assert results.failed == []
    [table] = results.tables
    assert [row.who for row in table.rows] == [NOBODY, "a watcher", "Prometheus"]
    assert table.rows[0].figures[RATIO].value == 1
