"""A client's process: the product's own locks, leases and keeper, on a simulated host."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from leasehold import keeping
from leasehold.core.acquire import GRACE, SHORTEST_REQUEST, Attempt
from leasehold.core.engine import TellsLosses
from leasehold.core.held import Held
from leasehold.core.keeper import Keeper
from leasehold.desk import Desk, L, MakeLease
from leasehold.lease import AsyncLease, LeaseView
from leasehold.lock import AsyncLock, AsyncSeveral
from leasehold.settings import Terms
from leasehold.sim.history import Began, Done, Ended, Event, Got, Moved, Told
from leasehold.sim.network import Network
from leasehold.sim.record import CRASHED
from leasehold.sim.scheduler import Process, Scheduler
from leasehold.sim.site import Site
from leasehold.sim.world import Clock, SimAlarm, SimWorld


class SimKeeping(keeping.KeeperThread):
    """The keeper's three loops as tasks of the simulated process, instead of a thread."""

    def __init__(self, client: Client) -> None:
        super().__init__(client.family)
        self._client = client

    def _start(self) -> Keeper:
        if self._keeper is not None:  # one that keeps nothing now is there all the same
            return self._keeper
        client = self._client
        keeper = Keeper(client.world, lambda: SimAlarm(client.world), client.tell)
        engine = client.family.asyncio()
        if isinstance(engine, TellsLosses):
            engine.when_lost(keeper.revoked)
        spawn, process = client.scheduler.spawn, client.process
        spawn(keeper.watch_deadlines(), process, "deadlines")
        spawn(keeper.renew(engine), process, "renewals")
        spawn(keeper.clean_up(engine), process, "clean-up")
        self._keeper = keeper
        return keeper

    def stop(self) -> None:
        """End the loops; there is no thread to wait for."""
        if self._keeper is not None:
            for held in self._keeper.leases:  # whose process ends: nobody is there to be told
                self._keeper.forget(held)
            self._keeper.close()


class SimDesk(Desk):
    """The product's desk; each attempt is recorded when it is made."""

    def __init__(self, client: Client, request_timeout: float) -> None:
        super().__init__(
            client.family,
            client.family.asyncio(),
            label=client.process.label,
            request_timeout=request_timeout,
            most_waiters=100,
        )
        self.keeper = client.keeping
        self.about = client.process.label
        self._client = client
        self._kept_alive: list[LeaseView] = []

    def attempt(self, terms: Terms) -> Attempt:
        """A fresh attempt."""
        attempt = super().attempt(terms)
        # What people are told of an attempt is shown by every engine; here it says whose it is, for the judges.
        attempt.want = attempt.want._replace(about=attempt.want.holder)
        self._client.began(attempt, terms)
        return attempt

    def _kept(self, held: Held, terms: Terms, make: MakeLease[L]) -> L:
        # A lease is given back when nobody can reach it any more; when that is, must not depend on Python's own timing.
        lease = super()._kept(held, terms, make)
        self._kept_alive.append(lease)
        return lease


class Watched:
    """A lease that a worker has, and what was last seen of it."""

    __slots__ = ("ended", "held", "lease", "valid_until", "who")

    def __init__(self, who: str, lease: AsyncLease) -> None:
        self.who, self.lease, self.held = who, lease, lease._held
        self.valid_until = self.held.valid_until
        self.ended: str | None = None


class Client:
    """One process with one client in it."""

    def __init__(
        self,
        label: str,
        number: int,
        *,
        clock: Clock,
        rng: Random,
        network: Network,
        site: Site,
        events: list[Event],
        request_timeout: float,
    ) -> None:
        self.scheduler: Scheduler = network.scheduler
        self.process = Process(label)
        self.process.look = self.look
        self.world = SimWorld(self.scheduler, self.process, clock, rng, number)
        self.family = site.family(self.world)
        self.keeping = SimKeeping(self)
        self.desk = SimDesk(self, request_timeout)
        self._events = events
        self._request_timeout, self._opening = request_timeout, site.opening
        self.attempts: dict[str, list[str]] = {}
        """The attempts under way, for each worker."""
        self.together: dict[str, int] = {}
        """How many names at once, for each worker that takes several."""
        self._who: dict[str, str] = {}

    def lock(self, terms: Terms) -> AsyncLock:
        """The product's lock."""
        return AsyncLock(self.desk, terms)

    def several(self, terms: Iterable[Terms]) -> AsyncSeveral:
        """The product's lock on several names."""
        return AsyncSeveral(self.desk, list(terms))

    def began(self, attempt: Attempt, terms: Terms) -> None:
        """Record an attempt that begins."""
        who, now, want = self.scheduler.current.label, self.scheduler.now, attempt.want
        under_way = self.attempts.setdefault(who, [])
        names = self.together.get(who, 1)
        # One last request for each name (the only one if there is no wait), and giving up; several are then given back.
        request = (SHORTEST_REQUEST if terms.wait else self._request_timeout) + self._opening
        patience = terms.wait + names * request + GRACE
        due = now + self.world.duration(patience + (GRACE if names > 1 else 0.0))
        self._events.append(
            Began(
                now,
                who,
                want.holder,
                want.name,
                want.mode,
                want.limit,
                want.ttl,
                terms.wait,
                want.delay,
                due,
                who in self.together,
            )
        )
        under_way.append(want.holder)

    def watch(self, who: str, lease: AsyncLease) -> None:
        """A worker got a lease: record it, and what becomes of it."""
        held = lease._held
        self._who[held.want.holder] = who
        self.process.watched.append(Watched(who, lease))
        until = self.world.true_time(held.valid_until)
        self._events.append(Got(self.scheduler.now, who, held.want.holder, held.want.name, held.token, until))

    def look(self) -> None:
        """Record what changed of the leases, without asking them: asking would latch."""
        now = self.scheduler.now
        for one in self.process.watched:
            held = one.held
            if held.valid_until != one.valid_until:
                one.valid_until = held.valid_until
                until = self.world.true_time(held.valid_until)
                self._events.append(Moved(now, one.who, held.want.holder, until))
            if held.ended is not one.ended:
                one.ended = held.ended
                self._events.append(Ended(now, one.who, held.want.holder, held.ended or ""))

    def look_anew(self) -> None:
        """Record all deadlines anew, after the clock behind them was tampered with."""
        for one in self.process.watched:
            if one.ended is None:
                one.valid_until = -1.0
        self.look()

    def unwatch(self, lease: AsyncLease, outcome: str) -> None:
        """The worker is through with the lease."""
        self.look()
        watched = self.process.watched
        who = next(one.who for one in watched if one.lease is lease)
        watched[:] = [one for one in watched if one.lease is not lease]
        self._events.append(Done(self.scheduler.now, who, lease._held.want.holder, outcome))

    def tell(self, held: Held) -> None:
        """The keeper tells of a loss."""
        holder = held.want.holder
        self._events.append(Told(self.scheduler.now, self._who.get(holder, self.process.label), holder))
        keeping.tell(held)

    def die(self) -> None:
        """The process is gone, with everything in it."""
        now = self.scheduler.now
        self.look()
        self._events.extend(
            Ended(now, one.who, one.held.want.holder, CRASHED) for one in self.process.watched if one.ended is None
        )
        self.process.watched.clear()
        self.process.die()
