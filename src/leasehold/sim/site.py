"""A system of servers in the simulated world: what is the same for all of them, and what a fault can do to it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol

from leasehold.core.engine import Engine, EngineFamily
from leasehold.errors import LeaseholdError
from leasehold.sim.scheduler import Process
from leasehold.sim.world import Clock, SimWorld

if TYPE_CHECKING:
    from leasehold.sim.history import Event, Left
    from leasehold.sim.network import Link, Network, Operation
    from leasehold.sim.scheduler import Task

OPERATORS_PATIENCE: Final = 2.0


class SimulatedFamily(EngineFamily, Protocol):
    """An engine's family that is reached over simulated connections."""

    links: list[Link]
    """All connections of the process, for faults to strike."""


async def _forced(engine: Engine, name: str) -> None:
    """Break once; whether that works is the operator's own trouble."""
    with suppress(LeaseholdError):
        await engine.force_release(name, until=engine.world.now() + OPERATORS_PATIENCE)


class Site(ABC):
    """One system that keeps leases: a server, or a cluster."""

    linger = 0.0
    """How much longer than a TTL something may stay there after its process died."""

    opening = 0.0
    """For how long even a caller in a hurry lets a connection be opened for it."""

    def __init__(self, network: Network, events: list[Event], rate: float) -> None:
        """`rate` is that of its clock."""
        self.network, self.scheduler, self.events = network, network.scheduler, events
        self.rate = rate
        self.down = self.paused = False
        self._backlog: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        network.arrive = self.arrive
        self._operators = 0

    def arrange(self, kinds: tuple[str, ...]) -> None:  # noqa: B027 -- most need nothing
        """Take note of what will be wrong all the time."""

    # Requests, as they come.

    def arrive(self, link: Link, epoch: int, operation: Operation, task: Task | None, turn: int) -> None:
        """Carry out a request and answer it; a repeated one (without a task) is not answered."""
        if self.down or (task is not None and epoch != link.epoch):
            return
        if self.paused:
            self._backlog.append((self.arrive, (link, epoch, operation, task, turn)))
            return
        if task is not None and not link.process.dead:
            self.heard_of(link)
        answer = operation(link)
        if task is not None:
            self.network.reply(link, epoch, task, turn, answer)

    def receive(self, link: Link, epoch: int, call: Callable[..., object], *arguments: object) -> None:
        """Something has come over a connection that carries messages in order."""
        if self.down or epoch != link.epoch:
            return
        if self.paused:
            self._backlog.append((self.receive, (link, epoch, call, *arguments)))
            return
        call(*arguments)

    def when_awake(self, call: Callable[[], object]) -> None:
        """Do something by itself, as soon as it is up and running."""
        if self.paused or self.down:
            self._backlog.append((self.when_awake, (call,)))
        else:
            call()

    def heard_of(self, link: Link) -> None:  # noqa: B027 -- most need nothing
        """A connection is in use."""

    def hung_up(self, link: Link) -> None:  # noqa: B027 -- most need nothing
        """The other end of a connection is gone, and said so."""

    def lose(self, link: Link) -> None:  # noqa: B027 -- most need nothing
        """The server loses a connection, and the client does not hear of that."""

    def resume(self) -> None:
        """End a pause and carry out what has piled up."""
        self.paused = False
        if not self.down:
            self._catch_up()

    def _catch_up(self) -> None:
        backlog, self._backlog = self._backlog, []
        for call, arguments in backlog:
            call(*arguments)

    def stop(self, *, wipe: bool) -> None:
        """Stop serving, for a restart; every connection breaks."""
        self.down, self.paused = True, False
        self._backlog = [(call, arguments) for call, arguments in self._backlog if call == self.when_awake]
        self.stopped(wipe=wipe)
        for link in self.network.links:
            self.network.break_link(link)

    def stopped(self, *, wipe: bool) -> None:  # noqa: B027 -- most need nothing
        """What does not survive is gone."""

    def start(self) -> None:
        """Serve again."""
        self.down = False
        self._catch_up()

    def lose_leader(self) -> None:  # noqa: B027 -- most need nothing
        """Where a leader decides: there is none."""

    def elect(self) -> None:  # noqa: B027 -- most need nothing
        """There is a new leader."""

    # What differs.

    @abstractmethod
    def family(self, world: SimWorld) -> SimulatedFamily:
        """The engine's family as a process sees it."""

    def set_clock(self, seconds: float) -> None:  # noqa: B027 -- most need nothing
        """Set the wall clock forward, or back; where nobody goes by a wall clock, that changes nothing."""

    def force_release(self, name: str) -> object:
        """An operator ends every lease on the name, with the engine's own code."""
        self._operators += 1
        process = Process(f"operator-{self._operators}")
        world = SimWorld(self.scheduler, process, Clock(1.0, 0.0), self.network.rng, -self._operators)
        engine = self.family(world).asyncio()
        return self.scheduler.spawn(_forced(engine, name), process, "operator!")

    @abstractmethod
    def leftovers(self) -> list[Left]:
        """What is still there when every lease must have run out."""
