"""One grant, as its holder knows it: until when it may be believed, and how it ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from leasehold.core.engine import Renewal, Want
from leasehold.core.worlds import World
from leasehold.errors import LeaseLost

RELEASED: Final = "it was released"
RAN_OUT: Final = "its TTL ran out before a renewal was confirmed"
REFUSED: Final = "the engine no longer knows this holder (it ran out there, or was released by force)"
HELD_TOO_LONG: Final = "it was held for its longest hold"
OTHER_PROCESS: Final = "this process is a fork of the one that acquired it"
KEEPER_DIED: Final = "its keeper stopped unexpectedly"
NEVER: Final = float("inf")


def margin(ttl: float, extra: float) -> float:
    """How much of a lease its holder does not use: clocks that run 1 % apart, and the cost of looking."""
    return ttl * 0.01 + 0.005 + extra


class Held:
    """The state of one lease in its holder's process. `ended` is latched: once set, it stays.

    Every question is answered from the clock at the moment of asking; no timer has to have fired. Two threads may
    look, renew and end at the same time: `ended` only ever goes from None to a reason, and a lease whose deadline was
    seen to pass is latched by whoever saw it, so a renewal that comes back late finds it lost.
    """

    __slots__ = (
        "acquired_at",
        "ended",
        "extra_margin",
        "hold_until",
        "listeners",
        "owner",
        "process",
        "renew_at",
        "token",
        "ttl",
        "valid_until",
        "want",
        "world",
    )

    def __init__(self, want: Want, token: int, sent_at: float, world: World, extra_margin: float) -> None:
        """Count the lease from before the request left."""
        # Arguments in their order, not by name: of names Python makes a dict for each lease.
        self.want = want
        self.token = token
        self.ttl = want.ttl
        self.world = world
        self.extra_margin = extra_margin
        self.process = world.process()
        self.acquired_at = sent_at
        self.valid_until = sent_at + want.ttl - margin(want.ttl, extra_margin)
        self.hold_until: float | None = None
        self.renew_at = NEVER
        self.ended: str | None = None
        self.owner: Callable[[], object | None] | None = None
        self.listeners: list[Callable[[LeaseLost], object]] = []

    def limit_hold(self, longest: float) -> None:
        """Let the lease end `longest` seconds from now, renewed or not.

        Not from when it was asked for: a grant that took long to come would then be over when its holder gets it.
        """
        self.hold_until = self.world.now() + longest
        self.valid_until = min(self.valid_until, self.hold_until)

    @property
    def live(self) -> bool:
        """Neither lost nor released. A loss that is seen here is latched."""
        if self.ended is None:
            if self.world.now() >= self.valid_until:
                self.end(RAN_OUT if self.hold_until is None or self.valid_until < self.hold_until else HELD_TOO_LONG)
            elif self.world.process() != self.process:
                self.end(OTHER_PROCESS)
        return self.ended is None

    @property
    def lost(self) -> bool:
        """Whether the lease may no longer be held."""
        return not self.live and self.ended is not RELEASED

    @property
    def remaining(self) -> float:
        """Seconds for which the lease may still be believed; 0 when it is over."""
        return max(self.valid_until - self.world.now(), 0.0) if self.live else 0.0

    def end(self, reason: str) -> None:
        """Latch the end; the first reason stays."""
        if self.ended is None:
            self.ended = reason

    def loss(self) -> LeaseLost:
        """The error that tells of the loss."""
        return LeaseLost(self.want.name, self.ended or RAN_OUT, token=self.token, holder=self.want.about)

    def renewal(self, ttl: float | None = None) -> Renewal:
        """What to ask the engine for."""
        return Renewal(self.want.name, self.want.holder, self.token, ttl or self.ttl)

    def renewed(self, sent_at: float, ttl: float) -> bool:
        """Move the deadline after a confirmed renewal, unless the lease was lost meanwhile."""
        if not self.live:
            return False
        until = max(self.valid_until, sent_at + ttl - margin(ttl, self.extra_margin))
        self.valid_until = until if self.hold_until is None else min(until, self.hold_until)
        return True
