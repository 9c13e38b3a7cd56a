"""Pictures of results: they show what the file says, and those of the documentation are of its file."""

from __future__ import annotations

import dataclasses
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from leasehold.bench import main
from leasehold.bench.plots import PICTURES, Bar, Group, drawn, pictures
from leasehold.bench.results import Figure, Results, Row, Table

ROOT = Path(__file__).parents[2]
SVG = "{http://www.w3.org/2000/svg}"


def widths(text: str) -> list[float]:
    return [float(bar.get("width", "")) for bar in ET.fromstring(text).iter(f"{SVG}rect")]


def group(*values: float) -> Group:
    return Group("redis", [Bar(f"number {number}", Figure(value, "floors")) for number, value in enumerate(values)])


def test_a_bar_is_as_long_as_its_figure_is_large() -> None:
    text = drawn("A title", [group(1.0, 10.0, 100.0)])
    first, second, third = widths(text)
    assert first < second < third
    assert third - second == pytest.approx(second - first, abs=2), "each power of ten is as wide as another"
    assert next(element.text for element in ET.fromstring(text).iter(f"{SVG}text")) == "A title"
    assert "number 1" in text


def test_a_figure_of_nothing_and_a_foreign_name_can_be_drawn() -> None:
    text = drawn(
        "<&>", [Group('"quoted" <b>', [Bar("<script>", Figure(0.0, "per s")), Bar("b", Figure(5.0, "per s"))])]
    )
    least, most = widths(text)
    assert least < most
    assert "<script>" not in text


def test_the_spread_is_a_line_from_its_low_to_its_high_end() -> None:
    text = drawn("", [Group("", [Bar("Leasehold", Figure(2.0, "floors", 1.0, 10.0))])])
    [line] = [one for one in ET.fromstring(text).iter(f"{SVG}line") if one.get("class") == "spread"]
    [bar] = widths(text)
    assert float(line.get("x1", "")) < float(line.get("x2", ""))
    assert float(line.get("x2", "")) - float(line.get("x1", "")) > bar


def test_every_picture_finds_its_figures() -> None:
    for picture in PICTURES:
        table = Table(picture.section, "A table, on redis", [picture.column], [])
        assert not list(pictures(Results("tiny", {}, {}, [table]))), "there is nothing to draw"
        table.rows.append(Row("Leasehold", {picture.column: Figure(2.0, "floors", 1.0, 3.0)}))
        [(file, text)] = pictures(Results("tiny", {}, {}, [table]))
        assert file == picture.file
        assert ">redis<" in text
        several = Results("tiny", {}, {}, [dataclasses.replace(table, title="8 processes, one name, on redis")])
        assert ">redis, 8 processes<" in next(pictures(several))[1]


def test_the_pictures_of_the_documentation_are_of_its_results() -> None:
    shown = dict(pictures(Results.read(ROOT / "docs" / "data" / "benchmark.json")))
    pages = "".join(page.read_text() for page in (ROOT / "docs").glob("bench*.md"))
    assert set(re.findall(r"img/(bench-[a-z]+\.svg)", pages)) == shown.keys()
    for file, text in shown.items():
        hint = "run: leasehold bench --render docs/data/benchmark.json --plots docs/img"
        assert (ROOT / "docs" / "img" / file).read_text() == text, hint


def test_the_command_draws_them(tmp_path: Path) -> None:
    file = ROOT / "docs" / "data" / "benchmark.json"
    assert main(["--render", str(file), "--plots", str(tmp_path)]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(dict(pictures(Results.read(file))))
