"""Bells for tasks of a simulated process."""

from __future__ import annotations

from leasehold.sim.scheduler import PARK, Task
from leasehold.sim.world import SimWorld

RUNG = object()


class SimBell:
    """Implements the bells of `leasehold.wires.sockets`."""

    __slots__ = ("_hearing", "_rung", "_world")

    def __init__(self, world: SimWorld) -> None:
        self._world, self._rung = world, False
        self._hearing: Task | None = None

    def ring(self) -> None:
        """Wake who waits, or will wait."""
        self._rung = True
        if self._hearing is not None:
            scheduler = self._world.scheduler
            scheduler.resume_at(scheduler.now, self._hearing)

    async def wait(self, until: float) -> bool:
        """Return True when it was rung, since it was made or heard; False at `until`."""
        scheduler = self._world.scheduler
        if not self._rung:
            self._hearing = task = scheduler.current
            scheduler.resume_at(scheduler.now + self._world.duration(max(until - self._world.now(), 0.0)), task)
            try:
                await PARK
            finally:
                self._hearing = None
        rung, self._rung = self._rung, False
        return rung
