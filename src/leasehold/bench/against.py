"""Held against earlier results: what got worse by more than either run spread.

Only ratios and counts are compared, never times: those belong to a machine and a moment.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from leasehold.bench.results import Figure, Results, Row

Better = Literal["at most", "at least"]
RATIOS = ("floors", "times")
WITHOUT_SPREAD = 0.1
"""By how much a figure may differ that was measured once."""
OURS = ("Leasehold", "import leasehold", "the same write, fenced")
"""How the rows begin that are ours: what a peer does is not for us to answer for."""


@dataclass(frozen=True, slots=True)
class Change:
    """One figure that is worse, or better, than it was."""

    what: str
    before: Figure
    now: Figure

    def __str__(self) -> str:
        """As people read it."""
        unit = f" {self.now.unit}" if self.now.unit not in ("index", "") else ""
        return f"{self.what}: {self.before.text} before, {self.now.text} now{unit}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """What two runs have in common."""

    compared: int
    worse: list[Change]
    better: list[Change]
    missing: list[str]
    """What the earlier run had measured in the same tables, and this one has not."""

    @property
    def text(self) -> str:
        """As people read it."""
        told = f"{len(self.worse)} worse, {len(self.better)} better, the others within their spread"
        lines = [f"{self.compared} ratios and counts compared with the earlier results: {told}."]
        lines += [f"worse:  {change}" for change in self.worse]
        lines += [f"better: {change}" for change in self.better]
        lines += [f"not measured any more: {what}" for what in self.missing]
        return "\n".join(lines) + "\n"


def compared(before: Results, now: Results) -> Comparison:
    """Hold one run against an earlier one; what only one of them has measured is left out."""
    earlier, later = dict(_figures(before)), dict(_figures(now))
    both = [what for what in earlier if what in later]
    worse, better = [], []
    for what in both:
        (best, old), (_, new) = earlier[what], later[what]
        change = Change(what, old, new)
        if is_worse(old, new, best):
            worse.append(change)
        elif is_worse(new, old, best):
            better.append(change)
    measured = {table.title for table in now.tables}
    gone = [what for what in earlier if what not in later and any(what.startswith(f"{title}: ") for title in measured)]
    return Comparison(len(both), worse, better, gone)


def is_worse(old: Figure, new: Figure, best: Better) -> bool:
    """Whether the middle of each lies outside of the other's spread, on the wrong side."""
    old_low, old_high = _range(old)
    new_low, new_high = _range(new)
    if best == "at most":
        return new.value > old_high and old.value < new_low
    return new.value < old_low and old.value > new_high


def _range(figure: Figure) -> tuple[float, float]:
    if figure.low is not None and figure.high is not None:
        return figure.low, figure.high
    off = abs(figure.value) * WITHOUT_SPREAD
    return figure.value - off, figure.value + off


def _figures(results: Results) -> Iterator[tuple[str, tuple[Better, Figure]]]:
    for table in results.tables:
        for row in filter(_is_ours, table.rows):
            for column, figure in row.figures.items():
                if figure.unit in RATIOS and figure.low is not None:
                    yield f"{table.title}: {row.who}, {column.partition(' (')[0]}", ("at most", figure)
    for aim in results.aims:
        # A ratio that a table has is not told twice.
        if aim.seen.unit != "floors":
            yield aim.what, (aim.relation, aim.seen)


def _is_ours(row: Row) -> bool:
    return row.who.startswith(OURS)
