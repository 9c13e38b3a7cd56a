"""The command: explores, replays, draws, and tells scripts by its exit code."""

from __future__ import annotations

import pytest

from leasehold.sim.__main__ import main, replay_command


def test_help_shows_how_it_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--help"])
    assert stopped.value.code == 0
    assert "--histories 20000 --jobs 2" in capsys.readouterr().out


def test_exploring_ends_with_a_summary(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--histories", "30", "--jobs", "1"]) == 0
    output = capsys.readouterr().out
    for row in ("histories", "events", "leases", "losses told", "stale accesses refused", "violations", "crash"):
        assert row in output


def test_two_processes_count_the_same_as_one(capsys: pytest.CaptureFixture[str]) -> None:
    rows = []
    for jobs in ("1", "2"):
        assert main(["--histories", "120", "--jobs", jobs]) == 0
        rows.append([line for line in capsys.readouterr().out.splitlines() if "a second" not in line])
    assert rows[0] == rows[1]


def test_a_failing_seed_is_printed_with_the_command_that_replays_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--histories", "20", "--jobs", "1", "--mutation", "no-owner-check-on-release"]) == 1
    lines = capsys.readouterr().out.splitlines()
    [command] = [line for line in lines if "replay it" in line][:1]
    arguments = command.split("python -m leasehold.sim ")[1].split()
    assert main(arguments) == 1
    drawn = capsys.readouterr().out
    assert "no-owner-check-on-release" in drawn
    assert "▼" in drawn
    assert "✗" in drawn
    assert "violations" in drawn


def test_replaying_draws_the_same_each_time(capsys: pytest.CaptureFixture[str]) -> None:
    drawings = []
    for _ in range(2):
        assert main(["--seed", "3", "--all"]) == 0
        drawings.append(capsys.readouterr().out)
    assert drawings[0] == drawings[1]
    assert "All judges are content" in drawings[0]


@pytest.mark.parametrize("arguments", [[], ["--histories", "0"], ["--seed", "1", "--mutation", "no-such-bug"]])
def test_nonsense_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert "usage" in capsys.readouterr().err


def test_the_command_names_the_mutation() -> None:
    assert replay_command(7, "no-drift-margin") == "python -m leasehold.sim --seed 7 --mutation no-drift-margin"
