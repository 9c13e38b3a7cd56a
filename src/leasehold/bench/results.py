"""What a run found, as data: tables of figures, and the aims that they are held against."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self, get_args

from leasehold.bench.figures import Spread

FORMAT = 1
LOAD = "load before"
"""How busy the machine was, among what is told of it."""
BY_ROW = ("many",)
"""Sections in which each row of a table is an engine, measured by itself."""

Unit = Literal["floors", "times", "us", "ms", "s", "per s", "bytes", "%", "index", ""]


class NotAResult(ValueError):
    """A file that does not hold results of the benchmark."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number, with its spread where it has one."""

    value: float
    unit: Unit
    low: float | None = None
    high: float | None = None

    @classmethod
    def of(cls, values: Spread, unit: Unit) -> Self:
        """A figure with its spread."""
        return cls(values.median, unit, values.low, values.high)

    @property
    def text(self) -> str:
        """The figure as people read it, without its unit."""
        if self.low is None or self.high is None:
            return number_text(self.value, self.unit)
        return (
            f"{number_text(self.value, self.unit)} "
            f"({number_text(self.low, self.unit)} to {number_text(self.high, self.unit)})"
        )


def number_text(value: float, unit: Unit) -> str:
    """As many digits as mean something: three, and two places for an index of fairness."""
    if unit == "index":
        return f"{value:.3f}"
    if value == int(value) and abs(value) < 1000:
        return f"{value:.0f}"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"


@dataclass(frozen=True, slots=True)
class Row:
    """One contestant's figures; a column it has no figure for stays empty."""

    who: str
    figures: dict[str, Figure]
    remark: str = ""
    """What the figures are of, where that is less than was to be measured; and why."""


@dataclass(frozen=True, slots=True)
class Table:
    """The figures of all contestants in one setting."""

    section: str
    title: str
    columns: list[str]
    rows: list[Row]
    notes: list[str] = field(default_factory=list)

    def with_rows_of(self, later: Table) -> Table:
        """The same table with rows of a later run, which take the place of those with the same name."""
        rows = {row.who: row for row in self.rows} | {row.who: row for row in later.rows}
        columns = list(dict.fromkeys(self.columns + later.columns))
        return dataclasses.replace(later, columns=columns, rows=list(rows.values()))


def _range_of(*loads: str) -> str:
    """The least and the most of some figures, each of which may be such a range itself."""
    values = sorted((float(part), part) for load in loads for part in load.split(" to ") if part)
    if not values:
        return ""
    (_, least), (_, most) = values[0], values[-1]
    return least if least == most else f"{least} to {most}"


def _order_of_sections(table: Table) -> int:
    from leasehold.bench import SECTIONS

    return list(SECTIONS).index(table.section) if table.section in SECTIONS else len(SECTIONS)


@dataclass(frozen=True, slots=True)
class Aim:
    """What Leasehold set out to reach, and whether it did."""

    what: str
    relation: Literal["at most", "at least"]
    bound: float
    seen: Figure

    @property
    def met(self) -> bool:
        """Whether the figure keeps the bound."""
        return self.seen.value <= self.bound if self.relation == "at most" else self.seen.value >= self.bound

    @property
    def bound_text(self) -> str:
        """The bound as people read it."""
        return f"{'≤' if self.relation == 'at most' else '≥'} {number_text(self.bound, self.seen.unit)}"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one section found."""

    tables: list[Table]
    aims: list[Aim]
    failed: list[str] = field(default_factory=list)
    """Parts of it that ended with an error."""


@dataclass(slots=True)
class Results:
    """Everything that one run found, and where it ran."""

    effort: str
    machine: dict[str, str]
    versions: dict[str, str]
    tables: list[Table] = field(default_factory=list)
    aims: list[Aim] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    """What could not be measured here, and why."""
    failed: list[str] = field(default_factory=list)
    """Sections, or parts of them, that ended with an error."""

    def add(self, finding: Finding) -> None:
        """Add what a section found; a table of a run with less effort says so, wherever it is shown."""
        for table in finding.tables if self.effort != "full" else ():
            table.notes.append(f"Of a {self.effort} run, with fewer rounds: less certain.")
        self.tables += finding.tables
        self.aims += finding.aims
        self.failed += finding.failed

    def followed_by(self, later: Results) -> Results:
        """These results and those of a later run, of which a table takes the place of one with the same title.

        A table is always of one run, in which its contestants took turns. Only where each row is an engine for itself
        do rows of several runs make one table.
        """
        tables = {table.title: table for table in self.tables}
        for table in later.tables:
            earlier = tables.get(table.title)
            tables[table.title] = earlier.with_rows_of(table) if earlier and table.section in BY_ROW else table
        efforts = dict.fromkeys([*self.effort.split(", "), *later.effort.split(", ")])
        return Results(
            ", ".join(efforts),
            later.machine | {LOAD: _range_of(self.machine.get(LOAD, ""), later.machine.get(LOAD, ""))},
            self.versions | later.versions,
            sorted(tables.values(), key=_order_of_sections),
            list(({aim.what: aim for aim in self.aims} | {aim.what: aim for aim in later.aims}).values()),
            list(dict.fromkeys(self.skipped + later.skipped)),
            list(dict.fromkeys(self.failed + later.failed)),
        )

    def to_json(self) -> str:
        """The results as a file; `from_json` reads it back."""
        content = {"format": FORMAT, **dataclasses.asdict(self)}
        for aim, entry in zip(self.aims, content["aims"], strict=True):
            entry["met"] = aim.met
        return json.dumps(content, indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` wrote, or raise `NotAResult` that says what is wrong with it."""
        try:
            content = json.loads(text)
            if content["format"] != FORMAT:
                raise NotAResult(f"results of format {content['format']!r}, but format {FORMAT} is read here")
            return cls(
                effort=str(content["effort"]),
                machine=_texts(content["machine"]),
                versions=_texts(content["versions"]),
                tables=[_table(entry) for entry in content["tables"]],
                aims=[_aim(entry) for entry in content["aims"]],
                skipped=[str(entry) for entry in content["skipped"]],
                failed=[str(entry) for entry in content["failed"]],
            )
        except NotAResult:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise NotAResult(f"not a file of results: {type(error).__name__}: {error}") from None

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file of results."""
        return cls.from_json(path.read_text(encoding="utf-8"))


def _texts(entries: dict[str, Any]) -> dict[str, str]:
    return {str(key): str(value) for key, value in entries.items()}


def _figure(entry: dict[str, Any]) -> Figure:
    unit = entry["unit"]
    if unit not in get_args(Unit):
        raise NotAResult(f"{unit!r} is no unit of a figure")
    low, high = entry["low"], entry["high"]
    return Figure(
        float(entry["value"]),
        unit,
        None if low is None else float(low),
        None if high is None else float(high),
    )


def _table(entry: dict[str, Any]) -> Table:
    rows = [
        Row(
            str(row["who"]),
            {str(column): _figure(figure) for column, figure in row["figures"].items()},
            str(row.get("remark", "")),  # files of earlier versions have none
        )
        for row in entry["rows"]
    ]
    columns = [str(column) for column in entry["columns"]]
    for row in rows:
        if not row.figures.keys() <= set(columns):
            raise NotAResult(f"the row {row.who!r} of {entry['title']!r} has a figure without a column")
    return Table(str(entry["section"]), str(entry["title"]), columns, rows, [str(note) for note in entry["notes"]])


def _aim(entry: dict[str, Any]) -> Aim:
    relation = entry["relation"]
    if relation not in ("at most", "at least"):
        raise NotAResult(f"{relation!r} is no relation of an aim")
    return Aim(str(entry["what"]), relation, float(entry["bound"]), _figure(entry["seen"]))
