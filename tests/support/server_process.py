"""What servers of the tests' own have in common: a folder in memory, a process that is ended by its id, a leader."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

from leasehold.testing.processes import freeze

STARTS_WITHIN = 60.0
ENDS_WITHIN = 20.0
MEMORY, ROOM = Path("/dev/shm"), 2**30
"""No test here pulls the plug; what would be synced to a disk that others are busy with is kept in memory."""
NodeT = TypeVar("NodeT")


@contextlib.contextmanager
def memory_folder() -> Iterator[Path]:
    """A folder in memory where there is room; another system user can reach it, which those of pytest cannot be."""
    in_memory = MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ROOM
    folder = Path(tempfile.mkdtemp(prefix="leasehold-test-", dir=MEMORY if in_memory else None))
    try:
        folder.chmod(0o755)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class ServerProcess:
    """A server that can be started again after its end, and then finds what its folder kept."""

    def __init__(self, what: str, log: Path) -> None:
        """`what` is how a failure calls it; what it says goes to the log."""
        self._what, self._log = what, log
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def launch(self, command: Sequence[str], folder: Path | None = None) -> None:
        """Begin the process, in this folder."""
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder)

    def wait_until(self, answers: Callable[[], bool]) -> None:
        """Wait until it answers; the test fails if it ends before."""
        give_up_at = time.monotonic() + STARTS_WITHIN
        while not answers():
            if not self.runs or time.monotonic() > give_up_at:
                pytest.fail(f"{self._what} did not start:\n{self._log.read_text()[-2000:]}")
            time.sleep(0.01)

    def pause(self) -> None:
        """Freeze it: it answers nobody, and no connection is closed."""
        freeze(self.pid)

    def resume(self) -> None:
        """Let it go on, if it is there."""
        if self.process is not None and self.runs:
            self.process.send_signal(signal.SIGCONT)

    def end(self, number: signal.Signals) -> None:
        """Have it end by this signal; one that does not is killed."""
        self.resume()
        if self.process is not None and self.runs:
            self.process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(ENDS_WITHIN)
        ServerProcess.kill(self)

    def kill(self) -> None:
        """End it at once, as a crash would; one that is frozen does nothing more."""
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.wait(ENDS_WITHIN)


def leader_of(nodes: Sequence[NodeT], leads: Callable[[NodeT], bool]) -> NodeT:
    """The one that leads, as it says itself; those that are away cannot be asked."""
    give_up_at = time.monotonic() + STARTS_WITHIN
    while time.monotonic() < give_up_at:
        for node in nodes:
            with contextlib.suppress(OSError, ValueError):
                if leads(node):
                    return node
        time.sleep(0.05)
    pytest.fail("nobody leads")
