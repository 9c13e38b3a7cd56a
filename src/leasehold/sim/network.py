"""Between clients and the server: messages that take their time, get lost, come twice, and overtake each other."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Protocol

from leasehold.sim.scheduler import Process, Scheduler, Task

QUICKEST = 0.0004
USUAL = 0.004
LONGEST_DELAY = 3.0
LATEST_DUPLICATE = 6.0

BROKEN = object()
"""What a request is answered with when its connection breaks."""

Operation = Callable[["Link"], object]
"""What a request does at the server, given the connection that it came by."""


class Listener(Protocol):
    """Who is woken at the other end of a connection."""

    def woken(self, holder: str | None) -> None:
        """A wake-up came for this attempt, or (None) all of them must look for themselves."""
        ...


class Link:
    """One connection of a process to the server. It is re-established by the next request after it broke."""

    __slots__ = ("address", "cut", "epoch", "listener", "pending", "process")

    def __init__(self, process: Process, address: str) -> None:
        self.process, self.address = process, address
        self.cut = False
        self.epoch = 0
        """Which connection this is: a reply to an earlier one finds nobody."""
        self.pending: dict[Task, int] = {}
        self.listener: Listener | None = None


class Network:
    """Carries messages. How badly, the fault plan decides."""

    def __init__(self, scheduler: Scheduler, rng: Random) -> None:
        self.scheduler, self.rng = scheduler, rng
        self.links: list[Link] = []
        self.delays = self.losses = self.duplicates = self.deaf = self.failing = 0.0
        """How likely each is, for one message; `failing`: that its connection fails right after it."""
        self.fail: Callable[[Link], float]
        """Lets a connection fail after a reply that is on its way; returns how late that one comes."""
        self.until = 0.0
        """Nothing that was sent is under way any more after this, but for the usual delay."""
        self.arrive: Callable[[Link, int, Operation, Task | None, int], object]

    def connect(self, process: Process, address: str) -> Link:
        """A new connection."""
        link = Link(process, address)
        self.links.append(link)
        return link

    def calm(self) -> None:
        """From now on the network is a good one."""
        self.delays = self.losses = self.duplicates = self.deaf = self.failing = 0.0
        for link in self.links:
            link.cut = False

    def delay(self) -> float:
        """How long the next message takes."""
        chance = self.rng.random
        if self.delays and chance() < self.delays:
            return QUICKEST + min(chance() * LONGEST_DELAY, max(self.until - self.scheduler.now, 0.0))
        return QUICKEST + chance() * USUAL

    def request(self, link: Link, operation: Operation, task: Task) -> None:
        """Send a request; its answer resumes the task."""
        scheduler, chance = self.scheduler, self.rng.random
        link.pending[task] = task.turn
        lost = link.cut or (self.losses and chance() < self.losses)
        if not lost:
            at = scheduler.now + self.delay()
            scheduler.call_at(at, self.arrive, link, link.epoch, operation, task, task.turn)
        if self.duplicates and not link.cut and chance() < self.duplicates:
            at = min(scheduler.now + chance() * LATEST_DUPLICATE, self.until)
            scheduler.call_at(max(at, scheduler.now + USUAL), self.arrive, link, -1, operation, None, 0)

    def reply(self, link: Link, epoch: int, task: Task, turn: int, answer: object) -> None:
        """Send an answer back."""
        if link.epoch != epoch or link.cut or (self.losses and self.rng.random() < self.losses):
            return
        late = self.fail(link) if self.failing and self.rng.random() < self.failing else 0.0
        self.scheduler.call_at(self.scheduler.now + self.delay() + late, self.scheduler.resume, task, turn, answer)

    def wake(self, link: Link, holder: str) -> None:
        """Send a wake-up."""
        if link.cut or (self.deaf and self.rng.random() < self.deaf):
            return
        self.scheduler.call_at(self.scheduler.now + self.delay(), self._woken, link, link.epoch, holder)

    def _woken(self, link: Link, epoch: int, holder: str | None) -> None:
        process = link.process
        if process.dead or link.epoch != epoch or link.listener is None:
            return
        if process.paused:
            process.backlog.append((self._woken, (link, epoch, holder)))
            return
        link.listener.woken(holder)

    def break_link(self, link: Link) -> None:
        """Break a connection: whoever waits for an answer is told, and whoever waits for news must look."""
        link.epoch += 1
        scheduler = self.scheduler
        for task, turn in link.pending.items():
            scheduler.call_at(scheduler.now + QUICKEST, scheduler.resume, task, turn, BROKEN)
        scheduler.call_at(scheduler.now + QUICKEST, self._woken, link, link.epoch, None)
