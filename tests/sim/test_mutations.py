"""Every planted bug is caught by a judge whose business it is; the unchanged product is not, on the same seeds."""

from __future__ import annotations

import os
from multiprocessing import get_context

import pytest
from tests.sim.test_histories import CORPUS

from leasehold.core import held, table
from leasehold.sim.judges import JUDGES, Violation
from leasehold.sim.mutating import Mutation, edit, planted
from leasehold.sim.mutations import MUTATIONS
from leasehold.sim.runner import explore, first_caught

SEEDS = [*CORPUS, *range(1000 - len(CORPUS))]

Caught = dict[str, tuple[int, Violation] | None]


def hunt(name: str) -> tuple[str, tuple[int, Violation] | None]:
    return name, first_caught(name, SEEDS)


@pytest.fixture(scope="module")
def caught() -> Caught:
    with get_context("spawn").Pool(min(os.cpu_count() or 1, 4)) as pool:
        return dict(pool.imap_unordered(hunt, MUTATIONS))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", MUTATIONS)
def test_bug_is_caught(name: str, caught: Caught) -> None:
    found = caught[name]
    assert found is not None, f"{name} was not caught in {len(SEEDS)} histories: {MUTATIONS[name].bug}"
    seed, violation = found
    print(f"{name}: caught by {violation.judge} at seed {seed}: {violation.text}")
    assert violation.judge in MUTATIONS[name].caught_by


@pytest.mark.timeout(600)
def test_without_the_bug_the_same_seeds_are_clean(caught: Caught) -> None:
    usual = [found[0] for found in caught.values() if found is not None and found[0] not in CORPUS]
    tally = explore(range(max(usual) + 1), jobs=min(os.cpu_count() or 1, 4))
    assert tally.violations == []


def test_there_are_enough_bugs_and_each_says_what_it_is() -> None:
    assert len(MUTATIONS) >= 40
    judges = {judge.__name__ for judge in JUDGES}
    for mutation in MUTATIONS.values():
        assert mutation.bug.endswith(".")
        assert set(mutation.caught_by) <= judges
    assert {name for mutation in MUTATIONS.values() for name in mutation.caught_by} == judges, "a judge without a bug"


def plant(*pieces: tuple[str, str]) -> Mutation:
    return Mutation("test", "A test.", (), lambda: [edit(held.margin, *pieces)])


def test_a_bug_is_in_place_only_while_it_is_planted() -> None:
    before = held.margin(10.0, 0.0)
    with planted(plant(("ttl * 0.01", "ttl * 0.5"))):
        assert held.margin(10.0, 0.0) > 5.0
    assert held.margin(10.0, 0.0) == before


def test_it_is_taken_away_even_when_the_body_fails() -> None:
    original = table.take
    mutation = Mutation("test", "A test.", (), lambda: [edit(table.take, ("_beat(mine, ask.ttl, now)", "mine"))])
    with pytest.raises(RuntimeError), planted(mutation):
        assert table.take is not original
        raise RuntimeError
    assert table.take is original


def test_a_bug_that_no_longer_fits_the_code_says_so() -> None:
    with pytest.raises(LookupError, match="does not fit margin any more"), planted(plant(("no such text", ""))):
        raise AssertionError("must not be reached")


@pytest.mark.parametrize("name", MUTATIONS)
def test_every_bug_fits_the_code(name: str) -> None:
    with planted(MUTATIONS[name]):
        pass
