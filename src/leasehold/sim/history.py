"""What happened, as a list of typed events in the order of true time, which nobody in the world can see.

`holder` identifies an attempt and the lease that came of it; `who` is the lane of a time line: a worker (``A1``), its
host (``A``), ``server`` or ``operator``. All times are true time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from leasehold.core.engine import Mode
    from leasehold.sim.plan import Plan


class Began(NamedTuple):
    """A worker began to acquire."""

    at: float
    who: str
    holder: str
    name: str
    mode: Mode
    limit: int
    ttl: float
    wait: float
    delay: float
    due: float
    """When the attempt must be over, by the worker's own clock, if its process is not paused."""
    together: bool
    """One of several names that are taken together."""


class Got(NamedTuple):
    """It returned with a lease, which may be believed until then."""

    at: float
    who: str
    holder: str
    name: str
    token: int
    valid_until: float


class NotGot(NamedTuple):
    """It ended without a lease."""

    at: float
    who: str
    holder: str
    why: str
    """The name of the error: ``NotAcquired``, ``Interrupted``, …"""


class Moved(NamedTuple):
    """The deadline of a lease moved."""

    at: float
    who: str
    holder: str
    valid_until: float


class Ended(NamedTuple):
    """Belief in a lease ended for good: it was released, lost or refused, or its process died."""

    at: float
    who: str
    holder: str
    reason: str


class Told(NamedTuple):
    """The holder was told that its lease is lost."""

    at: float
    who: str
    holder: str


class Noticed(NamedTuple):
    """The connection that a lease lives in broke, and its process could see that."""

    at: float
    who: str
    holder: str
    token: int


class Deafened(NamedTuple):
    """The server has lost the connection by which somebody waits, and its process cannot see that."""

    at: float
    who: str
    holder: str


class Done(NamedTuple):
    """The worker is through with a lease: its release returned, or failed."""

    at: float
    who: str
    holder: str
    outcome: str
    """``released``, or the name of the error."""


class Granted(NamedTuple):
    """The server gave a seat."""

    at: float
    name: str
    holder: str
    token: int
    """0 when the seat was given without one."""
    mode: Mode


class Refused(NamedTuple):
    """The server said "busy"."""

    at: float
    name: str
    holder: str


class Freed(NamedTuple):
    """A seat is gone from the server."""

    at: float
    name: str
    holder: str
    how: str
    """``released``, ``lapsed``, ``forced`` or ``wiped``."""
    closed_until: float
    """Until when its lock-delay keeps the name closed."""


class Queued(NamedTuple):
    """A waiter got a place in the queue."""

    at: float
    name: str
    holder: str


class Unqueued(NamedTuple):
    """A place in the queue is gone."""

    at: float
    name: str
    holder: str
    how: str


class Touched(NamedTuple):
    """A resource was read or written; the order of these events is the order at the resource."""

    at: float
    who: str
    holder: str
    resource: str
    fence: str
    """``none``, ``writes`` or ``both``."""
    write: int
    """The number of this write; 0 for a read."""
    based_on: int
    """The write whose value was read before this write; for a read, what was read."""
    token: int
    seen: int
    """The mark of the resource before."""
    accepted: bool


class Fault(NamedTuple):
    """Something that the world did to them."""

    at: float
    kind: str
    who: str
    until: float
    detail: str
    by: float = 0.0
    """By how many seconds a clock was set."""


class Calm(NamedTuple):
    """From here on there are no faults."""

    at: float


class Broke(NamedTuple):
    """An algorithm ended with an error that it must not raise, or ran in circles."""

    at: float
    who: str
    error: str


class Left(NamedTuple):
    """In the end, this was still on the server."""

    at: float
    name: str
    holder: str
    what: str


Event = (
    Began | Got | NotGot | Moved | Ended | Told | Noticed | Deafened | Done | Granted | Refused | Freed | Queued
    | Unqueued | Touched | Fault | Calm | Broke | Left
)  # fmt: skip


@dataclass(slots=True)
class History:
    """One run of the world."""

    seed: int
    plan: Plan
    events: list[Event] = field(default_factory=list)
    ended_at: float = 0.0

    def text(self) -> str:
        """The whole history as text: equal histories have equal texts, byte for byte."""
        return "\n".join(map(repr, self.events))
