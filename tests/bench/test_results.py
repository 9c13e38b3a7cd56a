"""Results as a file, as Markdown, and as the page of the documentation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from leasehold.bench import main
from leasehold.bench.figures import Spread
from leasehold.bench.report import BEGIN, END, markdown, write_into
from leasehold.bench.results import Aim, Figure, Finding, NotAResult, Results, Row, Table, number_text

ROOT = Path(__file__).resolve().parent.parent.parent


def some_results() -> Results:
    results = Results("quick", {"": "2 cores", "system": "Linux 6"}, {"Redis": "7.0.15"}, skipped=["nothing at all"])
    figure = Figure.of(Spread(1.234, 1.1, 1.5), "floors")
    table = Table(
        "uncontended", "Take | release", ["floors", "p50 µs"], [Row("Leasehold", {"floors": figure})], ["A note."]
    )
    aims = [Aim("take", "at most", 1.3, figure), Aim("changes", "at least", 4.0, Figure(2.0, "times"))]
    results.add(Finding([table], aims))
    return results


def test_a_file_of_results_reads_back_as_it_was() -> None:
    results = some_results()
    assert Results.from_json(results.to_json()) == results


def test_a_file_of_results_says_which_aims_were_met() -> None:
    content = json.loads(some_results().to_json())
    assert content["format"] == 1
    assert [aim["met"] for aim in content["aims"]] == [True, False]
    assert content["tables"][0]["rows"][0]["figures"]["floors"] == {
        "value": 1.234,
        "unit": "floors",
        "low": 1.1,
        "high": 1.5,
    }


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda content: content.update(format=2), "format 2"),
        (lambda content: content.pop("tables"), "KeyError"),
        (lambda content: content["tables"][0]["rows"][0]["figures"]["floors"].update(unit="furlongs"), "furlongs"),
        (lambda content: content["tables"][0].update(columns=[]), "without a column"),
        (lambda content: content["aims"][0].update(relation="about"), "about"),
        (lambda content: content["aims"][0]["seen"].update(value="many"), "many"),
        (lambda content: content.update(machine=[]), "AttributeError"),
    ],
)
def test_a_damaged_file_is_refused_with_what_is_wrong(damage: object, said: str) -> None:
    content = json.loads(some_results().to_json())
    assert callable(damage)
    damage(content)
    with pytest.raises(NotAResult, match=said):
        Results.from_json(json.dumps(content))


@pytest.mark.parametrize("text", ["", "[]", "null", "3", "{}"])
def test_a_file_of_something_else_is_refused(text: str) -> None:
    with pytest.raises(NotAResult):
        Results.from_json(text)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.0, "0"), (5.0, "5"), (0.153, "0.15"), (1.2345, "1.23"), (46.04, "46.0"), (123.4, "123"), (12345.6, "12,346")],
)
def test_numbers_have_the_digits_that_mean_something(value: float, shown: str) -> None:
    assert number_text(value, "us") == shown


def test_markdown_has_every_table_aim_and_note_and_breaks_no_cell() -> None:
    text = markdown(some_results())
    assert "| Leasehold | 1.23 (1.10 to 1.50) |  |" in text
    assert "| take | ≤ 1.30 | 1.23 (1.10 to 1.50) floors | met |" in text
    assert "| changes | ≥ 4 | 2 times | **missed** |" in text
    assert "A note." in text
    assert "Not measured: nothing at all" in text
    assert "2 cores, system Linux 6; Redis 7.0.15" in text


def test_a_cell_with_a_bar_stays_one_cell() -> None:
    results = some_results()
    results.tables[0].rows.append(Row("a|b", {}))
    assert r"| a\|b |  |  |" in markdown(results)


def test_a_page_gets_the_results_between_its_markers_again_and_again(tmp_path: Path) -> None:
    page, results = tmp_path / "page.md", some_results()
    page.write_text(f"Before.\n\n{BEGIN}\nlast year\n{END}\n\nAfter.\n", encoding="utf-8")
    write_into(page, results)
    once = page.read_text(encoding="utf-8")
    assert "last year" not in once
    assert once.startswith("Before.\n")
    assert once.endswith("After.\n")
    write_into(page, results)
    assert page.read_text(encoding="utf-8") == once


def test_rendering_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, file = tmp_path / "page.md", tmp_path / "results.json"
    assert main(["--render", str(file)]) == 1
    assert "results.json" in capsys.readouterr().err
    file.write_text(some_results().to_json(), encoding="utf-8")
    page.write_text("No markers here.", encoding="utf-8")
    assert main(["--render", str(file), "--into", str(page)]) == 1
    assert BEGIN in capsys.readouterr().err
    assert main(["--render", str(file)]) == 0
    assert capsys.readouterr().out == markdown(some_results())


def test_the_page_of_the_documentation_shows_the_committed_results_and_nothing_else() -> None:
    page = (ROOT / "docs" / "benchmark.md").read_text(encoding="utf-8")
    shown = page.partition(BEGIN)[2].partition(END)[0].strip()
    rendered = markdown(Results.read(ROOT / "docs" / "data" / "benchmark.json")).strip()
    assert shown == rendered, (
        "run: python -m leasehold.bench --render docs/data/benchmark.json --into docs/benchmark.md"
    )


def test_an_unknown_section_is_refused_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--only", "uncontended,nonsense"])
    assert ended.value.code == 2
    assert "'nonsense'; there are uncontended, contended" in capsys.readouterr().err


def test_help_shows_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert "leasehold bench --quick" in said
    assert "leasehold bench --on redis://" in said


def test_an_unknown_engine_is_refused_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--engines", "sqlite,nonsense"])
    assert ended.value.code == 2
    assert "'nonsense'; there are sqlite, redis, redlock" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main(["--engines", "all", "--on", "redis://127.0.0.1"])
    assert "not allowed with argument" in capsys.readouterr().err
