"""The world as one process sees it: its host's clock, sleep, chance and nonces."""

from __future__ import annotations

from random import Random

from leasehold.sim.scheduler import PARK, Process, Scheduler, Task


class Clock:
    """A host's clock: nobody can set it, it counts pauses, but it has a rate of its own and a zero of its own."""

    __slots__ = ("offset", "rate")

    def __init__(self, rate: float, offset: float) -> None:
        self.rate, self.offset = rate, offset


class SimWorld:
    """Implements `leasehold.core.worlds.World` for one process."""

    def __init__(self, scheduler: Scheduler, process: Process, clock: Clock, rng: Random, number: int) -> None:
        self.scheduler, self._clock = scheduler, clock
        self.inside, self._number = process, number
        self._rng = rng
        self._nonces = 0

    def now(self) -> float:
        """Seconds on this host's clock."""
        clock = self._clock
        return clock.offset + self.scheduler.now * clock.rate

    def true_time(self, own: float) -> float:
        """When this host's clock shows that time; only the simulator may ask."""
        clock = self._clock
        return (own - clock.offset) / clock.rate

    def duration(self, own: float) -> float:
        """How long that many seconds on this host's clock really are."""
        return own / self._clock.rate

    async def sleep(self, seconds: float) -> None:
        """Pause the task."""
        scheduler = self.scheduler
        scheduler.resume_at(scheduler.now + max(seconds, 0.0) / self._clock.rate, scheduler.current)
        await PARK

    def chance(self) -> float:
        """A random number from 0 up to but not including 1."""
        return self._rng.random()

    def nonce(self) -> str:
        """A holder that no other attempt has; readable in a time line."""
        self._nonces += 1
        return f"{self.inside.label}.{self._nonces}"

    def process(self) -> int:
        """Which process this is."""
        return self._number


class SimAlarm:
    """Implements `leasehold.core.keeper.Alarm`."""

    def __init__(self, world: SimWorld) -> None:
        self._world, self._scheduler = world, world.scheduler
        self._sleeper: Task | None = None
        self._rung = False

    async def sleep(self, seconds: float | None) -> None:
        """Sleep for so long, or until rung."""
        if not self._rung:
            self._sleeper = task = self._scheduler.current
            if seconds is not None:
                self._scheduler.resume_at(self._scheduler.now + self._world.duration(seconds), task)
            await PARK
            self._sleeper = None
        self._rung = False

    def ring(self) -> None:
        """Wake the sleeper."""
        if self._sleeper is not None:
            self._scheduler.resume_at(self._scheduler.now, self._sleeper)
        else:
            self._rung = True
