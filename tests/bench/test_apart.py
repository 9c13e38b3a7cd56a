"""A server and whoever measures it are kept on different processors, and let go again."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from leasehold.bench.apart import apart

PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(child.pid, flush=True)
sys.stdin.read()
child.kill()
"""


@pytest.fixture
def processes() -> Iterator[list[int]]:
    """A process and one that it has started."""
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        yield [parent.pid, int(parent.stdout.readline())]
        parent.communicate("")


def test_what_was_started_is_kept_off_the_processor_that_measures(processes: list[int]) -> None:
    everywhere = os.sched_getaffinity(0)
    if len(everywhere) < 2:
        with apart() as is_apart:
            assert not is_apart
        return
    with apart() as is_apart:
        assert is_apart
        here = os.sched_getaffinity(0)
        assert len(here) == 1
        for process in processes:
            assert os.sched_getaffinity(process) == everywhere - here
    for process in [0, *processes]:
        assert os.sched_getaffinity(process) == everywhere


def test_what_ended_meanwhile_is_no_error(processes: list[int]) -> None:
    with apart():
        os.kill(processes[1], 9)
        time.sleep(0.05)
    assert os.sched_getaffinity(processes[0]) == os.sched_getaffinity(0)
