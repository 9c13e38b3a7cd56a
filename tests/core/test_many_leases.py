"""The keeper of ten thousand leases looks at each of them, but not at the clock for each of them."""

from __future__ import annotations

import pytest

from leasehold.core.engine import Want
from leasehold.core.held import Held
from leasehold.core.keeper import LARGEST_BATCH, Keeper
from leasehold.keeping import LoopAlarm
from leasehold.worlds import BlockingWorld, boot_clock

LEASES, TTL = 2000, 30.0


class CountingWorld(BlockingWorld):
    """Counts how often somebody asks for the time."""

    def __init__(self) -> None:
        self.asked = 0
        self.later = 0.0

    def now(self) -> float:
        self.asked += 1
        return boot_clock() + self.later


@pytest.fixture
def world() -> CountingWorld:
    return CountingWorld()


@pytest.fixture
def keeper(world: CountingWorld) -> Keeper:
    keeper = Keeper(world, LoopAlarm, lambda _held: None)
    for number in range(LEASES):
        want = Want(f"name-{number}", f"holder-{number}", TTL)
        keeper.keep(Held(want, number + 1, world.now(), world, 0.0), renewed=True)
    world.asked = 0
    return keeper


def test_what_is_due_is_known_after_one_look_at_the_clock(keeper: Keeper, world: CountingWorld) -> None:
    batch, earliest = keeper._due()
    assert (batch, world.asked) == ([], 1)
    assert earliest == min(held.renew_at for held in keeper.leases)
    world.later = TTL / 2
    batch, _ = keeper._due()
    assert len(batch) == LARGEST_BATCH
    assert world.asked == 2


def test_the_most_urgent_are_renewed_first_and_those_that_are_over_never(keeper: Keeper, world: CountingWorld) -> None:
    over, urgent = keeper.leases[0], keeper.leases[-1]
    over.valid_until, urgent.valid_until = world.now(), world.now() + TTL / 2 + 1
    world.later = TTL / 2
    batch, _ = keeper._due()
    assert batch[0] is urgent
    assert over not in batch


def test_after_an_outage_not_everybody_asks_at_the_same_moment(keeper: Keeper, world: CountingWorld) -> None:
    """Each lease stands for a process of its own here: all of them were refused at one moment."""
    failed_at = world.now()
    keeper._try_again_soon(keeper.leases, None)
    waits = sorted(held.renew_at - failed_at for held in keeper.leases)
    assert TTL / 20 * 0.79 < waits[0] < waits[-1] < TTL / 20 * 1.21 + 1.0
    assert waits[LEASES * 9 // 10] - waits[LEASES // 10] > TTL / 20 * 0.25
