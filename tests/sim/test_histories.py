"""Twenty thousand histories of the unchanged product: no claim is ever broken, and the world is hostile enough."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.sim.conftest import HISTORIES

from leasehold.sim.__main__ import replay_command
from leasehold.sim.plan import BEYOND, WITHIN
from leasehold.sim.runner import Tally, run

CORPUS = [
    int(line.split()[0])
    for line in (Path(__file__).parent / "corpus.txt").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
]


@pytest.mark.parametrize("seed", CORPUS)
def test_seed_that_once_failed(seed: int) -> None:
    _, violations = run(seed)
    assert not violations, replay_command(seed)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_no_claim_is_broken(tally: Tally) -> None:
    assert tally.histories == HISTORIES
    found = dict(reversed(tally.violations))
    report = [f"{replay_command(seed)}   # {found[seed].judge}: {found[seed].text}" for seed in sorted(found)[:10]]
    assert not found, "\n".join([f"{len(found)} of {HISTORIES} histories break a claim:", *report])


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_world_is_hostile_enough(tally: Tally) -> None:
    """Without a fence updates do get lost, also with one on writes alone; every kind of fault does happen."""
    assert tally.updates_lost["none"] > 0
    assert tally.updates_lost["writes"] > 0
    assert tally.updates_lost["both"] == 0
    assert tally.stale_refused > 0
    assert tally.losses_told > tally.histories
    assert tally.leases > 10 * tally.histories
    assert [kind for kind in WITHIN | BEYOND if not tally.faults[kind]] == []
