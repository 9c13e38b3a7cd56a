"""The tester finds bugs: each is planted in the workers of a run on a real server, which has to notice.

`make planted` and `make nightly` try all of them; `make test` those that are found in a few seconds.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.chaos.planted.bugs import BUGS, Bug
from tests.support.server_process import memory_folder

from leasehold.chaos.faults import FAULTS
from leasehold.chaos.running import Outcome, Plan, run
from leasehold.chaos.servers import started

FOLDER = Path(__file__).with_name("planted")
QUICK = ("release-without-owner-check", "one-holder-for-all", "token-deleted-with-the-lease")
EACH = [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.nightly]) for name in BUGS]
TRIES = 3
"""Chance decides what a run meets; after so many runs a bug counts as not found."""
FOUND_WITHIN = 400
"""Seconds, for each bug; on a machine with other work most are found in a quarter of a minute."""


def outcome_of(bug: Bug, seed: int, seconds: float) -> Outcome:
    """Of a run on a server of its own."""
    with memory_folder() as folder:
        (folder / "run").mkdir()
        with started("redis", folder, members=bug.members) as (url, servers):
            plan = Plan(
                url=url,
                workload=bug.workload,
                faults=bug.faults,
                seed=seed,
                seconds=seconds,
                ttl=bug.ttl,
                wait=bug.wait,
                workers=bug.workers,
            )
            return run(plan, folder / "run", servers)


def found_by(outcome: Outcome) -> dict[str, str]:
    """The checkers that were not content, with the first thing that each of them says."""
    return {one.name: one.violations[0].text for one in outcome.verdicts if one.status == "violated"}


@pytest.mark.timeout(FOUND_WITHIN)
@pytest.mark.parametrize("name", EACH)
def test_a_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bug = BUGS[name]
    monkeypatch.setenv("PYTHONPATH", str(FOLDER))
    monkeypatch.setenv("LEASEHOLD_PLANTED", name)
    began = time.monotonic()
    for seed in range(TRIES):
        found = found_by(outcome_of(bug, seed, bug.seconds if name not in QUICK else 4.0))
        if found:
            print(f"PLANTED {name}: found by {', '.join(found)} after {time.monotonic() - began:.0f} s: {found}")
            assert set(found) & set(bug.caught_by)
            return
    pytest.fail(f"{name} was not found in {TRIES} runs: {bug.text}")


def test_all_bugs_fit_the_code_as_it_is_now() -> None:
    """In a process of its own, which is spoilt by it."""
    words = "from tests.chaos.planted.bugs import BUGS, check_that_it_fits\nfor name in BUGS: check_that_it_fits(name)"
    subprocess.run([sys.executable, "-c", words], cwd=Path(__file__).parents[2], check=True)


def test_without_a_bug_nothing_is_found() -> None:
    bug = BUGS["release-without-owner-check"]
    assert found_by(outcome_of(bug, 0, 4.0)) == {}


def test_there_are_enough_bugs_and_the_page_names_them_and_every_fault() -> None:
    assert len(BUGS) >= 10
    assert all(bug.text.endswith(".") for bug in BUGS.values())
    page = (Path(__file__).parents[2] / "docs" / "chaos-faults.md").read_text()
    assert [name for name in (*BUGS, *FAULTS) if f"`{name}`" not in page] == []
