"""Every pair of faults, for `make nightly`: two things break at once, on a real server, and the fence loses nothing.

No engine has all faults: only Redis with a replica fails over, and only a cluster has a leader that can be killed.
"""

from __future__ import annotations

import itertools

import pytest
from tests.chaos.test_matrix import SAFETY, SEED, TTL
from tests.support.server_process import memory_folder

from leasehold.chaos.faults import FAULTS
from leasehold.chaos.running import Outcome, Plan, run
from leasehold.chaos.servers import started

pytestmark = pytest.mark.nightly

ANYWHERE = tuple(name for name in FAULTS if name not in ("failover", "leader-kill"))
CLOCKS = tuple(name for name in FAULTS if name.startswith("engine-clock"))
A_PAIR_TAKES = 4.0
"""TTLs from one strike to the next, with calm, aim and mending."""
ROUNDS = 4
"""After which a pair that was never met counts as missing."""

Pair = tuple[str, ...]


def pair_of(one: str, other: str) -> Pair:
    return tuple(sorted((one, other)))


def pairs_of(faults: tuple[str, ...]) -> set[Pair]:
    return {pair_of(*pair) for pair in itertools.combinations(faults, 2)}


def met_in(outcome: Outcome) -> set[Pair]:
    """The pairs that were broken at the same time."""
    met: set[Pair] = set()
    broken: list[str] = []
    for event in outcome.history:
        if event.kind == "fault":
            broken.append(event.detail["fault"])
            if len(broken) == 2:
                met.add(tuple(sorted(broken)))
        elif event.kind == "fault over":
            broken.remove(event.detail["fault"])
    return met


def wrong_in(outcome: Outcome) -> list[tuple[str, object]]:
    wrong: list[tuple[str, object]] = [
        (one.name, one.violations) for one in outcome.verdicts if one.name in (*SAFETY, "told") and one.violations
    ]
    [end] = [event for event in outcome.history if event.kind == "end"]
    return [*wrong, ("hung", end.detail["hung"])] if end.detail["hung"] else wrong


def check_pairs(engine: str, members: int, missing: set[Pair], *, first: tuple[str, ...] = ()) -> None:
    """Run these faults in every pair, and whatever pair is missing then by itself."""
    with memory_folder() as folder, started(engine, folder, members=members, witness=True) as (url, servers):
        for number in range(ROUNDS):
            for faults in [first] if first and number == 0 else sorted(missing):
                place = folder / f"run-{number}-{len(missing)}"
                place.mkdir()
                seconds = TTL * A_PAIR_TAKES * max(len(pairs_of(faults)), 2)
                plan = Plan(
                    url, "register", faults, "pairs", seed=SEED, seconds=seconds, ttl=TTL, wait=2 * TTL, workers=4
                )
                outcome = run(plan, place, servers)
                assert outcome.info.left_out == {}
                assert wrong_in(outcome) == [], faults
                missing -= met_in(outcome)
    assert missing == set()


@pytest.mark.timeout(3600)
def test_whatever_can_happen_to_one_server_and_its_clients() -> None:
    check_pairs("redis", 1, pairs_of(ANYWHERE), first=ANYWHERE)


@pytest.mark.timeout(3600)
def test_a_replica_takes_over_while_something_else_breaks() -> None:
    """But for clocks: a token that the replica has not heard of is known by the time alone, as the engine says."""
    check_pairs("redis", 2, {pair_of("failover", other) for other in ANYWHERE if other not in CLOCKS})


@pytest.mark.timeout(3600)
def test_the_leader_is_killed_while_something_else_breaks() -> None:
    """But for clocks: a server that is written in Go asks the kernel for the time, where no single one is moved."""
    check_pairs("etcd", 3, {pair_of("leader-kill", other) for other in ANYWHERE if other not in CLOCKS})
