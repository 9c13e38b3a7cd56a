"""What happens to wall clocks: they jump, or they strobe. The monotonic clock goes on as it should.

Only the clocks of single processes are moved, never that of the machine.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from typing import Any, ClassVar, Final

from leasehold.chaos.faults.base import BaseFault
from leasehold.chaos.servers.shim import unavailable
from leasehold.chaos.site import Clock, Site

JUMP: Final = 5.0
"""How far a clock jumps, in TTLs."""
STROBES_EVERY: Final = 0.02


class ClockFault(BaseFault):
    """Moves one clock and puts it right."""

    whose: ClassVar[str]

    def __init__(self) -> None:
        """No clock is moved yet."""
        super().__init__()
        self._moved: list[Clock] = []

    @abstractmethod
    def clocks(self, site: Site) -> list[Clock]:
        """Those that it may move."""

    def missing(self, site: Site) -> str | None:
        """It needs a clock that can be moved."""
        if self.clocks(site):
            return None
        return unavailable() or f"the wall clock of {self.whose} cannot be moved from here"

    def strike(self, site: Site) -> dict[str, Any]:
        """Move them, there or back."""
        by = site.chance.choice([-JUMP, JUMP]) * site.ttl
        mine = self.take(site, self.clocks(site))
        self._moved += mine
        for clock in mine:
            self.spoil(clock, by)
        return {"at": self.whose if mine else None, "seconds": by}

    def spoil(self, clock: Clock, by: float) -> None:
        """Move one."""
        clock.move(by)

    def put_right(self) -> None:
        """Show the right time again."""
        while self._moved:
            self._moved.pop().move(0.0)


class _OfEngine(ClockFault):
    whose: ClassVar[str] = "the engine"
    pauses_holders: ClassVar[bool] = True  # set forward, it ends a lease early, which is as good as a revocation

    def clocks(self, site: Site) -> list[Clock]:
        """Those of the servers."""
        return [server.clock for server in site.servers if server.clock]


class _OfWorkers(ClockFault):
    whose: ClassVar[str] = "the workers"

    def clocks(self, site: Site) -> list[Clock]:
        """The one that all workers share."""
        return [site.worker_clock] if site.worker_clock else []


class _Strobing(ClockFault):
    def __init__(self) -> None:
        """Nothing strobes yet."""
        super().__init__()
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []

    def spoil(self, clock: Clock, by: float) -> None:
        """Move it to and fro, many times a second."""
        thread = threading.Thread(target=self._strobe, args=(clock, by), name="leasehold-strobe", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _strobe(self, clock: Clock, by: float) -> None:
        away = False
        while not self._over.wait(STROBES_EVERY):
            away = not away
            clock.move(by if away else 0.0)

    def put_right(self) -> None:
        """End it, then show the right time."""
        self._over.set()
        while self._threads:
            self._threads.pop().join()
        self._over.clear()
        super().put_right()


class EngineClockJump(_OfEngine):
    """The administrator sets the time of the engine's host."""

    name: ClassVar[str] = "engine-clock-jump"
    summary: ClassVar[str] = "the wall clock of the engine jumps by five TTLs, there or back, and is set right later"
    lasts: ClassVar[float] = 1.5


class EngineClockStrobe(_Strobing, _OfEngine):
    """Two time servers disagree about the engine's host."""

    name: ClassVar[str] = "engine-clock-strobe"
    summary: ClassVar[str] = "the wall clock of the engine jumps to and fro by five TTLs, fifty times a second"
    lasts: ClassVar[float] = 1.0


class ClientClockJump(_OfWorkers):
    """The administrator sets the time of the workers' host."""

    name: ClassVar[str] = "client-clock-jump"
    summary: ClassVar[str] = "the wall clock of the workers jumps by five TTLs, there or back, and is set right later"
    lasts: ClassVar[float] = 1.5


class ClientClockStrobe(_Strobing, _OfWorkers):
    """Two time servers disagree about the workers' host."""

    name: ClassVar[str] = "client-clock-strobe"
    summary: ClassVar[str] = "the wall clock of the workers jumps to and fro by five TTLs, fifty times a second"
    lasts: ClassVar[float] = 1.0
