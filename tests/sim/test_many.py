"""Many seeds: all cores work on them, and whoever waits sees how far they are."""

from __future__ import annotations

import os
import time

import pytest
from rich.console import Console

from leasehold.sim import many, partitions, quorum
from leasehold.sim.many import CHUNK, spread, telling
from leasehold.sim.mutating import planted
from leasehold.sim.quorum_mutations import QUORUM_MUTATIONS

SEEDS = range(3, 3 + 12 * CHUNK + 7)


def who_did(seeds: range) -> tuple[int, range]:
    time.sleep(0.2)
    return os.getpid(), seeds


@pytest.mark.parametrize("jobs", [1, 2])
def test_each_seed_is_run_once_on_as_many_processes_as_are_asked_for(jobs: int) -> None:
    done = list(spread(who_did, SEEDS, jobs))
    assert len({pid for pid, _ in done}) == jobs
    assert sorted(seed for _, seeds in done for seed in seeds) == list(SEEDS)


def test_what_is_over_at_once_starts_no_processes() -> None:
    assert [pid for pid, _ in spread(who_did, range(CHUNK), 8)] == [os.getpid()]


def test_without_a_terminal_a_line_now_and_then_says_how_far_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with telling(1000, Console(force_terminal=False)) as tell:
        tell(50, 0)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(many, "TELLS_EVERY", 0.0)
    with telling(1000, Console(force_terminal=False)) as tell:
        tell(150, 2)
    assert "150 of 1,000 histories" in (said := capsys.readouterr().err)
    assert "2 violations" in said


def test_a_failing_seed_is_printed_with_the_command_that_replays_it(capsys: pytest.CaptureFixture[str]) -> None:
    with planted(QUORUM_MUTATIONS["minority"]):
        assert quorum.main(["--histories", "20", "--first", "0"]) == 1
        assert "replay it:  python -m leasehold.sim.quorum --first 0 --histories 1\n" in capsys.readouterr().out
        assert quorum.main(["--first", "0", "--histories", "1"]) == 1


@pytest.mark.parametrize("module", [quorum, partitions])
def test_two_processes_count_the_same_as_one(module: object, capsys: pytest.CaptureFixture[str]) -> None:
    counted = []
    for jobs in ("1", "2"):
        assert module.main(["--histories", str(CHUNK + 3), "--jobs", jobs]) == 0  # type: ignore[attr-defined]
        counted.append(capsys.readouterr().out.split("violations")[0])
    assert counted[0] == counted[1]
