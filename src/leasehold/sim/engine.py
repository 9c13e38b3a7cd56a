"""The engine of the simulated world: every operation is a request through the network, and may get no answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn, cast

from leasehold.core.engine import (
    Busy,
    Capability,
    Engine,
    Facts,
    Grant,
    Guarantee,
    NameStatus,
    Purpose,
    Renewal,
    Suspect,
    Want,
)
from leasehold.core.worlds import World
from leasehold.errors import EngineUnavailable, NotSupported, OutcomeUnknown
from leasehold.sim.network import BROKEN, Link, Network, Operation
from leasehold.sim.scheduler import PARK, Task
from leasehold.sim.server import SimServer
from leasehold.sim.world import SimWorld

LATE = object()
"""What a request is answered with when its time is up."""

FACTS = Facts(
    engine="simulated",
    address="nowhere",
    capabilities=frozenset(Capability) - {Capability.INSPECT, Capability.TOKEN_SURVIVES_FAILOVER},
    guarantee=Guarantee(
        not_guaranteed="anything outside of a simulation",
        tokens="the lease table: max(last + 1, the server's clock)",
        fit_for_correctness=True,
        timekeeper="the simulated server's wall clock",
        ends="release, expiry, force",
        loss_told="at the holder's own deadline",
        takeover="the TTL",
        failover="none",
        proxies="none",
        enforce_with="the simulated resources",
    ),
    least_ttl=0.1,
    hands_over=True,
)


class SimEngine:
    """Implements `leasehold.core.engine.Engine` over one connection."""

    def __init__(self, world: SimWorld, network: Network, server: SimServer, link: Link) -> None:
        self.facts, self.world = FACTS, cast(World, world)
        self._own = world
        self._network, self._server, self._link = network, server, link
        self._scheduler = network.scheduler
        self._waiting: dict[str, Task] = {}
        self._woken: dict[str, Grant | None] = {}
        link.listener = self

    async def take(
        self, want: Want, *, until: float, patience: float | None = None, suspect: Suspect | None = None
    ) -> Grant | Busy:
        """Take the name, or say why not."""
        server = self._server
        self._woken.pop(want.holder, None)
        answer = await self._request(lambda link: server.take(want, link.address, patience, suspect), until)
        assert isinstance(answer, Grant | Busy)
        return answer

    async def wait(self, want: Want, until: float) -> Grant | None:
        """Return when woken, or at `until`, with what was handed over."""
        if want.holder in self._woken:
            return self._woken.pop(want.holder)
        task = self._scheduler.current
        self._waiting[want.holder] = task
        self._scheduler.resume_at(self._own.true_time(until), task)
        try:
            handed = await PARK
        finally:
            self._waiting.pop(want.holder, None)
            self._woken.pop(want.holder, None)
        return handed if isinstance(handed, Grant) else None

    def woken(self, holder: str | None, handed: Grant | None) -> None:
        """A wake-up came, or (None) the connection broke, so that wake-ups may have been missed."""
        for one in list(self._waiting) if holder is None else [holder]:
            task = self._waiting.get(one)
            if task is not None:
                self._scheduler.resume_at(self._scheduler.now, task, handed)
            else:
                self._woken[one] = handed

    async def renew(self, leases: Sequence[Renewal], *, until: float) -> list[bool]:
        """Prolong each lease that is still held."""
        server = self._server
        answer = await self._request(lambda _link: server.renew(leases), until)
        assert isinstance(answer, list)
        return answer

    async def release(self, name: str, holder: str, *, until: float) -> bool:
        """Give the name back, and leave its queue."""
        server = self._server
        answer = await self._request(lambda _link: server.release(name, holder), until)
        assert isinstance(answer, bool)
        return answer

    async def force_release(self, name: str, *, until: float) -> int:
        """End every lease on the name."""
        server = self._server
        answer = await self._request(lambda _link: server.force_release(name), until)
        assert isinstance(answer, int)
        return answer

    async def _request(self, operation: Operation, until: float) -> object:
        scheduler, link = self._scheduler, self._link
        give_up_at = self._own.true_time(until)
        if give_up_at <= scheduler.now:
            raise EngineUnavailable("there was no time left to ask")
        task = scheduler.current
        if self._server.down and not link.cut:
            scheduler.resume_at(min(scheduler.now + self._network.delay(), give_up_at), task)
            await PARK
            raise EngineUnavailable("the server refuses connections")
        self._network.request(link, operation, task)
        scheduler.resume_at(give_up_at, task, LATE)
        try:
            answer = await PARK
        finally:
            link.pending.pop(task, None)
        if answer is LATE:
            raise OutcomeUnknown("no answer came in time")
        if answer is BROKEN:
            raise OutcomeUnknown("the connection broke before an answer came")
        return answer

    async def status(self, name: str, *, until: float) -> NameStatus | None:
        """Not simulated."""
        self._not_simulated(name, until)

    async def names(self, *, after: str | None, limit: int, until: float) -> list[str]:
        """Not simulated."""
        self._not_simulated(after, limit, until)

    async def check_purpose(self, purpose: Purpose, *, until: float) -> None:
        """Every purpose is served."""

    async def close(self) -> None:
        """Nothing is kept open."""

    def forked(self) -> None:
        """No simulated process forks."""

    def _not_simulated(self, *_asked: object) -> NoReturn:
        raise NotSupported("nobody in the simulation asks for this; the judges see everything anyway")


class SimFamily:
    """Implements `leasehold.core.engine.EngineFamily` for one process: its callers and its keeper."""

    def __init__(self, world: SimWorld, network: Network, server: SimServer) -> None:
        self.facts = FACTS
        self._world, self._network, self._server = world, network, server
        self._opened = 0
        self.links: list[Link] = []

    def blocking(self) -> Engine:
        """Not another world here."""
        return self.asyncio()

    def asyncio(self) -> Engine:
        """An engine with a connection of its own."""
        self._opened += 1
        process = self._world.inside
        link = self._network.connect(process, f"{process.label}/{self._opened}")
        self.links.append(link)
        return SimEngine(self._world, self._network, self._server, link)
