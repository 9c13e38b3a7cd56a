"""Goals of cost and fairness that the benchmark does not time: counted here, on real engines; and the page of goals."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import goals
from goal_measures import MEASURES, Seen, left_behind, longest_wait
from leasehold.bench.places import Place, private_places

ROOT = Path(__file__).parents[2]
ENGINES = ("sqlite", "redis")
IDS = [*(f"R{n}" for n in range(1, 9)), *(f"L{n}" for n in range(1, 7)), *(f"C{n}" for n in range(1, 5))]
IDS += [f"F{n}" for n in range(1, 6)]


@pytest.fixture(scope="module")
def places() -> Iterator[dict[str, Place]]:
    with private_places() as (both, missing):
        assert not missing, missing
        yield {place.engine: place for place in both}


@pytest.mark.parametrize("engine", ENGINES)
def test_failed_attempts_leave_nothing_behind(places: dict[str, Place], engine: str) -> None:
    assert left_behind(places[engine], 1000) == 0


@pytest.mark.parametrize("engine", ENGINES)
def test_of_fifty_waiters_each_is_served_within_ten_fair_shares(places: dict[str, Place], engine: str) -> None:
    # A starved one would wait for half of the time and more.
    assert longest_wait(places[engine].on, waiters=50, turns=20, namespace=places[engine].namespace) <= 10


# The page


def kept() -> list[dict[str, object]]:
    goals_kept: list[dict[str, object]] = json.loads(goals.DATA.read_text())
    return goals_kept


def test_every_goal_is_there_once() -> None:
    assert [goal["id"] for goal in kept()] == IDS
    assert set(MEASURES) <= set(IDS)


def shown_by() -> list[str]:
    return sorted({one for goal in json.loads(goals.DATA.read_text()) for one in goal["shown_by"]})


@pytest.mark.parametrize("named", shown_by())
def test_what_shows_a_goal_exists(named: str) -> None:
    """A test that was renamed, or a command that is gone, shows nothing."""
    first, _, name = named.partition("::")
    if first.endswith(".py"):
        tree = ast.parse((ROOT / first).read_text())
        tests = [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        assert not name or name in tests
        assert any(test.startswith("test_") for test in tests)
    elif first.startswith("make "):
        assert f"\n{first.split()[1]}:" in (ROOT / "Makefile").read_text()
    else:
        python, _, tool = first.partition(" tools/")
        assert (python == "python" and (ROOT / "tools" / tool.split()[0]).exists()) or first.startswith(
            ("leasehold bench ", "leasehold chaos ")
        )
        assert "--measure" not in first or first.split()[-1] in MEASURES


def test_a_goal_that_is_missed_says_by_how_much_and_one_that_is_measured_says_when() -> None:
    for goal in kept():
        assert goal["met"] in (True, False, None)
        assert (goal["met"] is False) == bool(goal["missed_by"]), goal["id"]
        assert goal["on"] or goal["met"] is None or "in each run of the tests" in str(goal["seen"]), goal["id"]


def test_the_page_is_made_of_the_file() -> None:
    assert goals.PAGE.read_text() == goals.page(json.loads(goals.DATA.read_text())), "run: python tools/goals.py"


def test_a_missed_goal_is_shown_as_such() -> None:
    goal = {"id": "L3", "goal": "Quick", "shown_by": ["make peers"], "seen": "", "met": None, "missed_by": "", "on": ""}
    assert "| open |" in goals.page([goal])
    goals.note(goal, Seen("1.00 s", False, "0.75 s"))
    made = goals.page([goal])
    assert "**missed** by 0.75 s" in made
    assert "Of 1 goals, 0 are met; missed: L3" in made
    goals.note(goal, Seen("0.10 s", True))
    assert "missed: none" in goals.page([goal])
