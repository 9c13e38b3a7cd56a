"""What one seed means: who there is, what they want, and what will be done to them.

Each seed draws its own few kinds of faults (few at a time find more than all at once), so that among many seeds there
are quiet histories, histories with one kind of trouble, and storms.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Final, Literal, NamedTuple

Fence = Literal["none", "writes", "both"]
FENCES: Final[tuple[Fence, ...]] = ("none", "writes", "both")

WITHIN: Final = {
    "delay": "messages take long and overtake each other",
    "loss": "requests and replies get lost",
    "duplicate": "a request is carried out again, much later",
    "cut": "a connection swallows everything for a while",
    "reset": "a connection breaks, with requests under way",
    "pause": "a process stops past its TTL, keeper and all, often exactly between a check and a write",
    "crash": "a process dies; another may start in its place",
    "restart": "the server restarts and keeps its data",
    "stall": "the server stops for a while and then carries out what has piled up",
    "drift": "clocks run up to 0.5 % too fast or too slow, the server's too",
    "back": "the server's clock is set back",
    "deaf": "wake-ups get lost",
    "interrupt": "a caller is interrupted at an await of acquire or release",
}
"""Faults under which everything is claimed."""

BEYOND: Final = {
    "wipe": "the server restarts and has lost its data",
    "force": "an operator releases a name by force",
    "forward": "the server's clock is set forward",
    "strobe": "the server's clock jumps to and fro",
    "wild": "clocks of clients run up to a quarter too fast or too slow",
    "freeze": "a process stops, and its clock with it",
}
"""Faults under which no lease can exclude; what is claimed of tokens and fences still holds."""

ELSEWHERE: Final = {
    "election": "the cluster has no leader for a while, and then another one",
    "half": "a connection breaks, and one side does not hear of it",
    "proxy": "a proxy keeps a connection when the client or the server is gone, and lets another session serve it",
    "collision": "two names have the same key",
    "failover": "another server takes over, without the locks and without what was written last",
}
"""Faults that only some systems can have."""

UNBEARABLE: Final = BEYOND.keys() | {"failover"}
"""Faults under which no lease can exclude, wherever they happen. Under all others everything is claimed."""

QUIET: Final = frozenset({"drift", "interrupt"})
"""Faults that do not change who comes first, nor keep anybody from giving back."""

STILL: Final = QUIET | {"crash", "pause"}
"""Faults after which nothing is under way any more: no message that comes late, and nobody who did not hear."""

LAST_WAIT = 120.0
"""How patient everybody is in the end: far longer than it may take."""


HURRY = 0.05
"""The pace of those in a hurry."""


class Traits(NamedTuple):
    """What can be asked of an engine, and what can happen to it."""

    engine: str
    faults: frozenset[str] = frozenset(WITHIN | BEYOND)
    ttls: tuple[float, ...] = (0.6, 1.2, 2.4)
    lock_delays: tuple[float, ...] = (0.0, 0.0, 0.5, 1.5)
    permits: tuple[int, ...] = (0, 0, 2, 3)
    sharing: tuple[float, ...] = (0.0, 0.0, 0.4)
    hurries: bool = False
    """Whether it serves those who come at once otherwise than those who have waited."""


TABLE: Final = Traits("table", hurries=True)
"""The simulator's own engine: the lease table behind a network that knows no connections."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Drawn from a seed."""

    kinds: tuple[str, ...]
    workers: tuple[int, ...]
    """How many on each host."""
    names: tuple[str, ...]
    permits: int
    """The limit of the counting lock; 0: there is none."""
    sharing: float
    """How often a name is asked for in shared mode."""
    several: float
    """How often several names are asked for at once."""
    renewing: float
    """How often a lease is renewed by the keeper."""
    ttl: float
    lock_delay: float
    """0: none has one."""
    request_timeout: float
    fence: Fence
    """The kind of fence that most of the resources have which are used."""
    faults_end: float
    engine: str = TABLE.engine
    pace: float = 1.0
    """How long everybody works, and rests, to what is usual."""

    @property
    def longest_ttl(self) -> float:
        """No lease is asked for longer than this."""
        return self.ttl * 1.5


def draw(seed: int, traits: Traits = TABLE) -> Plan:
    """The plan of a seed."""
    rng = Random(seed)
    names = ("a", "b")[: rng.choice((1, 1, 2))]
    ttl = rng.choice(traits.ttls)
    workers = tuple(rng.choice((1, 1, 2)) for _ in range(rng.choice((2, 3, 3, 4))))
    return Plan(
        kinds=_kinds(rng, traits.faults),
        workers=workers,
        names=names,
        permits=rng.choice(traits.permits),
        sharing=rng.choice(traits.sharing),
        several=0.3 if len(names) > 1 and rng.random() < 0.6 else 0.0,
        renewing=rng.choice((0.3, 0.7, 1.0)),
        ttl=ttl,
        lock_delay=rng.choice(traits.lock_delays),
        fence=rng.choice(FENCES),
        request_timeout=rng.choice((0.3, 1.0, 2.0)),
        faults_end=max(8.0, ttl * (4.0 + 4.0 * rng.random())),
        engine=traits.engine,
        pace=HURRY if traits.hurries and seed % 4 == 0 else 1.0,
    )


def _kinds(rng: Random, possible: frozenset[str]) -> tuple[str, ...]:
    character = rng.random()
    if character < 0.1:
        return ()
    if character < 0.2:
        return ("drift", "interrupt")
    within = rng.sample(sorted(possible - UNBEARABLE), rng.choice((1, 2, 3, 3, 4, 5, 6, 8)))
    if character < 0.4 and "pause" not in within:
        within.append("pause")  # what the whole library is about
    beyond = rng.sample(sorted(possible & UNBEARABLE), rng.choice((1, 1, 2))) if rng.random() < 0.35 else []
    return tuple(sorted(within + beyond))
