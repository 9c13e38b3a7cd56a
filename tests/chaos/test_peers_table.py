"""The tables of peers: runs are counted, kept in a file, and shown in a page that is made of nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from leasehold.chaos.checkers import Verdict
from leasehold.chaos.history import Event
from leasehold.chaos.peers import PEERS, data
from leasehold.chaos.peers.__main__ import ENGINES, main
from leasehold.chaos.peers.data import Made, NotRuns
from leasehold.chaos.peers.table import COLUMNS, Row, Terms, counted, put_into, rows_of, text_of
from leasehold.chaos.run_info import RunInfo
from leasehold.chaos.running import Outcome

ROOT = Path(__file__).parents[2]
PAGE, DATA = ROOT / "docs" / "peers.md", ROOT / "docs" / "data" / "peers.json"
BLANK = Made("redis", "redis-py", "kill", 1, 10.0, "6.0", "2026-11-16")


def outcome_with(figures: dict[str, dict[str, float]]) -> Outcome:
    names = {name for name, _ in COLUMNS.values()}
    verdicts = [Verdict(name, "", "held", 1, figures={**figures.get(name, {})}) for name in names]
    info = RunInfo("redis", "", "redis-py", "register", ("kill",), 1, 1.0, 2.0, 2, "")
    return Outcome(info, [Event(1.0, "w1", "granted", "register", 1)], verdicts, {"kill": 2})


def test_a_row_adds_up_runs_and_shows_no_fence_without_a_token() -> None:
    row = Row("redis-py", "kill")
    for figures in (
        {"exclusive": {"overlaps": 2.0, "overlaps after a stop": 1.0}, "told": {"never told": 1.0}},
        {"wait overrun": {"furthest beyond its wait (s)": 1.25}, "told": {"never told": 2.0}},
        {"wait overrun": {"furthest beyond its wait (s)": 0.5}},
    ):
        row.add(counted(BLANK, outcome_with(figures)))
    cells = dict(zip(["library", "fault", "strikes", "grants", *COLUMNS], row.cells(), strict=True))
    assert cells["both believed"] == "3"
    assert cells["never told"] == "3"
    assert cells["beyond its wait (s)"] == "1.2"
    assert cells["lost, fenced"] == "no token"
    assert (cells["strikes"], cells["grants"]) == ("6", "3")
    assert Row("redis-py", "pause").cells()[-2] == "-"


def test_a_run_that_failed_is_shown_as_such_unless_another_one_did_not() -> None:
    row = Row("redis-py", "kill")
    row.add(replace(BLANK, failure="EngineUnavailable"))
    assert "EngineUnavailable" in row.cells()
    row.add(replace(BLANK, seed=2, strikes=1, grants=7))
    assert row.cells()[2:4] == ["1", "7"]


def test_rows_stand_in_the_order_of_faults_with_leasehold_first() -> None:
    made = [
        replace(BLANK, fault=fault, subject=subject, seed=seed)
        for fault in ("kill", "pause")
        for subject in ("pottery", "leasehold")
        for seed in (1, 2)
    ]
    shown = [(row.fault, row.subject) for row in rows_of(made)]
    assert shown == [("pause", "leasehold"), ("pause", "pottery"), ("kill", "leasehold"), ("kill", "pottery")]


def test_runs_are_kept_and_a_later_one_takes_the_place_of_an_earlier_one(tmp_path: Path) -> None:
    file = tmp_path / "peers.json"
    assert data.read(file) == []
    other = replace(BLANK, seed=2)
    data.add(file, [BLANK, other])
    again = replace(BLANK, grants=5, figures={"hung": 1.0}, fenced=True)
    data.add(file, [again])
    assert data.read(file) == [again, other]
    for wrong in ("{}", "[]", "nonsense", '{"format": 7, "runs": []}'):
        file.write_text(wrong)
        with pytest.raises(NotRuns, match=r"peers\.json"):
            data.read(file)


def test_the_table_of_one_engine_is_replaced_in_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- runs on redis -->\nan earlier table\n<!-- end of runs on redis -->\nafter\n")
    text = text_of([BLANK], Terms())
    put_into(page, "redis", text)
    assert "an earlier table" not in page.read_text()
    assert "| redis-py | kill |" in page.read_text()
    assert "faults for 10 s a run" in page.read_text()
    put_into(page, "redis", text)
    assert page.read_text().startswith("before\n")
    assert page.read_text().endswith("after\n")
    assert page.read_text().count("| redis-py |") == 1
    with pytest.raises(ValueError, match="it takes one"):
        put_into(page, "etcd", text)


def test_the_page_of_the_documentation_shows_the_runs_that_are_kept(tmp_path: Path) -> None:
    made = tmp_path / "peers.md"
    made.write_text(PAGE.read_text())
    assert main(["--render", "--data", str(DATA), "--into", str(made)]) == 0
    hint = "run: python -m leasehold.chaos.peers --render --data docs/data/peers.json --into docs/peers.md"
    assert made.read_text() == PAGE.read_text(), hint
    assert {one.engine for one in data.read(DATA)} == set(ENGINES), "every engine of a peer has its table"


def test_the_page_says_how_it_was_made() -> None:
    page = PAGE.read_text()
    assert "not seen" in page
    assert all(name in page for name in PEERS)
