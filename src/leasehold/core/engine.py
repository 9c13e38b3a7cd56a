"""What an engine is: its operations, its capabilities and its guarantee, as typed data.

An engine keeps leases. Its operations are few, each is one atomic step there, and each may be carried out twice or
late without harm: the algorithms in this package ask again whenever an answer is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from enum import Enum
from typing import Any, Final, Literal, NamedTuple, Protocol, runtime_checkable

from leasehold.core.worlds import World

Mode = Literal["exclusive", "shared", "permit"]
Purpose = Literal["efficiency", "correctness"]


class Want(NamedTuple):
    """One attempt to hold a name. The holder is fresh for each attempt, so that a retry recognises itself."""

    name: str
    holder: str
    ttl: float
    mode: Mode = "exclusive"
    limit: int = 1
    """How many may hold at once, for permits."""
    delay: float = 0.0
    """For how long the name stays closed when this lease is lost rather than released."""
    about: str = ""
    """Who asks, for people: ``label@host:pid``."""


class Incumbent(NamedTuple):
    """The lease that stands in the way: the one that would end first."""

    token: int
    beat: int
    """Counts its renewals: while it does not move, nobody has renewed."""
    lasts: float
    """No belief of its holder reaches further than this beyond its latest beat, in seconds."""
    about: str


class Grant(NamedTuple):
    """The name is held by the asker."""

    token: int
    since: float | None = None
    """When the lease began, on the world's clock, if that was before the request: leases that share a session."""


class Busy(NamedTuple):
    """The name is not to be had now."""

    ask_again: float
    """Without news, asking sooner than this many seconds is pointless."""
    incumbent: Incumbent | None


class Suspect(NamedTuple):
    """An incumbent that the asker watched, on its own clock, let a whole lease go by without a renewal."""

    token: int
    beat: int


class Renewal(NamedTuple):
    """One lease to renew."""

    name: str
    holder: str
    token: int
    ttl: float


class HolderStatus(NamedTuple):
    """A holder as an operator sees it."""

    token: int
    mode: Mode
    about: str
    held_for: float
    expires_in: float


class WaiterStatus(NamedTuple):
    """A waiter as an operator sees it, in the order of the queue."""

    mode: Mode
    about: str
    waited_for: float
    patience_left: float
    """For how long its place is kept unless it asks again, as it does while it waits; never beyond its wait."""


class NameStatus(NamedTuple):
    """What an engine knows of one name. Holder ids are secrets and never part of it."""

    name: str
    token: int
    """The highest token minted for this name."""
    holders: tuple[HolderStatus, ...]
    waiters: tuple[WaiterStatus, ...]
    closed_for: float = 0.0
    """How long the lock-delay of a lost lease still keeps it closed."""


class Capability(Enum):
    """What an engine can do. The contract suite is keyed by these."""

    FAIR = "waiters are served first come, first served"
    PUSH_WAIT = "waiters are woken by the engine, not by polling"
    SHARED = "shared and exclusive leases"
    PERMITS = "counting leases"
    LOCK_DELAY = "a name can stay closed after a lease was lost"
    INSPECT = "holders and waiters can be listed"
    BREAK = "an operator can release by force"
    OUTLIVES_CONNECTION = "a lease outlives its holder's connection, and needs none of its own"
    OVERTAKE = "waiters recover when the engine's clock is set back"
    TOKEN_SURVIVES_RESTART = "tokens keep increasing over a restart of the engine"
    TOKEN_SURVIVES_DATA_LOSS = "tokens keep increasing when the engine lost its data, while clocks agree"
    TOKEN_SURVIVES_FAILOVER = "tokens keep increasing over a failover, whatever the clocks do"


class Guarantee(NamedTuple):
    """What an engine promises and what it does not, in words that are also its page in the docs."""

    not_guaranteed: str
    tokens: str
    """Where tokens come from, and when they could go back."""
    fit_for_correctness: bool
    """Whether tokens increase whatever clocks do, so that a fence can rely on them."""
    timekeeper: str
    ends: str
    """What ends a lease."""
    loss_told: str
    """Worst-case time until the holder knows."""
    takeover: str
    """Worst-case time until the next holder, after a holder died."""
    failover: str
    proxies: str
    """Poolers and proxies that break it."""
    enforce_with: str


class Facts(NamedTuple):
    """An engine described to code and to people."""

    engine: str
    address: str
    """Where it is, with no secret in it."""
    capabilities: frozenset[Capability]
    guarantee: Guarantee
    least_ttl: float
    extra_margin: float = 0.0
    """What this engine adds to the drift margin of a lease, in seconds."""
    place_stays: float = 0.0
    """For how long at most a place in the queue stays by itself, in seconds, where that is longer than a lease does."""
    hands_over: bool = False
    """Whether who waits may be granted the name without having asked again."""
    takes_at_once: int | None = None
    """How many tasks of one client may take names at the same time; None: as many as there are."""


FEW: Final = 64
"""For `Facts.takes_at_once`: enough to keep a server busy."""


class Engine(Protocol):
    """The operations that the algorithms use. Every `until` is a time on the world's clock.

    A request that was not carried out raises `EngineUnavailable`; one whose outcome is not known, `OutcomeUnknown`;
    an answer that makes no sense, `EngineError`. Nothing is retried below this line.
    """

    facts: Facts
    world: World

    async def take(
        self, want: Want, *, until: float, patience: float | None = None, suspect: Suspect | None = None
    ) -> Grant | Busy:
        """Take the name and mint its token in one atomic step, or say why not.

        A holder that already has the name gets the same token again, and its TTL starts anew. With `patience`
        (seconds), a refused asker is also put into the queue, in the same step, and will be woken.
        """
        ...

    def wait(self, want: Want, until: float) -> Coroutine[Any, Any, Grant | None]:
        """Return when the queued asker is woken, or at `until`. A wake-up since the latest `take` counts.

        An engine that hands a name over returns the grant: an answer to the asker's first `take`, from which the lease
        is counted unless the grant says since when. Otherwise it is time to ask again.
        """
        ...

    async def renew(self, leases: Sequence[Renewal], *, until: float) -> Sequence[bool | None]:
        """Prolong each lease that is still held; False for those that are not. Never shortens, never revives.

        None for a lease of which nothing is known now while it is known of others; of one lease alone that is an error.
        """
        ...

    async def release(self, name: str, holder: str, *, until: float) -> bool:
        """Give the name back, and leave its queue. False when it was not held by this holder any more."""
        ...

    async def status(self, name: str, *, until: float) -> NameStatus | None:
        """Who holds and who waits; None when the engine knows nothing of this name."""
        ...

    async def names(self, *, after: str | None, limit: int, until: float) -> list[str]:
        """Names that are held or waited for, in an order of the engine's, following `after`."""
        ...

    async def force_release(self, name: str, *, until: float) -> int:
        """End every lease on the name and mint a token above theirs; returns that token."""
        ...

    async def check_purpose(self, purpose: Purpose, *, until: float) -> None:
        """Raise `GuaranteeTooWeak`, or warn, when this deployment cannot keep what the purpose needs."""
        ...

    async def close(self) -> None:
        """Give back connections. The engine may be used again and then reconnects."""
        ...

    def forked(self) -> None:
        """Called in a forked child: let go of inherited connections without a word to the server."""
        ...


@runtime_checkable
class TellsLosses(Protocol):
    """An engine that hears by itself when a lease ends early, such as one whose leases live in a connection."""

    def when_lost(self, tell: Callable[[str], object]) -> None:
        """Have `tell` called with the holder of each such lease, until the engine is closed."""
        ...


@runtime_checkable
class TellsOfMany(Protocol):
    """An engine that can tell of many names in one go, for less than what they cost one by one."""

    async def roll(self, *, at: str, until: float) -> tuple[list[NameStatus], str]:
        """Some of the names that are held or waited for, with what `status` says of them, and where to go on.

        The empty text is the beginning, and the end. A name may come twice, and one that was just taken not at all.
        """
        ...

    async def statuses(self, names: Sequence[str], *, until: float) -> list[NameStatus | None]:
        """What `status` says of each of these names."""
        ...


class EngineFamily(Protocol):
    """One deployment of an engine, and how to reach it in each world."""

    facts: Facts

    def blocking(self) -> Engine:
        """An engine whose operations block. Threads may share it."""
        ...

    def asyncio(self) -> Engine:
        """An engine for the running event loop. Tasks may share it."""
        ...
