"""The sharing of partitions in simulated worlds: no history breaks a claim, and every planted bug does."""

from __future__ import annotations

import pytest

from leasehold.sim.mutating import planted
from leasehold.sim.partitions import PartitionHistory, explore, main
from leasehold.sim.partitions_mutations import PARTITION_MUTATIONS

HISTORIES = 60
SEEDS = range(150)


def test_no_history_breaks_a_claim() -> None:
    assert explore(range(HISTORIES)) == []


@pytest.mark.parametrize("name", PARTITION_MUTATIONS)
def test_a_planted_bug_is_caught(name: str) -> None:
    with planted(PARTITION_MUTATIONS[name]):
        violations = explore(SEEDS, until_caught=True)
    assert violations, f"not caught in {len(SEEDS)} histories: {PARTITION_MUTATIONS[name].bug}"
    assert {violation.claim for violation in violations} & set(PARTITION_MUTATIONS[name].caught_by)


def test_one_number_makes_one_history_and_much_happens_in_it() -> None:
    def story(seed: int) -> tuple[dict[int, int], dict[str, list[int]]]:
        history = PartitionHistory(seed)
        history.run()
        return history.taken, history.written

    assert [story(seed) for seed in range(8)] == [story(seed) for seed in range(8)]
    taken, written = story(1)
    assert max(taken.values()) > 2
    assert sum(len(numbers) for numbers in written.values()) > 100


def test_the_command_sums_up(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--histories", "3"]) == 0
    assert "3 histories, 0 violations" in capsys.readouterr().out
    with planted(PARTITION_MUTATIONS["take-before-release"]):
        assert main(["--histories", "3"]) == 1
    assert "alone" in capsys.readouterr().out
