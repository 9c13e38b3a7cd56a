"""What all faults have in common: they aim, they leave alone what another fault has in its hands, and they let go."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar

from leasehold.chaos.site import Doing, Server, Site, Worker

T = TypeVar("T")
LOOKS_EVERY: Final = 0.0005
STANDS_STILL_WITHIN: Final = 10.0


class BaseFault(ABC):
    """A fault that is struck and mended in turn, once at a time."""

    name: ClassVar[str]
    summary: ClassVar[str]
    lasts: ClassVar[float]
    pauses_holders: ClassVar[bool] = False
    ends_connections: ClassVar[bool] = False
    loses_answers: ClassVar[bool] = False

    def __init__(self) -> None:
        """Nothing is broken yet."""
        self._taken: list[object] = []
        self._clinging: list[Worker] = []

    def missing(self, site: Site) -> str | None:  # noqa: ARG002  others look at it
        """What it needs and this site has not; None when it can be done."""
        return None

    @abstractmethod
    def strike(self, site: Site) -> dict[str, Any]:
        """Break it; what is said about it in the history."""

    @abstractmethod
    def put_right(self) -> None:
        """Undo what `strike` did."""

    def mend(self, site: Site) -> None:
        """Put it right again, and let go."""
        try:
            self.put_right()
        finally:
            self.let_go()
            site.struck[:] = [one for one in site.struck if all(one is not mine for mine in self._taken)]
            self._taken.clear()

    def take(self, site: Site, things: Iterable[T]) -> list[T]:
        """Take these in hand, but for those that another fault has."""
        mine = untouched(site, things)
        self._taken += mine
        site.struck += mine
        return mine

    def have_one_cling(
        self, site: Site, among: Sequence[Worker] | None = None, *, within: float = 1.0
    ) -> Worker | None:
        """Have a worker go on holding until it is let go, and wait until it does; None where nobody does in time.

        Most work is over in a moment: without this, what happens to a lease that is held for long would hardly be seen.
        `within` is in TTLs: where something else is broken, it may be that nobody is granted anything.
        """
        give_up_at = time.monotonic() + within * site.ttl
        workers = self.tell_to_hold_on(untouched(site, site.workers) if among is None else among)
        while time.monotonic() < give_up_at:
            found = [worker for worker in workers if worker.doing() == "clings"]
            if found:
                self.let_go(but=found[:1])
                return found[0]
            time.sleep(LOOKS_EVERY)
        self.let_go()
        return None

    def tell_to_hold_on(self, workers: Sequence[Worker]) -> Sequence[Worker]:
        """Have each of them go on holding what it is granted next, until it is let go."""
        self._clinging += workers
        for worker in workers:
            worker.hold_on(True)
        return workers

    def let_go(self, *, but: Sequence[Worker] = ()) -> None:
        """Let those who cling go on with their work."""
        for worker in self._clinging:
            if worker not in but:
                worker.hold_on(False)
        self._clinging = list(but)


def untouched(site: Site, things: Iterable[T]) -> list[T]:
    """Those that no fault has in its hands."""
    return [one for one in things if all(one is not other for other in site.struck)]


def aimed(site: Site, *doings: Doing, patience: float | None = None) -> Worker | None:
    """A worker that is at one of these, as soon as there is one; else any; None when all are in other hands."""
    give_up_at = time.monotonic() + (site.ttl if patience is None else patience)
    while workers := untouched(site, site.workers):
        fitting = [worker for worker in workers if worker.doing() in doings]
        if fitting:
            return site.chance.choice(fitting)
        if time.monotonic() > give_up_at:
            return site.chance.choice(workers)
        time.sleep(LOOKS_EVERY)
    return None


def one_or_all(site: Site, servers: list[Server]) -> list[Server]:
    """One of a cluster, or sometimes all of it."""
    return servers if len(servers) < 2 or site.chance.random() < 0.25 else [site.chance.choice(servers)]


# Signals


def told(pid: int, number: signal.Signals) -> bool:
    """Send a signal; whether there was somebody to get it."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def frozen(pids: Iterable[int]) -> list[int]:
    """Stop these processes, and return when every one of them stands still; those that were there."""
    stopped = [pid for pid in pids if told(pid, signal.SIGSTOP)]
    give_up_at = time.monotonic() + STANDS_STILL_WITHIN
    while not all(map(_stands_still, stopped)):
        if time.monotonic() > give_up_at:
            raise TimeoutError(f"processes {stopped} were told to stop and run on after {STANDS_STILL_WITHIN:g} s")
        time.sleep(LOOKS_EVERY)
    return stopped


def _stands_still(pid: int) -> bool:
    """Whether it is stopped, or over."""
    if Path("/proc/self/stat").exists():
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
    else:
        shown = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
        state = shown.stdout.strip()[:1] or "X"
    return state in "TZX"
