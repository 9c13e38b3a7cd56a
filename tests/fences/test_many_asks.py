"""A fence that is asked again and again keeps no more than after the first time, and does not slow down.

``python tools/fence_cost.py --asks 1000000`` does the same a million times.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import pytest
from tests.fences.guards import Guard
from tests.fences.registry import FENCES

ASKS = {"sqlite": 3_000, "redis": 3_000, "s3": 60, "dynamodb": 60}
"""More where each is quick, and fewer where it is slow."""
USUAL = 200
CHUNKS = 10
SLOWER = 5


@pytest.mark.parametrize("kind", FENCES)
def test_many_asks_leave_no_more_than_one(kind: str, fresh_of: Callable[..., Callable[[], Guard]]) -> None:
    guard = fresh_of(kind, patience=30)()
    first = 10**15  # as many digits as the last one
    guard.write(first, "x")
    kept, taken = guard.floor_size(), []
    assert kept > 0
    for token in range(first, first + ASKS.get(kind, USUAL)):
        began = time.perf_counter()
        guard.write(token, "x")
        taken.append(time.perf_counter() - began)
    assert guard.floor_size() == kept
    assert guard.floor() == token
    chunk = len(taken) // CHUNKS
    early, late = statistics.median(taken[:chunk]), statistics.median(taken[-chunk:])
    assert late < SLOWER * early, "far beyond what a busy machine does to a median"
    guard.close()
