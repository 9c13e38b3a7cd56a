"""The redlock engine's own code in simulated worlds: no history breaks a claim, and every planted bug does."""

from __future__ import annotations

import pytest

from leasehold.sim.mutating import planted
from leasehold.sim.quorum import QuorumHistory, explore, main
from leasehold.sim.quorum_mutations import QUORUM_MUTATIONS

HISTORIES = 3000
MANY_HISTORIES = 50_000
SEEDS = range(2000)


def test_no_history_breaks_a_claim() -> None:
    tally = explore(range(HISTORIES))
    assert tally.violations == []
    assert tally.complete > HISTORIES, "histories in which hardly anybody gets a token show nothing"


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_no_history_breaks_a_claim_in_many_of_them() -> None:
    tally = explore(range(MANY_HISTORIES))
    assert tally.violations == []
    assert tally.complete > MANY_HISTORIES


@pytest.mark.parametrize("name", QUORUM_MUTATIONS)
def test_a_planted_bug_is_caught(name: str) -> None:
    with planted(QUORUM_MUTATIONS[name]):
        tally = explore(SEEDS, until_caught=True)
    assert tally.violations, f"not caught in {len(SEEDS)} histories: {QUORUM_MUTATIONS[name].bug}"
    assert tally.violations[0].claim in QUORUM_MUTATIONS[name].caught_by


def test_one_number_makes_one_history() -> None:
    def story(seed: int) -> list[tuple[int, int, int | None]]:
        history = QuorumHistory(seed)
        history.run()
        return [(attempt.token, attempt.round_began, attempt.complete_at) for attempt in history.attempts]

    assert [story(seed) for seed in range(50)] == [story(seed) for seed in range(50)]


def test_the_command_sums_up(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--histories", "20"]) == 0
    assert "20 histories" in capsys.readouterr().out
    with planted(QUORUM_MUTATIONS["minority"]):
        assert main(["--histories", "20"]) == 1
    assert "seed 0: unique" in capsys.readouterr().out
