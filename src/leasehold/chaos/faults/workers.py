"""What happens to workers: they are frozen, or killed, with or without a word to the engine."""

from __future__ import annotations

import signal
import time
from typing import Any, ClassVar, Final

from leasehold.chaos.faults.base import BaseFault, aimed, frozen, told, untouched
from leasehold.chaos.site import Doing, Site, Worker
from leasehold.testing.proxy import Proxy

WRITES_WITHIN: Final = 0.1
"""Seconds that one who wakes up in the gap needs to write, as a rule."""
NO_PROXY = "there is no proxy between the workers and this engine, so its connections cannot be cut from outside"


class Pause(BaseFault):
    """SIGSTOP, as a long collection of garbage or a suspended machine; SIGCONT when the lease is over."""

    name: ClassVar[str] = "pause"
    summary: ClassVar[str] = "a holder is frozen (SIGSTOP) for longer than its TTL, then goes on"
    lasts: ClassVar[float] = 1.6
    pauses_holders: ClassVar[bool] = True
    at: ClassVar[tuple[Doing, ...]] = ("holds", "gap", "clings")

    def __init__(self) -> None:
        """Nobody is frozen yet."""
        super().__init__()
        self._frozen: list[tuple[Worker, int]] = []

    def strike(self, site: Site) -> dict[str, Any]:
        """Freeze one who is at the right thing; who was not, by the time that it stood still, is let go again."""
        give_up_at = time.monotonic() + 2 * site.ttl
        while (worker := aimed(site, *self.at, patience=give_up_at - time.monotonic())) is not None:
            pid = worker.pid
            if frozen([pid]) and (worker.doing() in self.at or time.monotonic() > give_up_at):
                self.take(site, [worker])
                self._frozen.append((worker, pid))
                return {"at": worker.name, "doing": worker.doing()}
            told(pid, signal.SIGCONT)
        return {"at": None}

    def put_right(self) -> None:
        """Let it go on, unless it is another one by now."""
        for worker, pid in self._frozen:
            if worker.pid == pid:
                told(pid, signal.SIGCONT)
        self._frozen.clear()


class PauseInGap(Pause):
    """The same in the moment that hurts: after the last look at the lease, before the write."""

    name: ClassVar[str] = "pause-in-gap"
    summary: ClassVar[str] = "a holder is frozen past its TTL between its last look at the lease and its write"
    at: ClassVar[tuple[Doing, ...]] = ("gap",)

    def strike(self, site: Site) -> dict[str, Any]:
        """Freeze one; mostly its successor has read and not written when it wakes up, for then its write hurts most."""
        said = super().strike(site)
        if self._frozen and site.chance.random() < 0.7:
            self.tell_to_hold_on(untouched(site, site.workers))
        return said

    def mend(self, site: Site) -> None:
        """Let it go on, and write, before its successor does."""
        if self._clinging:
            self.put_right()
            time.sleep(WRITES_WITHIN)
        super().mend(site)


class Kill(BaseFault):
    """SIGKILL. The kernel closes the connections, so the engine hears that somebody is gone."""

    name: ClassVar[str] = "kill"
    summary: ClassVar[str] = "a holder is killed (SIGKILL), and another worker is started in its place"
    lasts: ClassVar[float] = 0.5

    def __init__(self) -> None:
        """Nobody is dead yet."""
        super().__init__()
        self._dead: list[Worker] = []

    def strike(self, site: Site) -> dict[str, Any]:
        """Kill one, a holder if there is any."""
        worker = aimed(site, "holds", "gap")
        if worker is None:
            return {"at": None}
        self.take(site, [worker])
        self.silence(site, worker)
        doing = worker.doing()
        told(worker.pid, signal.SIGKILL)
        self._dead.append(worker)
        return {"at": worker.name, "doing": doing}

    def silence(self, _site: Site, _worker: Worker) -> None:
        """What comes before the kill: here nothing."""

    def put_right(self) -> None:
        """Start another in its place."""
        while self._dead:
            self._dead.pop().restart()


class HostDeath(Kill):
    """The whole host dies: no FIN and no RST reach the engine, which must find out by itself."""

    name: ClassVar[str] = "host-death"
    summary: ClassVar[str] = "a holder's host dies: its packets vanish, then it is killed; no FIN, no RST is seen"
    lasts: ClassVar[float] = 2.5

    def missing(self, site: Site) -> str | None:
        """It needs proxies."""
        return None if site.proxies else NO_PROXY

    def silence(self, site: Site, worker: Worker) -> None:
        """Let everything that it sends vanish, its last words too."""
        for proxy in self.take(site, site.proxies_of(worker)):
            proxy.black_hole()

    def put_right(self) -> None:
        """Give the new worker a network, then start it."""
        for proxy in self._taken:
            if isinstance(proxy, Proxy):
                proxy.heal()
        super().put_right()
