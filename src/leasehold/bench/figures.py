"""The arithmetic of the benchmark: quantiles, fairness, spreads, and taking turns."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class Spread(NamedTuple):
    """The middle of some values, and where four fifths of them lie."""

    median: float
    low: float
    high: float


def quantile(values: Sequence[float], share: float) -> float:
    """The value that `share` of the values do not exceed, interpolated between neighbours.

    >>> quantile([1.0, 2.0, 3.0, 4.0], 0.5)
    2.5
    """
    if not values:
        raise ValueError("no values, so no quantile of them")
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = math.ceil(place)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def spread(values: Sequence[float]) -> Spread:
    """The median with the 10th and the 90th percentile."""
    return Spread(quantile(values, 0.5), quantile(values, 0.1), quantile(values, 0.9))


def jain(shares: Sequence[float]) -> float:
    """Jain's index of fairness: 1 when all got the same, 1/n when one of n got everything.

    >>> jain([5, 5, 5, 5]), jain([1, 0, 0, 0])
    (1.0, 0.25)
    """
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 0.0


def in_turn(contestants: Sequence[T], rounds: int) -> Iterator[tuple[int, T]]:
    """Every contestant once a round, so that noise hits all alike; each round starts with another one.

    >>> list(in_turn("ab", 2))
    [(0, 'a'), (0, 'b'), (1, 'b'), (1, 'a')]
    """
    for number in range(rounds):
        start = number % len(contestants)
        for contestant in (*contestants[start:], *contestants[:start]):
            yield number, contestant
