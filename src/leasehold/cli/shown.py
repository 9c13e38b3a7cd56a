"""How the state of names is shown: as data for scripts, as tables for people."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

from leasehold.cli.output import duration, visible

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

    from leasehold import HolderStatus, NameStatus

_Row = tuple[str, str, str, str, str, str]
_WIDE = 10_000
"""Where no person looks, lines are not broken."""


def console(*, err: bool = False) -> Console:
    """Where tables go. In a pipe lines are as long as they need to be."""
    from rich.console import Console

    out = Console(stderr=err, highlight=False, markup=False, emoji=False)
    if not out.is_terminal and "COLUMNS" not in os.environ:
        out.width = _WIDE
    return out


def write_tables(out: Console, tables: Iterable[RenderableType]) -> None:
    """Tables for people. In a pipe they are neither padded nor coloured."""
    if out.is_terminal:
        out.print(*tables)
        return
    with out.capture() as captured:
        out.print(*tables)
    for line in captured.get().splitlines():
        sys.stdout.write(line.rstrip() + "\n")


def overview(statuses: Iterable[NameStatus], *, width: int) -> Table:
    """One line a holder. Where names and holders do not fit, they are cut; numbers are shown whole or not at all."""
    return _table([(row, "") for status in statuses for row in _rows(status)], width)


def one_line_each(styled: Iterable[tuple[NameStatus, str]], *, width: int) -> Table:
    """One line a name, in a style of its own: of several holders the one whose lease ends first."""
    return _table([(_line(status), style) for status, style in styled], width)


def _table(rows: list[tuple[_Row, str]], width: int) -> Table:
    from rich.table import Table
    from rich.text import Text

    widths = _widths([row for row, _ in rows], width)
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for heading, column in widths.items():
        justify: Literal["left", "right"] = "left" if heading in _FLEXIBLE else "right"
        table.add_column(heading, width=column, no_wrap=True, overflow="ellipsis", justify=justify)
    for row, style in rows:
        shown = (cell for heading, cell in zip(_HEADINGS, row, strict=True) if heading in widths)
        table.add_row(*(Text(cell) for cell in shown), style=style)
    return table


_HEADINGS = ("NAME", "HOLDER", "TOKEN", "HELD FOR", "TIME LEFT", "WAITERS")
_FLEXIBLE = ("NAME", "HOLDER")
_LEFT_OUT_FIRST = ("TOKEN", "HELD FOR")
_LEAST_FLEXIBLE = 30
"""Columns of numbers are left out, in this order, where less would be left for names and holders."""
_GAP = 2


def _widths(rows: list[_Row], width: int) -> dict[str, int]:
    """How wide each column is that is shown."""
    from rich.cells import cell_len

    columns = zip(_HEADINGS, *rows, strict=True)
    widths = {column[0]: max(cell_len(cell) for cell in column) for column in columns}

    def left() -> int:
        return width - sum(widths[one] for one in widths if one not in _FLEXIBLE) - _GAP * len(widths)

    for heading in _LEFT_OUT_FIRST:
        if left() < min(_LEAST_FLEXIBLE, widths["NAME"] + widths["HOLDER"]):
            del widths[heading]
    room, name, holder = max(left(), 16), widths["NAME"], widths["HOLDER"]
    if name + holder > room:
        widths["HOLDER"] = holder = min(holder, max(room // 2, room - name))
        widths["NAME"] = min(name, room - holder)
    return widths


def _line(status: NameStatus) -> _Row:
    if len(status.holders) < 2:
        return _rows(status)[0]
    first = min(status.holders, key=lambda holder: holder.expires_in)
    name, about, token, held, left, waiters = _rows(status._replace(holders=(first,)))[0]
    return name, f"{about} +{len(status.holders) - 1} more", token, held, left, waiters


def _rows(status: NameStatus) -> list[_Row]:
    name, waiters = visible(status.name), str(len(status.waiters))
    if not status.holders:
        state = f"closed for {duration(status.closed_for)}" if status.closed_for else "free"
        return [(name, state, str(status.token), "", "", waiters)]
    rows = []
    for holder in status.holders:
        times = duration(holder.held_for), duration(holder.expires_in)
        rows.append((name, _holder(holder), str(holder.token), *times, waiters))
        name = waiters = ""
    return rows


def _holder(holder: HolderStatus) -> str:
    return visible(holder.about) + ("" if holder.mode == "exclusive" else f" ({holder.mode})")


def details(status: NameStatus, *, most_waiters: int = 20) -> Table:
    """All that is known of one name."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row(Text(visible(status.name), style="bold", overflow="fold"), Text(_state(status)))
    for holder in status.holders:
        times = f"for {duration(holder.held_for)}, {duration(holder.expires_in)} left"
        table.add_row(Text("  holder"), Text(f"{_holder(holder)}  token {holder.token}  {times}"))
    for place, waiter in enumerate(status.waiters[:most_waiters], start=1):
        times = f"for {duration(waiter.waited_for)}, place kept for {duration(waiter.patience_left)}"
        mode = "" if waiter.mode == "exclusive" else f" ({waiter.mode})"
        table.add_row(Text(f"  waiter {place}"), Text(f"{visible(waiter.about)}{mode}  {times}"))
    if len(status.waiters) > most_waiters:
        table.add_row(Text(""), Text(f"… and {len(status.waiters) - most_waiters} more waiters"))
    return table


def _state(status: NameStatus) -> str:
    if status.holders:
        return "held"
    if status.closed_for:
        return f"closed for {duration(status.closed_for)} more, after a lease on it was lost"
    return f"free; its latest token was {status.token}" if status.token else "free"
