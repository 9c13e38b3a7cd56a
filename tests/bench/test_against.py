"""Results held against earlier ones: what got worse is said, what only varies is not."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from leasehold.bench import GOT_WORSE, main
from leasehold.bench.against import compared, is_worse
from leasehold.bench.results import Aim, Figure, Finding, Results, Row, Table

RATIO = "floors (p10-p90)"
TITLE = "Take + release, uncontended, on redis"
RATIO_BEFORE, PEER_BEFORE = Figure(1.5, "floors", 1.4, 1.6), Figure(2.0, "floors", 1.9, 2.1)
TIMES_BEFORE, SIZE_BEFORE = Figure(50.0, "times", 40.0, 60.0), Figure(1000.0, "bytes")


def results_with(
    ratio: Figure = RATIO_BEFORE, peer: Figure = PEER_BEFORE, times: Figure = TIMES_BEFORE, size: Figure = SIZE_BEFORE
) -> Results:
    rows = [Row("Leasehold", {RATIO: ratio, "p50 µs": Figure(100.0, "us")}), Row("redis-py Lock", {RATIO: peer})]
    aims = [Aim("holder changes", "at least", 10.0, times), Aim("bytes of memory a lease", "at most", 2048.0, size)]
    return Results("tiny", {"": "here"}, {}, [Table("uncontended", TITLE, [RATIO, "p50 µs"], rows)], aims)


def test_the_same_results_are_neither_worse_nor_better() -> None:
    same = compared(results_with(), results_with())
    assert (same.compared, same.worse, same.better, same.missing) == (3, [], [], [])
    assert "3 ratios and counts compared" in same.text


@pytest.mark.parametrize(
    ("now", "what"),
    [
        (results_with(ratio=Figure(2.0, "floors", 1.8, 2.2)), f"{TITLE}: Leasehold, floors"),
        (results_with(times=Figure(20.0, "times", 18.0, 25.0)), "holder changes"),
        (results_with(size=Figure(1500.0, "bytes")), "bytes of memory a lease"),
    ],
    ids=["a ratio", "a ratio of which more is better", "a count"],
)
def test_what_got_worse_is_said_and_the_other_way_round_it_is_better(now: Results, what: str) -> None:
    found = compared(results_with(), now)
    assert [change.what for change in found.worse] == [what]
    assert f"worse:  {what}" in found.text
    back = compared(now, results_with())
    assert not back.worse
    assert [change.what for change in back.better] == [what]


@pytest.mark.parametrize(
    "now",
    [
        results_with(ratio=Figure(1.7, "floors", 1.45, 2.0)),  # beyond the old spread, but the old lies in the new
        results_with(ratio=Figure(1.55, "floors", 1.52, 1.6)),
        results_with(peer=Figure(9.0, "floors", 8.0, 10.0)),  # not ours
        results_with(size=Figure(1050.0, "bytes")),
    ],
)
def test_what_only_varies_is_not_worse(now: Results) -> None:
    assert not compared(results_with(), now).worse


def test_times_are_never_compared() -> None:
    slow = results_with()
    slow.tables[0].rows[0].figures["p50 µs"] = Figure(9000.0, "us", 8000.0, 10000.0)
    assert not compared(results_with(), slow).worse


def test_what_is_not_measured_any_more_is_said() -> None:
    gone = results_with()
    gone.tables[0].rows.pop(0)
    assert compared(results_with(), gone).missing == [f"{TITLE}: Leasehold, floors"]
    elsewhere = results_with()
    elsewhere.tables[0] = dataclasses.replace(elsewhere.tables[0], title="another table")
    assert not compared(results_with(), elsewhere).missing, "a run may be of fewer tables"


def test_nothing_can_be_worse_than_nothing_lost_but_something_lost() -> None:
    none, some = Figure(0.0, ""), Figure(1.0, "")
    assert is_worse(none, some, "at most")
    assert not is_worse(none, none, "at most")


def test_the_command_exits_with_a_code_of_its_own_when_a_planted_figure_got_worse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    earlier, file = tmp_path / "earlier.json", tmp_path / "now.json"
    earlier.write_text(results_with().to_json(), encoding="utf-8")

    def giving(results: Results) -> Callable[..., Results]:
        return lambda *_args, **_options: results

    monkeypatch.setattr("leasehold.bench.run", giving(results_with()))
    assert main(["--against", str(earlier), "--json", str(file)]) == 0
    assert "0 worse" in capsys.readouterr().out
    monkeypatch.setattr("leasehold.bench.run", giving(results_with(ratio=Figure(3.0, "floors", 2.9, 3.1))))
    assert main(["--against", str(earlier)]) == GOT_WORSE
    assert "1.50 (1.40 to 1.60) before, 3 (2.90 to 3.10) now floors" in capsys.readouterr().out
    (tmp_path / "nonsense.json").write_text("{}")
    assert main(["--against", str(tmp_path / "nonsense.json")]) == 64


# Results of several runs in one file


@pytest.mark.parametrize(("effort", "notes"), [("full", 0), ("quick", 1)])
def test_a_table_says_that_it_was_made_in_a_hurry(effort: str, notes: int) -> None:
    results = Results(effort, {}, {})
    results.add(Finding(results_with().tables, []))
    assert len(results.tables[0].notes) == notes


def test_a_later_run_takes_the_place_of_the_tables_that_it_made() -> None:
    other = Table("contended", "8 processes, one name, on redis", [], [])
    first = results_with()
    first.tables.append(other)
    first.versions["Redis"] = "7"
    later = results_with(ratio=Figure(9.0, "floors", 8.0, 10.0), size=Figure(1.0, "bytes"))
    later.versions["etcd"] = "3"
    whole = first.followed_by(later)
    assert [table.title for table in whole.tables] == [TITLE, other.title]
    assert whole.tables[0].rows[0].figures[RATIO].value == 9.0
    assert whole.versions == {"Redis": "7", "etcd": "3"}
    assert [aim.seen.value for aim in whole.aims] == [50.0, 1.0]
    assert Results.from_json(whole.to_json()) == whole


def test_of_several_runs_the_load_is_a_range_and_each_effort_is_told_once() -> None:
    loads = ("2.5", "0.9", "", "11.0", "2.5")
    whole, *later = (Results(effort, {"load before": load}, {}) for effort, load in zip("abaab", loads, strict=True))
    for one in later:
        whole = whole.followed_by(one)
    assert whole.effort == "a, b"
    assert whole.machine["load before"] == "0.9 to 11.0"


def test_rows_that_are_engines_come_together_in_one_table() -> None:
    def of(*engines: str) -> Results:
        rows = [Row(f"Leasehold on {engine}", {"lost": Figure(0.0, "")}) for engine in engines]
        return Results("tiny", {}, {}, [Table("many", "10,000 leases", ["lost"], rows)])

    [table] = of("sqlite", "redis").followed_by(of("redis", "etcd")).tables
    assert [row.who for row in table.rows] == ["Leasehold on sqlite", "Leasehold on redis", "Leasehold on etcd"]
