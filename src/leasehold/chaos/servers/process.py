"""A server as a process of this run: in a folder of its own, on free ports of the loopback, ended by process id."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Final

from leasehold.chaos.servers.programs import NoServer, find
from leasehold.chaos.servers.shim import Shim, shim
from leasehold.chaos.servers.witness import NoWitness, Witness
from leasehold.chaos.site import Clock, Disk
from leasehold.testing.ports import free_port

ENDS_WITHIN: Final = 30.0
_BECOME: Final = """
import os, sys
uid, gid, *command = sys.argv[1:]
os.setgroups([]), os.setgid(int(gid)), os.setuid(int(uid))
os.execv(command[0], command)
"""
"""Turns a process of root into a program of somebody else."""


class OwnServer(ABC):
    """One server. `start` after `stop` finds what it left in its folder, on the same ports."""

    starts_within: ClassVar[float] = 60.0
    other_user: ClassVar[str | None] = None
    """Who runs it when this process is root, whom it does not let run it."""
    ends_at: ClassVar[signal.Signals] = signal.SIGTERM
    """The signal at which it ends in good order, without waiting for its clients."""
    asks_libc: ClassVar[bool] = True
    """Whether it asks libc for the time, so that a shim can answer instead."""

    def __init__(self, engine: str, folder: Path, name: str, *, durable: bool) -> None:
        """Keep everything in a folder of this name; those who sync less than they might do so unless `durable`."""
        self.engine, self.name, self.folder, self.durable = engine, name, folder / name, durable
        self.program = find(engine)
        self.port = free_port()
        self.folder.mkdir()
        self.data = self.folder / "data"
        between: Shim | None = shim(self.folder, name) if self.asks_libc else None
        self.clock: Clock | None = between
        self.disk: Disk | None = None
        self.unseen = "the server was started without a witness of its writes"
        self._witness: Witness | None = None
        self.environment: dict[str, str] = dict(between.environment) if between else {}
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def command(self) -> list[str]:
        """What starts it."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether it serves requests."""

    @abstractmethod
    def url_at(self, hosts: str) -> str:
        """The engine's URL, when it is at these hosts and ports, separated by commas."""

    @property
    def address(self) -> str:
        """Its own host and port."""
        return f"127.0.0.1:{self.port}"

    def prepare(self) -> None:
        """Make what it needs before its first start: a folder that it can write to."""
        self.own_files()

    def leads(self) -> bool:
        """Whether it is the leader of its cluster."""
        return False

    def robberies(self) -> list[tuple[float, float]]:
        """From when until when it may have ended leases that were still held, by its own word; on `time.time()`."""
        return []

    def watch_disk(self) -> None:
        """Have each write to its data seen, where that can be; before its first start."""
        try:
            self.disk = self._witness = Witness(self.folder, f"{self.data.resolve()}/")
        except NoWitness as why:
            self.unseen = str(why)

    def has_settled(self) -> None:
        """It was prepared long ago: what it wrote meanwhile is on its disk, also where it never asked for that."""
        if self._witness is not None:
            self._witness.take_for_synced()

    def end(self) -> None:
        """End it now, and whoever sees its writes."""
        self.stop(hard=True)
        if self._witness is not None:
            self._witness.close()

    # Its life

    @property
    def pids(self) -> list[int]:
        """Its processes, the main one first; none while it is stopped."""
        if self._process is None or self._process.poll() is not None:
            return []
        return [self._process.pid, *_children(self._process.pid)]

    def launch(self) -> None:
        """Start it, and do not wait."""
        if self.pids:
            raise RuntimeError(f"the {self.engine} server {self.name!r} runs already")
        command = self._witness.seen(*self.command()) if self._witness else self.command()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._as_user(), *command],
                pass_fds=self._witness.passed if self._witness else (),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env={**os.environ, **self.environment},
                process_group=0,  # Ctrl-C is for the run, which ends its servers itself
            )

    def wait(self) -> None:
        """Wait until it answers."""
        give_up_at = time.monotonic() + self.starts_within
        while not self.answers():
            if not self.pids or time.monotonic() > give_up_at:
                raise NoServer(f"the {self.engine} server did not start: {self.last_words()}")
            time.sleep(0.02)

    def start(self) -> None:
        """Start it on what it left, and wait until it answers."""
        self.launch()
        self.wait()

    def stop(self, *, hard: bool = False) -> None:
        """End it, in good order or by SIGKILL, and wait until it is gone with all its processes."""
        pids = self.pids
        for pid in pids:
            _signal(pid, signal.SIGCONT)
        if pids and not hard:
            _signal(pids[0], self.ends_at)
            hard = not self._gone(pids)
        if hard:
            for pid in pids:
                _signal(pid, signal.SIGKILL)
            if not self._gone(pids):
                raise RuntimeError(f"the {self.engine} server {self.name!r} was killed and is still there")
        if self._process is not None:
            self._process.wait()
            self._process = None

    def _gone(self, pids: list[int]) -> bool:
        give_up_at = time.monotonic() + ENDS_WITHIN
        while any(map(_lives, pids)):
            if time.monotonic() > give_up_at:
                return False
            time.sleep(0.005)
        return True

    @property
    def log(self) -> Path:
        """The file of what it prints."""
        return self.folder / "log"

    def last_words(self) -> str:
        """The end of what it printed."""
        return self.log.read_text(errors="replace")[-500:] if self.log.exists() else "it printed nothing"

    # For those that root may not run

    def _as_user(self) -> list[str]:
        """What comes before a command that is to run as the server's user.

        Not arguments of `subprocess`: with those it forks past Python's own hooks, and gRPC, where an engine has loaded
        it, may abort the child before the command has begun.
        """
        if self.other_user is None or os.geteuid() != 0:
            return []
        account = self._account()
        return [sys.executable, "-IS", "-c", _BECOME, str(account.pw_uid), str(account.pw_gid)]

    def own_files(self) -> None:
        """Let the server's user own the folder, and let it get there."""
        if self.other_user is None or os.geteuid() != 0:
            return
        self._account()
        for parent in (self.folder, *self.folder.parents):
            if not parent.stat().st_mode & 0o001:
                parent.chmod(parent.stat().st_mode | 0o011)
        for path in (self.folder, *self.folder.rglob("*")):
            shutil.chown(path, self.other_user, self.other_user)

    def _account(self) -> pwd.struct_passwd:
        try:
            return pwd.getpwnam(self.other_user or "")
        except KeyError:
            raise NoServer(
                f"root may not run {self.engine}, and the user {self.other_user!r} that could is not on this machine; "
                "run this as a user other than root"
            ) from None

    def run(self, *command: str) -> None:
        """Run a program that prepares something, as the server's user."""
        as_user = [*self._as_user(), *command]
        done = subprocess.run(as_user, capture_output=True, text=True, cwd=self.folder, check=False)
        if done.returncode:
            raise NoServer(f"{Path(command[0]).name} failed: {(done.stderr or done.stdout)[-500:]}")


class Member(OwnServer):
    """A server that can be one of several that know each other."""

    peer: str = ""
    """Where the other members of its cluster find it."""

    @abstractmethod
    def meet(self, number: int, members: Mapping[str, str]) -> None:
        """Learn which member of a cluster it is, and where each of them finds the others; before its first start."""


def heard(port: int, words: bytes = b"", *, to_the_end: bool = False) -> bytes:
    """What a server says when it is told this, first or before it hangs up; nothing where it does not answer."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2.0) as connection:
            connection.sendall(words)
            said = connection.recv(65536)
            while to_the_end and (more := connection.recv(65536)):
                said += more
            return said
    except OSError:
        return b""


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _children(parent: int) -> list[int]:
    task = Path(f"/proc/{parent}/task/{parent}/children")
    try:
        found = task.read_text()
    except OSError:
        found = subprocess.run(["pgrep", "-P", str(parent)], capture_output=True, text=True, check=False).stdout
    return [int(pid) for pid in found.split()]


def _lives(pid: int) -> bool:
    """Whether it runs; one that has ended and was not asked for yet does not."""
    stat = Path(f"/proc/{pid}/stat")
    try:
        if stat.parent.parent.joinpath("self").exists():
            return stat.read_text().rpartition(")")[2].split()[0] not in "ZX"
        os.kill(pid, 0)
    except (FileNotFoundError, ProcessLookupError):
        return False
    return True
