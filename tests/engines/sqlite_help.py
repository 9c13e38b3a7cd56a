"""What the tests of the embedded engine share: a clock that can be moved, and processes that use a lease file."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from leasehold.core.engine import Want
from leasehold.core.worlds import run_blocking
from leasehold.engines.sqlite import SqliteEngine, SqliteFamily
from leasehold.wires.sqlite_file import lease_file

START = 10**12


class MovableClock:
    """A clock that stands still until it is moved."""

    def __init__(self, boot: str = "boot-1", now: int = START, stamp: int = 10**15) -> None:
        self.boot, self.micros, self.wall = boot, now, stamp

    def now(self) -> int:
        return self.micros

    def stamp(self) -> int:
        return self.wall


def family(path: Path, clock: MovableClock | None = None, *, namespace: str = "", options: str = "") -> SqliteFamily:
    return SqliteFamily(lease_file(f"sqlite:///{path}{options}"), namespace, clock=clock)


@contextlib.contextmanager
def opened(
    path: Path, clock: MovableClock | None = None, *, namespace: str = "", options: str = ""
) -> Iterator[SqliteEngine]:
    engine = family(path, clock, namespace=namespace, options=options).blocking()
    assert isinstance(engine, SqliteEngine)
    try:
        yield engine
    finally:
        run_blocking(engine.close())


def soon(engine: SqliteEngine, seconds: float = 5.0) -> float:
    return engine.world.now() + seconds


def want(name: str, holder: str, ttl: float = 30.0) -> Want:
    return Want(name, holder, ttl, about=f"{holder}@here:1")


# Other processes

PROLOGUE = """
import os, pathlib, signal, sys, time
from leasehold.core.acquire import Attempt, acquire, release
from leasehold.core.engine import Busy, Grant, Want
from leasehold.core.worlds import run_blocking
from leasehold.engines.sqlite import open_engine
path = pathlib.Path(sys.argv[1])
engine = open_engine(path, namespace="", client_label="").blocking()
world = engine.world

def say(*words):
    print(*words, flush=True)

def hold(name, ttl=30.0, wait=20.0, holder=None):
    attempt = Attempt(Want(name, holder or world.nonce(), ttl, about=f"worker@here:{os.getpid()}"))
    return run_blocking(acquire(engine, attempt, wait=wait, request_timeout=5.0))

def give_back(held):
    run_blocking(release(engine, held, request_timeout=5.0))

"""


class Worker:
    """Another process, running `code` after the prologue. It is killed at the end of the test, by its id."""

    def __init__(self, path: Path, code: str, *args: object, under: Sequence[str] = ()) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 -- closed in `end`
        self.process = subprocess.Popen(
            [*under, sys.executable, "-c", PROLOGUE + textwrap.dedent(code), str(path), *map(str, args)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def line(self) -> list[str]:
        """The next line that it says, in words."""
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        assert said, f"the worker ended ({self.process.wait(10)}) and said on its way: {self.complaints()}"
        return said.split()

    def lines(self) -> list[list[str]]:
        """All that it says until it ends, which must be well."""
        out, _ = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, self.complaints()
        return [line.split() for line in out.splitlines()]

    def tell(self, text: str = "go") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def complaints(self) -> str:
        self._errors.seek(0)
        return self._errors.read()

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)
        for stream in (self.process.stdin, self.process.stdout, self._errors):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


@contextlib.contextmanager
def workers(path: Path, code: str, count: int, *args: object) -> Iterator[list[Worker]]:
    everybody = [Worker(path, code, *args) for _ in range(count)]
    try:
        yield everybody
    finally:
        for worker in everybody:
            worker.end()


def eventually(condition: Callable[[], bool], within: float = 10.0) -> None:
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)
