"""Which faults strike when: all of it follows from a seed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

How = Literal["alone", "pairs", "random"]
"""One at a time; two at a time, in every combination; or as chance will have it, up to three at a time."""
MOST_AT_ONCE: Final = 3
CALM: Final = (0.3, 1.2)
"""How long nothing is broken between two strikes, at least and at most, in TTLs."""


@dataclass(frozen=True, slots=True)
class Strike:
    """Faults that strike together, and how long it is calm before they do."""

    calm: float
    """In seconds."""
    faults: tuple[str, ...]
    stretch: float
    """By how much they last longer, or shorter, than they usually do."""


def strikes(faults: Sequence[str], how: How, *, seed: int, ttl: float) -> Iterator[Strike]:
    """The strikes of a run, without end. The same seed gives the same ones.

    >>> first = next(strikes(["pause", "kill"], "pairs", seed=7, ttl=2.0))
    >>> sorted(first.faults), first == next(strikes(["pause", "kill"], "pairs", seed=7, ttl=2.0))
    (['kill', 'pause'], True)
    """
    chance = random.Random(f"schedule/{seed}")
    for together in _combinations(list(faults), how, chance):
        yield Strike(chance.uniform(*CALM) * ttl, together, chance.uniform(0.8, 1.3))


def _combinations(faults: list[str], how: How, chance: random.Random) -> Iterator[tuple[str, ...]]:
    while faults:
        if how == "random":
            yield tuple(chance.sample(faults, chance.randint(1, min(MOST_AT_ONCE, len(faults)))))
            continue
        # Everything once, in an order by chance, before anything comes again.
        size = 2 if how == "pairs" and len(faults) > 1 else 1
        deck = list(itertools.combinations(faults, size))
        chance.shuffle(deck)
        yield from deck
