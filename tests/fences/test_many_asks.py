"""A fence that is asked again and again keeps no more than after the first time, and asks no more of its server.

``python tools/fence_million.py`` does the same a million times, and looks at the clock as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest
from tests.fences.counting_proxy import CountingProxy
from tests.fences.guards import Guard
from tests.fences.registry import FENCES, KINDS, every_kind
from tests.fences.test_round_trips import COUNTED, WARM, counted, least

ASKS = {"sqlite": 2_000, "redis": 2_000}
"""More where each is quick, and fewer where it is slow."""
USUAL, SLOW = 200, 60
FIRST = 10**15
"""As many digits as the last one, so that what is kept is as long."""

FreshOf = Callable[..., Callable[[], Guard]]


@contextmanager
def opened(
    kind: str, resource: str, address_of: Callable[[str], str], fresh_of: FreshOf
) -> Iterator[tuple[Guard, CountingProxy | None]]:
    """A client, and what counts its round trips where it makes any."""
    if kind in COUNTED:
        with counted(kind, address_of(KINDS[kind].place), resource) as (guard, proxy):
            yield guard, proxy
    else:
        with closing(fresh_of(kind, patience=30)()) as guard:
            yield guard, None


def check_that_nothing_grows(
    guard: Guard, asks: int, proxy: CountingProxy | None = None, meanwhile: Callable[[], object] = lambda: None
) -> None:
    """Ask so often, and look at what is kept, and at what one ask takes, before and after."""
    tokens = iter(range(FIRST, FIRST + 10 * (asks + WARM)))

    def ask() -> None:
        token = next(tokens)
        guard.write(token, f"{token}")

    for _ in range(WARM):
        ask()
    kept, round_trips = guard.floor_size(), least(proxy, ask) if proxy else 0
    assert kept > 0
    for _ in range(asks):
        ask()
        meanwhile()
    assert guard.floor() == next(tokens) - 1
    assert guard.floor_size() == kept
    assert (least(proxy, ask) if proxy else 0) == round_trips


@pytest.mark.parametrize("kind", every_kind(FENCES))
def test_many_asks_leave_no_more_than_one(
    kind: str, resource: str, address_of: Callable[[str], str], fresh_of: FreshOf
) -> None:
    asks = SLOW if KINDS[kind].place in ("aws", "gcs") else ASKS.get(kind, USUAL)
    with opened(kind, resource, address_of, fresh_of) as (guard, proxy):
        check_that_nothing_grows(guard, asks, proxy)


@pytest.mark.parametrize("kind", FENCES)
def test_a_fence_that_grows_is_found(kind: str, fresh_of: FreshOf) -> None:
    """It keeps one floor more with each ask."""
    fresh = fresh_of(kind, patience=30)

    def grow() -> None:
        with closing(fresh()) as beside:
            beside.write(FIRST, "x")

    with closing(fresh()) as guard, pytest.raises(AssertionError, match="floor_size"):
        check_that_nothing_grows(guard, 2, meanwhile=grow)
