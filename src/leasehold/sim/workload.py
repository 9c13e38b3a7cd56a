"""What the workers of a client do: acquire, hold, change resources, extend, release; and give up, fail, try again."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, TypeVar

from leasehold.core.engine import Mode
from leasehold.errors import EngineError, LeaseholdError, LeaseLost, StaleToken
from leasehold.lease import AsyncLease
from leasehold.settings import Terms
from leasehold.sim.client import Client
from leasehold.sim.history import Event, Fault, NotGot, Told
from leasehold.sim.plan import FENCES, LAST_WAIT, Plan
from leasehold.sim.resources import By, Store
from leasehold.sim.scheduler import Interrupted

T = TypeVar("T")

PERMIT_NAME = "p"


class Signalled(Exception):
    """An ordinary exception that a signal handler throws in."""


class Worker:
    """One caller in a client's process."""

    def __init__(
        self,
        who: str,
        client: Client,
        *,
        plan: Plan,
        rng: Random,
        store: Store,
        events: list[Event],
        pause: Callable[[], bool],
    ) -> None:
        """`pause` may stop the whole process, here and now."""
        self._who, self._client, self._world = who, client, client.world
        self._plan, self._rng, self._store, self._events = plan, rng, store, events
        self._pause = pause
        self._interrupting = "interrupt" in plan.kinds
        self._operation = 0
        """Which interruptible operation is under way; odd while one is."""

    async def run(self) -> None:
        """Work until the faults are over; then everybody is served once more."""
        scheduler, rng, ttl = self._client.scheduler, self._rng, self._plan.ttl
        await self._world.sleep(rng.random() * ttl)
        while scheduler.now < self._plan.faults_end:
            await self._job(self._some_terms(), steps=rng.choice((0, 1, 2, 3, 5)))
            await self._world.sleep(rng.random() ** 2 * ttl * self._plan.pace)
        for name in self._plan.names:
            await self._job([Terms(name, ttl=ttl, wait=LAST_WAIT)], steps=1)
        if self._plan.several:
            await self._job([Terms(name, ttl=ttl, wait=LAST_WAIT) for name in self._shuffled()], steps=1)

    def _shuffled(self) -> list[str]:
        names = list(self._plan.names)
        self._rng.shuffle(names)
        return names

    def _some_terms(self) -> list[Terms]:
        plan, rng = self._plan, self._rng
        if plan.several and rng.random() < plan.several:
            return [self._terms(name, "exclusive", lock_delay=0.0) for name in self._shuffled()]
        if plan.permits and rng.random() < 0.3:
            return [self._terms(PERMIT_NAME, "permit", plan.permits)]
        mode: Mode = "shared" if rng.random() < plan.sharing else "exclusive"
        return [self._terms(rng.choice(plan.names), mode)]

    def _terms(self, name: str, mode: Mode, limit: int = 1, *, lock_delay: float | None = None) -> Terms:
        plan, rng = self._plan, self._rng
        ttl = plan.ttl * (0.75 + 0.75 * rng.random())
        return Terms(
            name,
            ttl=ttl,
            wait=rng.choice((0.0, 0.5, 2.0, 2.0, 4.0, 8.0)) * ttl,
            renew=rng.random() < plan.renewing,
            longest_hold=ttl * 2 * rng.random() if rng.random() < 0.1 else None,
            lock_delay=plan.lock_delay * rng.random() if lock_delay is None else lock_delay,
            mode=mode,
            limit=limit,
        )

    async def _job(self, terms: list[Terms], *, steps: int) -> None:
        client = self._client
        # Leases taken together have one wait.
        terms = [one._replace(wait=terms[0].wait) for one in terms]
        leases = await self._acquire(terms)
        for lease in leases:
            client.watch(self._who, lease)
        stubborn = self._rng.random() < 0.15 * self._plan.pace
        for _ in range(steps):
            if not leases or any(lease.lost for lease in leases):
                break
            lease = self._rng.choice(leases)
            if stubborn:
                await self._world.sleep(lease.remaining)  # whatever becomes of it
            elif not await self._use(lease):
                break
        for lease in reversed(leases):
            await self._release(lease)

    async def _acquire(self, terms: list[Terms]) -> list[AsyncLease]:
        client = self._client
        client.attempts[self._who] = []
        client.together.pop(self._who, None)
        try:
            if len(terms) == 1:
                return [await self._interruptible(client.lock(terms[0]).acquire())]
            client.together[self._who] = len(terms)
            return list(await self._interruptible(client.several(terms).acquire()))
        except (LeaseholdError, Interrupted, Signalled) as error:
            now, why = client.scheduler.now, type(error).__name__
            self._events.extend(NotGot(now, self._who, holder, why) for holder in client.attempts[self._who])
        return []

    async def _release(self, lease: AsyncLease) -> None:
        outcome = "released"
        try:
            await self._interruptible(lease.release())
        except (LeaseholdError, Interrupted, Signalled) as error:
            outcome = type(error).__name__
            if isinstance(error, LeaseLost):
                self._events.append(Told(self._client.scheduler.now, self._who, lease._held.want.holder))
        self._client.unwatch(lease, outcome)

    async def _use(self, lease: AsyncLease) -> bool:
        """Do something while holding; False when the work must stop."""
        rng, what = self._rng, self._rng.random()
        if self._plan.pace < 1 and what < 0.95:
            what = 0.0  # long holds are few where everybody is in a hurry
        try:
            if what < 0.7 and lease._held.want.mode == "exclusive":
                await self._change(lease)
            elif what < 0.82:
                await lease.extend(self._plan.ttl * (0.5 + rng.random()))
                if rng.random() < 0.5:
                    await self._world.sleep(lease.remaining)
            elif what < 0.92:
                await self._world.sleep(rng.random() * self._plan.ttl * self._plan.pace)
            else:
                await self._world.sleep(lease.remaining)  # held to the last moment
        except LeaseLost:
            self._events.append(Told(self._client.scheduler.now, self._who, lease._held.want.holder))
            return False
        except (StaleToken, EngineError):
            return False
        return True

    async def _change(self, lease: AsyncLease) -> None:
        """Look whether the lease is held, read, think, look again, write. A pause fits in after each look."""
        by = By(self._who, lease._held.want.holder, lease.name, lease.token)
        fence = self._plan.fence if self._rng.random() < 0.7 else self._rng.choice(FENCES)
        await self._look(lease)
        value = await self._store.read(by, fence)
        await self._world.sleep(self._rng.random() ** 3 * self._plan.ttl * self._plan.pace)
        await self._look(lease)
        await self._store.write(by, fence, value)

    async def _look(self, lease: AsyncLease) -> None:
        lease.check()
        if self._pause():
            await self._world.sleep(0.0)

    async def _interruptible(self, operation: Coroutine[Any, Any, T]) -> T:
        """Let the operation be interrupted, now and then, at one of its awaits."""
        task = self._client.scheduler.current
        self._operation += 1
        if self._interrupting and self._rng.random() < 0.3 and task.label == self._who:
            task.on_fuse = self._burnt
            task.fuse = self._rng.choice((1, 1, 2, 3, 4))
        try:
            return await operation
        finally:
            self._operation += 1
            task.fuse = 0

    def _burnt(self) -> None:
        scheduler, chance = self._client.scheduler, self._rng.random
        if scheduler.now >= self._plan.faults_end:
            return
        late = self._rng.choice((0.0, chance() * 0.004, chance() * self._plan.ttl))
        error = self._rng.choice((Interrupted, Signalled))()
        scheduler.call_at(scheduler.now + late, self._interrupt, scheduler.current, self._operation, error)

    def _interrupt(self, task: Any, operation: int, error: BaseException) -> None:
        now = self._client.scheduler.now
        if self._operation == operation and task.turn >= 0 and not task.process.paused:
            self._events.append(Fault(now, "interrupt", self._who, now, type(error).__name__))
            self._client.scheduler.throw(task, error)
