"""The command as its users have it: a process of its own, on a real engine."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from leasehold.cli.app import call

LEASEHOLD = (sys.executable, "-m", "leasehold")
PATIENCE = 20.0

BEAT = """
import os, signal, sys, time
for name in sys.argv[2:]:
    signal.signal(getattr(signal, name), signal.SIG_IGN)
path = sys.argv[1]
while True:
    with open(path + ".new", "w") as file:
        file.write(f"{os.getpid()} {time.clock_gettime(time.CLOCK_BOOTTIME)}")
    os.rename(path + ".new", path)
    time.sleep(0.01)
"""
"""A program that writes down, again and again, that it is alive; it ignores the signals that it is told to."""


def now() -> float:
    """The clock of leases."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def wait_for(condition: Callable[[], object], what: str, within: float = PATIENCE) -> None:
    """Wait until something is so; fail if it does not become so."""
    give_up_at = now() + within
    while not condition():
        assert now() < give_up_at, f"not within {within:g} s: {what}"
        time.sleep(0.02)


def lives(pid: int) -> bool:
    """Whether a process is there and has not ended (one that ended but was not reaped has)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


@dataclass(frozen=True)
class Result:
    """What a call left behind."""

    returncode: int
    stdout: str
    stderr: str


class Heart:
    """A process that writes down its latest heartbeat; see `BEAT`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "heartbeat"
        self._script = folder / "beat.py"
        self._script.write_text(BEAT)

    def command(self, *ignored_signals: str) -> list[str]:
        return [sys.executable, "-S", "-E", str(self._script), str(self.file), *ignored_signals]

    def as_grandchild(self, *ignored_signals: str) -> list[str]:
        """A shell that leaves the beating to a background process."""
        return ["sh", "-c", '"$@" & wait', "sh", *self.command(*ignored_signals)]

    def wait_until_it_beats(self) -> None:
        wait_for(self.file.exists, "the program has started")

    @property
    def pid(self) -> int:
        return int(self.file.read_text().split()[0])

    @property
    def latest_beat(self) -> float:
        return float(self.file.read_text().split()[1])


def guard_of(pid: int, heart: Heart) -> int:
    """The guard of a `leasehold run` whose program is the heart."""
    [guard] = [
        int(process.name)
        for process in Path("/proc").iterdir()
        if process.name.isdecimal() and _parent_of(int(process.name)) == pid and int(process.name) != heart.pid
    ]
    return guard


def _parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except FileNotFoundError:
        return 0


class Command:
    """Calls of ``leasehold`` with one engine; ends what it started."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.folder = url, folder
        self.environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("LEASEHOLD", "COLUMNS"))},
            "HOME": str(folder),
            "LEASEHOLD_URL": url,
        }
        self._started: list[subprocess.Popen[str]] = []

    def __call__(self, *arguments: str, **environment: str) -> Result:
        """Call it and wait for its end. A process of its own is dear, and only ``run`` needs one."""
        if arguments[:1] != ("run",):
            return call_in_process(list(arguments), {**self.environment, **environment})
        return self.in_process_of_its_own(*arguments, **environment)

    def in_process_of_its_own(self, *arguments: str, **environment: str) -> Result:
        """Call it as users do."""
        process = subprocess.run(
            [*LEASEHOLD, *arguments],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=60,
            check=False,
            cwd=self.folder,
            env={**self.environment, **environment},
        )
        return Result(process.returncode, process.stdout, process.stderr)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Call it and go on."""
        process = subprocess.Popen(
            [*LEASEHOLD, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            cwd=self.folder,
            env=self.environment,
        )
        self._started.append(process)
        return process

    def start_with(self, heart: Heart, *arguments: str, program: list[str] | None = None) -> subprocess.Popen[str]:
        """Start ``run`` with a beating program, and wait until it beats."""
        process = self.start("run", *arguments, "--", *(program or heart.command()))
        wait_for(lambda: heart.file.exists() or process.poll() is not None, "the program has started")
        assert process.poll() is None, process.communicate()
        return process

    def end_all(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.communicate(timeout=PATIENCE)


def call_in_process(arguments: list[str], environment: dict[str, str]) -> Result:
    """Call it here, with an environment of its own; what it sets for the whole process is put back."""
    before, log = dict(os.environ), logging.getLogger("leasehold")
    settings = log.handlers, log.propagate, log.level
    out, err = io.StringIO(), io.StringIO()
    os.environ.clear()
    os.environ.update(environment)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
            code = call(arguments)
    finally:
        os.environ.clear()
        os.environ.update(before)
        log.handlers, log.propagate = settings[:2]
        log.setLevel(settings[2])
    return Result(code, out.getvalue(), err.getvalue())
