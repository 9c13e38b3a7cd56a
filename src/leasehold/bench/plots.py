"""Pictures of results, as SVG: bars with their spread, on a scale of powers of ten. One picture a section."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Final

from leasehold.bench.results import Figure, Results, Table, number_text

WIDTH, LABELS, RIGHT, LINE, HEAD = 900, 350, 120, 22, 34
STYLE: Final = (
    "text{fill:#333a4a}.head{font-weight:bold}.grid{stroke:#c3c8d4}.peer{fill:#9aa5bd}.ours{fill:#2f7d5b}"
    ".floor{fill:#c9b458}.spread{stroke:#333a4a;stroke-width:1.5}.small{font-size:11px}"
    "@media (prefers-color-scheme: dark){text{fill:#dde1ec}.grid{stroke:#4a5166}.spread{stroke:#dde1ec}}"
)


@dataclass(frozen=True, slots=True)
class Bar:
    """One figure, with a name."""

    label: str
    figure: Figure

    @property
    def kind(self) -> str:
        """Whose it is."""
        if self.label.startswith("floor"):
            return "floor"
        return "ours" if self.label.startswith("Leasehold") else "peer"


@dataclass(frozen=True, slots=True)
class Group:
    """Bars that were measured in turns, in one run."""

    title: str
    bars: list[Bar] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Picture:
    """What a section shows."""

    file: str
    section: str
    column: str
    title: str


PICTURES: Final = (
    Picture(
        "bench-uncontended.svg",
        "uncontended",
        "floors (p10-p90)",
        "Take + release of a free name, in floors of its engine (less is better)",
    ),
    Picture(
        "bench-contended.svg",
        "contended",
        "changes/s (p10-p90)",
        "Several processes want one name: holder changes a second (more is better)",
    ),
    Picture(
        "bench-idle.svg", "idle", "CPU ms/s", "Many idle waiters: milliseconds of processor a second (less is better)"
    ),
    Picture(
        "bench-patterns.svg",
        "patterns",
        "to the library (p10-p90)",
        "Patterns, to the library that people use today (less is better)",
    ),
)


def pictures(results: Results) -> Iterator[tuple[str, str]]:
    """Every picture that these results have figures for: the name of its file, and its text."""
    for picture in PICTURES:
        groups = [_group(table, picture) for table in results.tables if table.section == picture.section]
        groups = [group for group in groups if group.bars]
        if groups:
            yield picture.file, drawn(picture.title, groups)


def write_all(folder: Path, results: Results) -> list[str]:
    """Write every picture into a folder; returns the names of the files."""
    written = []
    for file, text in pictures(results):
        (folder / file).write_text(text, encoding="utf-8")
        written.append(file)
    return written


def _group(table: Table, picture: Picture) -> Group:
    # "redis" of "Take + release, uncontended, on redis", and "redis, 8 processes" of "8 processes, one name, on redis"
    what, on, engine = table.title.rpartition(" on ")
    title = engine if on else table.title
    if on and what[0].isdigit():
        title += f", {what.partition(',')[0]}"
    # A lock object for each use differs little from one that is used again; the tables have both.
    rows = [row for row in table.rows if picture.column in row.figures and "for each use" not in row.who]
    return Group(title, [Bar(row.who, row.figures[picture.column]) for row in rows])


def drawn(title: str, groups: list[Group]) -> str:
    """A picture of groups of bars, below each other, on one scale."""
    scale = _Scale([bar.figure for group in groups for bar in group.bars])
    lines, y = [], 50
    for group in groups:
        y += HEAD
        lines.append(f'<text class="head" x="8" y="{y - 8}">{escape(group.title)}</text>')
        for bar in group.bars:
            lines += _bar(bar, y, scale)
            y += LINE
    height = y + 20
    grid = list(_grid(scale, height))
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{escape(title)}" font-family="system-ui, sans-serif" font-size="13">'
    )
    caption = f'<text class="head" x="8" y="22">{escape(title)}</text>'
    return "\n".join([head, f"<style>{STYLE}</style>", caption, *grid, *lines, "</svg>"]) + "\n"


class _Scale:
    """From a figure to a place from left to right."""

    def __init__(self, figures: Iterable[Figure]) -> None:
        values = [
            value for one in figures for value in (one.value, one.low, one.high) if value is not None and value > 0
        ]
        least, most = min(values, default=1.0), max(values, default=1.0)
        self.low = math.floor(math.log10(least))
        self.high = max(math.ceil(math.log10(most)), self.low + 1)

    def x(self, value: float) -> float:
        """Where a value stands; what is nothing, or less than everything else, stands at the left end."""
        power = self.low if value <= 0 else min(max(math.log10(value), self.low), self.high)
        return LABELS + (power - self.low) / (self.high - self.low) * (WIDTH - LABELS - RIGHT)


def _grid(scale: _Scale, height: int) -> Iterator[str]:
    for power in range(scale.low, scale.high + 1):
        x, value = scale.x(10.0**power), 10.0**power
        yield f'<line class="grid" x1="{x:.1f}" y1="52" x2="{x:.1f}" y2="{height - 14}"/>'
        yield f'<text class="small" x="{x:.1f}" y="46" text-anchor="middle">{value:,g}</text>'


def _bar(bar: Bar, y: int, scale: _Scale) -> Iterator[str]:
    figure, left = bar.figure, scale.x(0.0)
    right = scale.x(figure.value)
    yield f'<text x="{LABELS - 8}" y="{y + 13}" text-anchor="end">{escape(bar.label)}</text>'
    width, height, end = max(right - left, 1.5), LINE - 7, right
    yield f'<rect class="{bar.kind}" x="{left:.1f}" y="{y + 2}" width="{width:.1f}" height="{height}"/>'
    if figure.low is not None and figure.high is not None and figure.low < figure.high:
        low, end, middle = scale.x(figure.low), scale.x(figure.high), y + 2 + height / 2
        yield f'<line class="spread" x1="{low:.1f}" y1="{middle:g}" x2="{end:.1f}" y2="{middle:g}"/>'
    shown = number_text(figure.value, figure.unit)
    yield f'<text class="small" x="{max(end, right) + 6:.1f}" y="{y + 13}">{shown}</text>'
