"""What an hour of work leaves behind is read from outside; what has grown is called by its name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from endurance import MOST_GROWTH, Endurer, Look, Verdict, endure, look_at
from leasehold.bench.places import private_places


def verdict_on(looks: list[Look], held: int = 1000) -> Verdict:
    with subprocess.Popen([sys.executable, "-c", ""], text=True) as process:
        return Endurer("somebody", process, looks, held).verdict()


def test_who_stays_as_it_was_is_good() -> None:
    warming_up = [Look(10_000 + 900 * step, 5 + step, 2) for step in range(10)]
    assert verdict_on(warming_up + [Look(20_000, 15, 2)] * 90).is_good


@pytest.mark.parametrize(
    "last",
    [Look(int(20_000 * (1 + MOST_GROWTH)) + 1, 15, 2), Look(20_000, 16, 2), Look(20_000, 15, 3)],
    ids=["memory", "files", "threads"],
)
def test_who_grows_is_not(last: Look) -> None:
    assert not verdict_on([Look(20_000, 15, 2)] * 90 + [last] * 10).is_good


def test_who_did_nothing_is_not_good_either() -> None:
    assert not verdict_on([Look(20_000, 15, 2)] * 100, held=0).is_good


def test_an_open_file_and_more_memory_are_seen(tmp_path: Path) -> None:
    before = look_at(os.getpid())
    more = bytearray(os.urandom(1)) * 20_000_000
    with (tmp_path / "open").open("w"):
        after = look_at(os.getpid())
    assert after.files == before.files + 1
    assert after.memory >= before.memory + len(more) // 2


def test_both_worlds_go_through_it_beside_processes_that_are_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("endurance.KILLED_EVERY", 2.0)
    with private_places(["sqlite"]) as (places, missing):
        assert not missing
        verdicts = endure(places, 5.0)
    assert [verdict.who for verdict in verdicts] == ["sqlite, blocking", "sqlite, asyncio"]
    assert all(verdict.held > 20 for verdict in verdicts), verdicts
