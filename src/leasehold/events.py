"""What happens in the library, as typed events for those who watch (`leasehold.watch`).

Durations are in seconds. No event holds a secret: neither a holder's id, nor a password, nor what was written.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from leasehold.core.engine import Mode

KeyOutcome = Literal["ran", "failed", "replayed", "in progress", "reused"]


class About(NamedTuple):
    """Which lock an event is about."""

    engine: str
    address: str
    """Where the engine is, with no secret in it."""
    name: str
    mode: Mode


class Granted(NamedTuple):
    """A lease was granted."""

    about: About
    token: int
    waited: float
    contended: bool
    """Whether somebody else held it at first."""
    ttl: float


class GaveUp(NamedTuple):
    """The lock was not free within the caller's wait."""

    about: About
    waited: float
    contended: bool
    holder: str | None
    """Who held it, for people, where the engine could tell."""


class Failed(NamedTuple):
    """The engine did not do what was asked, or could not be reached."""

    about: About
    doing: Literal["acquire", "renew"]
    error: str
    """The class of the error."""
    waited: float


class Renewed(NamedTuple):
    """A lease was renewed in the background."""

    about: About
    token: int
    remaining: float
    """For how long it may be believed from now on."""


class Released(NamedTuple):
    """A lease was given back."""

    about: About
    token: int
    held: float


class Lost(NamedTuple):
    """A lease was lost while it was held."""

    about: About
    token: int
    held: float
    reason: str


class Broken(NamedTuple):
    """An operator released a name by force."""

    about: About
    token: int
    """One above all that were granted."""
    who: str
    because: str


class Crowded(NamedTuple):
    """Callers of this process spend much of their time waiting for one lock."""

    about: About
    waits: int
    waited: float
    within: float
    advice: str


class Refused(NamedTuple):
    """A fence refused a write (or a read)."""

    resource: str
    token: int
    reason: Literal["stale", "used", "jump"]
    seen: int | None


class Tried(NamedTuple):
    """A call of a function with `retry_on_conflict` has ended."""

    function: str
    attempts: int
    conflicts: int
    gave_up: bool


class Conflicting(NamedTuple):
    """Many attempts of a function with `retry_on_conflict` are in vain."""

    function: str
    attempts: int
    conflicts: int
    advice: str


class Keyed(NamedTuple):
    """What came of an operation with an idempotency key. Once-only jobs have the scope ``job/<name>``."""

    scope: str
    key: str
    outcome: KeyOutcome


class Missed(NamedTuple):
    """Ticks of a once-only job were not done and will not be."""

    scope: str
    """``job/<name>``, as in `Keyed`."""
    first: str
    last: str
    count: int  # type: ignore[assignment] # it hides the method of tuples, which nobody calls on an event
    why: str


class Elected(NamedTuple):
    """An instance has become the leader."""

    name: str
    token: int


class Resigned(NamedTuple):
    """A leader was told to stop its work, or has ended it."""

    name: str
    token: int
    why: str


LeaseEvent = Granted | GaveUp | Failed | Renewed | Released | Lost | Broken | Crowded
Event = LeaseEvent | Refused | Tried | Conflicting | Keyed | Missed | Elected | Resigned
EVENTS: tuple[type[Event], ...] = (
    Granted, GaveUp, Failed, Renewed, Released, Lost, Broken, Crowded,
    Refused, Tried, Conflicting, Keyed, Missed, Elected, Resigned,
)  # fmt: skip


def name_of(event: Event) -> str:
    """The name of an event in logs and traces, such as ``granted`` or ``gave_up``."""
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in type(event).__name__).lstrip("_")


def fields(event: Event) -> dict[str, str | int | float | bool | None]:
    """An event as flat data with stable names, its own name first."""
    flat: dict[str, str | int | float | bool | None] = {"event": name_of(event)}
    for key, value in event._asdict().items():
        flat.update(value._asdict() if isinstance(value, About) else {key: value})
    return flat
