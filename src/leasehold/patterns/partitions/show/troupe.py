"""The processes of the show, seen from outside: who owns what is asked of the engine itself."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from leasehold.client import Leasehold
from leasehold.errors import EngineError
from leasehold.patterns.partitions.entities import Entities
from leasehold.patterns.partitions.show.stage import GROUP, PATIENT, Stage, UnderWay


class TookTooLong(Exception):
    """Something that must happen has not happened."""


def wait_for(condition: Callable[[], object], what: str, *, within: float = PATIENT, every: float = 0.02) -> float:
    """Wait for a condition; returns how long that took."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > within:
            raise TookTooLong(f"{what}: not within {within:g} s")
        time.sleep(every)
    return time.monotonic() - began


class Ownership(NamedTuple):
    """Who has a partition, and with which token."""

    worker: int
    token: int


class Troupe:
    """Workers on one engine and one stage."""

    def __init__(self, on: str, folder: Path, *, partitions: int, ttl: float, work: float) -> None:
        self._on, self._folder, self._ttl, self._work = on, folder, ttl, work
        self.entities = Entities(GROUP, partitions)
        self.locks = Leasehold(on if "://" in on else Path(on), label="show")
        self.stage = Stage(folder)
        self.stage.create()
        self.inbox = self.stage.inbox(partitions)
        self.inbox.create()
        self.put: dict[str, int] = {}
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._hired = 0

    @property
    def workers(self) -> list[int]:
        """The process ids of those that are there."""
        return list(self._processes)

    def hire(self) -> int:
        """Start one more; returns its process id."""
        self._hired += 1
        command = [sys.executable, "-m", "leasehold.patterns.partitions.show.worker", self._on, str(self._folder)]
        settings = [f"worker-{self._hired}", str(self.entities.partitions), str(self._ttl), str(self._work)]
        with (self._folder / f"worker-{self._hired}.log").open("wb") as log:
            process = subprocess.Popen([*command, *settings], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._processes[process.pid] = process
        return process.pid

    def signal(self, worker: int, number: signal.Signals) -> None:
        """Send a signal to one of ours; one that ends it is waited for."""
        os.kill(worker, number)
        if number in (signal.SIGKILL, signal.SIGTERM):
            self._processes.pop(worker).wait(PATIENT)

    def freeze_at_work(self, send: Callable[[], object], within: float = PATIENT) -> UnderWay:
        """Freeze a worker in the middle of something, which it has not ended when it stands still.

        `send` is called when there is nothing to do. One that happens to hold the write lock of a database is let go
        again: nobody could work beside it.
        """
        give_up_at = time.monotonic() + within
        while time.monotonic() < give_up_at:
            work = self.stage.under_way(self.workers)
            if work is None:
                if not self.inbox.waiting():
                    send()
                time.sleep(0.005)
                continue
            self.signal(work.worker, signal.SIGSTOP)
            time.sleep(0.05)  # a write that was under way when it was stopped is over, or never comes
            if self.stage.under_way([work.worker]) == work and not self._is_locked():
                return work
            self.signal(work.worker, signal.SIGCONT)
            time.sleep(0.3)  # let it do something else before it is tried again
        raise TookTooLong(f"nobody could be caught at work within {within:g} s")

    def _is_locked(self) -> bool:
        if self.stage.is_locked():
            return True
        try:
            with self.locks.lock("show-is-engine-free", wait=0):
                return False
        except EngineError:
            return True

    def send(self, entity: str) -> None:
        """Put the next message of an entity into the inbox."""
        number = self.put.get(entity, 0)
        self.inbox.put(entity, number)
        self.put[entity] = number + 1

    def owners(self) -> dict[int, Ownership]:
        """Who has each partition, as the engine tells."""
        found = {}
        for number in range(self.entities.partitions):
            status = self.locks.status(self.entities.lock_of(number))
            if status is not None and status.holders:
                holder = status.holders[0]
                found[number] = Ownership(int(holder.about.rpartition(":")[2]), holder.token)
        return found

    def is_flat(self) -> bool:
        """Whether every partition is owned by somebody who is there, and everybody has as many as the others."""
        loads = Counter(owner.worker for owner in self.owners().values())
        shares = [loads[worker] for worker in self._processes]
        return sum(shares) == self.entities.partitions and max(shares) - min(shares) <= 1

    def wait_flat(self, within: float = PATIENT) -> float:
        """Wait until it is; returns how long that took."""
        return wait_for(self.is_flat, "all partitions owned evenly", within=within, every=0.1)

    def close(self) -> None:
        """End what is left."""
        for process in self._processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait(PATIENT)
        self._processes.clear()
        self.inbox.close()
        self.stage.close()
        self.locks.close()


@contextlib.contextmanager
def troupe(on: str, folder: Path, *, partitions: int, ttl: float, work: float) -> Iterator[Troupe]:
    """A troupe that ends with the block."""
    made = Troupe(on, folder, partitions=partitions, ttl=ttl, work=work)
    try:
        yield made
    finally:
        made.close()
