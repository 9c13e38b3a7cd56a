"""Between clients and the server: messages that take their time, get lost, come twice, and overtake each other."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Protocol

from leasehold.core.engine import Grant
from leasehold.sim.scheduler import Process, Scheduler, Task

QUICKEST = 0.0004
USUAL = 0.004
LONGEST_DELAY = 3.0
LATEST_DUPLICATE = 6.0
SENT_AGAIN = 0.2
"""After how long at least a lost packet is sent again."""

BROKEN = object()
"""What a request is answered with when its connection breaks."""

Operation = Callable[["Link"], object]
"""What a request does at the server, given the connection that it came by."""


class Listener(Protocol):
    """Who is woken at the other end of a connection."""

    def woken(self, holder: str | None, handed: Grant | None) -> None:
        """A wake-up came for this attempt, maybe with a grant, or (None) all of them must look for themselves."""
        ...


class Breakable(Protocol):
    """Something that hears when a connection breaks."""

    def broke(self) -> None:
        """It broke."""
        ...


class Link:
    """One connection of a process to the server. It is re-established by the next request after it broke."""

    __slots__ = ("address", "cut", "epoch", "held", "latest", "listener", "pending", "process", "sockets")

    def __init__(self, process: Process, address: str) -> None:
        self.process, self.address = process, address
        self.cut = False
        self.epoch = 0
        """Which connection this is: a reply to an earlier one finds nobody."""
        self.pending: dict[Task, int] = {}
        self.listener: Listener | None = None
        self.latest: float | None = None
        """When the latest request arrives, where requests overtake each other only on a bad day; else None."""
        self.sockets: list[Breakable] = []
        """Those that are open on it."""
        self.held: list[tuple[Channel, tuple[object, ...]]] = []
        """What was sent in order while the connection was cut; it is sent again until it gets through."""


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
            self.mend(link)

    def mend(self, link: Link) -> None:
        """A cut is over: what is sent in order gets through now, unless somebody has given up the connection."""
        link.cut = False
        held, link.held = link.held, []
        if held and self.rng.random() < 0.5:
            self.break_link(link)
            return
        for channel, message in held:
            channel.send(*message)

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
            if link.latest is not None and not self.delays:
                link.latest = at = max(at, link.latest)
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

    def wake(self, link: Link, holder: str, handed: Grant | None) -> None:
        """Send a wake-up, with what was handed over."""
        if link.cut or (self.deaf and self.rng.random() < self.deaf):
            return
        self.scheduler.call_at(self.scheduler.now + self.delay(), self._woken, link, link.epoch, holder, handed)

    def _woken(self, link: Link, epoch: int, holder: str | None, handed: Grant | None = None) -> None:
        process = link.process
        if process.dead or link.epoch != epoch or link.listener is None:
            return
        if process.paused:
            process.backlog.append((self._woken, (link, epoch, holder, handed)))
            return
        link.listener.woken(holder, handed)

    def break_link(self, link: Link) -> None:
        """Break a connection: whoever waits for an answer is told, and whoever waits for news must look."""
        link.epoch += 1
        scheduler = self.scheduler
        for task, turn in link.pending.items():
            scheduler.call_at(scheduler.now + QUICKEST, scheduler.resume, task, turn, BROKEN)
        scheduler.call_at(scheduler.now + QUICKEST, self._woken, link, link.epoch, None)
        sockets, link.sockets = link.sockets, []
        link.held.clear()
        for one in sockets:
            scheduler.call_at(scheduler.now + QUICKEST, self._broke, link, one)

    def _broke(self, link: Link, one: Breakable) -> None:
        process = link.process
        if process.paused:
            process.backlog.append((self._broke, (link, one)))
        elif not process.dead:
            one.broke()


class Channel:
    """One direction of a connection that delivers everything in order, or breaks: as TCP does, and what is built on it.

    A message that gets lost is sent again by the system below, so that it and all that follow are late.
    """

    __slots__ = ("_backlog", "_deliver", "_epoch", "_latest", "_network", "_to_process", "link")

    def __init__(self, network: Network, link: Link, deliver: Callable[..., object], *, to_process: bool) -> None:
        """`deliver` is called at the other end; `to_process`: that is the client, who may be paused or dead."""
        self._network, self.link, self._deliver = network, link, deliver
        self._to_process, self._epoch, self._latest = to_process, link.epoch, 0.0
        self._backlog: list[tuple[object, ...]] = []

    def send(self, *message: object) -> None:
        """Send a message; into a broken connection, in vain."""
        network, link = self._network, self.link
        if link.epoch != self._epoch:
            return
        if link.cut:
            link.held.append((self, message))
            return
        late = 0.0
        if network.losses and network.rng.random() < network.losses:
            late = min(SENT_AGAIN * (1.0 + 4.0 * network.rng.random()), max(network.until - network.scheduler.now, 0.0))
        # Equal times are in the order of sending.
        self._latest = max(self._latest, network.scheduler.now + network.delay() + late)
        network.scheduler.call_at(self._latest, self._arrive, message)

    def _arrive(self, message: tuple[object, ...]) -> None:
        process = self.link.process
        if self.link.epoch != self._epoch or (self._to_process and process.dead):
            return
        if self._to_process and (process.paused or self._backlog):
            if not self._backlog:
                process.backlog.append((self._catch_up, ()))
            self._backlog.append(message)
            return
        self._deliver(*message)

    def _catch_up(self) -> None:
        if self.link.process.paused:
            self.link.process.backlog.append((self._catch_up, ()))
            return
        backlog, self._backlog = self._backlog, []
        for message in backlog:
            if self.link.epoch == self._epoch:
                self._deliver(*message)
