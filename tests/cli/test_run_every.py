"""``leasehold run --every`` and ``leasehold jobs``: one run for each tick, and what was missed is told."""

from __future__ import annotations

import json
import time
from datetime import datetime, timedelta
from typing import Any

import pytest
from tests.cli.test_terminal import Shell, shell
from tests.cli.tool import Command, Heart, wait_for

__all__ = ["shell"]  # a fixture

LONG = "3000d"
"""A period during which these tests do not meet its end."""


def jobs_of(command: Command, name: str) -> dict[str, Any]:
    result = command("jobs", name, "--json")
    [job] = json.loads(result.stdout)["jobs"]
    assert isinstance(job, dict)
    return job


def test_a_tick_is_run_once(each: Command, request: pytest.FixtureRequest) -> None:
    name = request.node.name
    run = ("run", name, "--every", LONG, "--", "sh", "-c", "echo $LEASEHOLD_TICK $LEASEHOLD_TOKEN >> ran")
    first, second = each(*run), each(*run)
    assert (first.returncode, second.returncode, second.stderr) == (0, 76, "")
    [line] = (each.folder / "ran").read_text().splitlines()
    tick, token = line.split()
    job = jobs_of(each, name)
    assert [(one["tick"], one["state"]) for one in job["runs"]] == [(tick, "done")]
    assert (job["schedule"], job["behind"]) == (f"every {LONG}", 0)
    assert int(token) > 0
    assert each("jobs", name).returncode == 0
    assert "done before" in each("run", name, "--every", LONG, "--verbose", "--", "true").stderr


def test_people_at_a_terminal_are_told_why_nothing_runs(shell: Shell) -> None:
    shell.run(f"leasehold run export --every {LONG} -- true")
    assert shell.code() == 0
    shell.run(f"leasehold run export --every {LONG} -- true")
    shell.expect("of 'export': done before")
    assert shell.code() == 76


def test_of_five_that_come_at_once_one_runs(leasehold: Command) -> None:
    program = ["--every", LONG, "--", "sh", "-c", "echo ran >> ran; sleep 0.2"]
    calls = [leasehold.start("run", "export", "--wait", "60", *program) for _ in range(5)]
    for call in calls:
        call.communicate(timeout=60)
    assert sorted(call.returncode for call in calls) == [0, 76, 76, 76, 76]
    assert (leasehold.folder / "ran").read_text() == "ran\n"


def test_a_failed_tick_is_tried_again_later_and_given_up_in_the_end(
    each: Command, request: pytest.FixtureRequest
) -> None:
    name = request.node.name
    assert each("run", name, "--every", LONG, "--", "sh", "-c", "exit 3").returncode == 3
    later = each("run", name, "--every", LONG, "--", "true")
    assert (later.returncode, later.stderr.count("waiting, as attempt 1 failed (exit code 3)")) == (75, 1)
    assert "waiting   attempt 2" in each("jobs", name).stdout
    assert jobs_of(each, name)["under_way"]["error"] == "exit code 3"
    given_up = each("run", f"{name}-2", "--every", LONG, "--attempts", "1", "--", "sh", "-c", "exit 3")
    assert given_up.returncode == 3
    assert "is missed (given up after 1 attempts: exit code 3)" in given_up.stderr
    assert each("run", f"{name}-2", "--every", LONG, "--attempts", "1", "--", "true").returncode == 76
    listed = each("jobs", f"{name}-2")
    assert listed.returncode == 1
    assert "given up after 1 attempts: exit code 3" in listed.stdout


def test_a_tick_whose_runner_was_killed_is_run_by_the_next(leasehold: Command, heart: Heart) -> None:
    call = leasehold.start("run", "export", "--every", LONG, "--ttl", "3", "--", *heart.command())
    wait_for(heart.file.exists, "it runs")
    assert leasehold("run", "export", "--every", LONG, "--", "true").returncode == 75
    call.kill()
    call.communicate(timeout=20)
    after = leasehold("run", "export", "--every", LONG, "--wait", "60", "--", "true")
    assert after.returncode == 0
    assert [run["state"] for run in jobs_of(leasehold, "export")["runs"]] == ["crashed", "done"]


def test_missed_ticks_are_caught_up_with_in_their_order(leasehold: Command) -> None:
    run = ("run", "export", "--every", "1s", "--catch-up", "all", "--", "sh", "-c", "echo $LEASEHOLD_TICK >> ran")
    assert leasehold(*run).returncode == 0
    time.sleep(3)
    assert leasehold(*run).returncode == 0
    ticks = [datetime.fromisoformat(line) for line in (leasehold.folder / "ran").read_text().splitlines()]
    assert ticks == [ticks[0] + timedelta(seconds=number) for number in range(len(ticks))]
    assert len(ticks) > 3


def test_a_run_that_takes_longer_than_its_period_is_listed_as_an_overrun(leasehold: Command) -> None:
    assert leasehold("run", "slow", "--every", "1s", "--", "sleep", "1.2").returncode == 0
    assert leasehold("run", "quick", "--every", LONG, "--", "true").returncode == 0
    assert [jobs_of(leasehold, name)["overruns"] for name in ("slow", "quick")] == [1, 0]
    assert [leasehold("jobs", name).stdout.count(" overran") for name in ("slow", "quick")] == [1, 0]


def test_by_cron_expression(leasehold: Command) -> None:
    run = ("run", "closing", "--cron", "0 0 29 2 *", "--zone", "Europe/Berlin", "--", "true")
    assert [leasehold(*run).returncode for _ in range(2)] == [0, 76]
    assert jobs_of(leasehold, "closing")["schedule"] == "cron 0 0 29 2 * in Europe/Berlin"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--every", "often"], "'often'"),
        (["--every", "15"], "say '15s' or '15m'"),
        (["--every", "1d", "--cron", "* * * * *"], "exclude each other"),
        (["--cron", "often"], "no cron expression"),
        (["--cron", "* * * * *", "--zone", "Atlantis"], "no time zone"),
        (["--every", "1d", "--zone", "UTC"], "--zone goes with --cron"),
        (["--catch-up", "all"], "goes with --every"),
        (["--every", "1d", "--shared"], "one holder alone"),
    ],
)
def test_what_is_wrong_is_told(leasehold: Command, arguments: list[str], told: str) -> None:
    result = leasehold("run", "export", *arguments, "--", "true")
    assert result.returncode == 64
    assert told in result.stderr


def test_an_engine_without_books_says_so(leasehold: Command) -> None:
    result = leasehold("run", "export", "--every", "1d", "--on", "etcd://127.0.0.1:9", "--", "true")
    assert "keeps no books of jobs" in result.stderr
    assert result.returncode == 64


def test_without_any_job(leasehold: Command) -> None:
    assert leasehold("jobs").stdout == "No job was ever asked for here.\n"
    assert "no job 'export' was ever asked for" in leasehold("jobs", "export").stderr
    assert list(leasehold.folder.glob("*-jobs")) == []
