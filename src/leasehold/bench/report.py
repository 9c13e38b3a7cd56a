"""Results for people: a table in the terminal, and the same tables for the documentation."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from leasehold.bench.results import Aim, NotAResult, Results, Table

if TYPE_CHECKING:
    from rich.console import Console

BEGIN, END = "<!-- benchmark: begin -->", "<!-- benchmark: end -->"


def show(results: Results, console: Console) -> None:
    """Print everything that was found."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table as RichTable

    for table in results.tables:
        shown = RichTable(title=escape(table.title), title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
        shown.add_column("")
        for column in table.columns:
            shown.add_column(escape(column), justify="right")
        for cells in _rows(table):
            shown.add_row(*(escape(cell) for cell in cells), style="cyan" if cells[0].startswith("Leasehold") else "")
        console.print(shown)
        for note in _notes(table):
            console.print(f"  {escape(note)}", style="dim")
        console.print()
    if results.aims:
        aims = RichTable(title="Aims", title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
        for column in ("aim", "bound", "seen", ""):
            aims.add_column(column)
        for aim in results.aims:
            verdict = "[green]met[/]" if aim.met else "[bold red]missed[/]"
            aims.add_row(escape(aim.what), aim.bound_text, escape(_seen(aim)), verdict)
        console.print(aims)
    for reason in results.skipped:
        console.print(f"Not measured: {escape(reason)}", style="yellow")
    for error in results.failed:
        console.print(f"Failed: {escape(error)}", style="bold red")


def markdown(results: Results) -> str:
    """The results as Markdown tables."""
    return "\n".join(_markdown_lines(results)) + "\n"


def write_into(page: Path, results: Results) -> None:
    """Replace what stands between the page's two markers by these results."""
    text = page.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _old, end, after = rest.partition(END)
    if not begin or not end:
        raise NotAResult(f"{page.name} has no place for results: it needs the lines {BEGIN} and {END}")
    page.write_text(f"{before}{BEGIN}\n\n{markdown(results)}\n{END}{after}", encoding="utf-8")


def _markdown_lines(results: Results) -> Iterator[str]:
    yield f"Measured on {_listed(results.machine)}; {_listed(results.versions)}."
    if results.aims:
        yield from ("", "### Aims", "")
        yield from _markdown_table(
            ["", "aim", "seen", ""],
            [[aim.what, aim.bound_text, _seen(aim), "met" if aim.met else "**missed**"] for aim in results.aims],
        )
    for table in results.tables:
        yield from ("", f"### {table.title}", "")
        yield from _markdown_table(["", *table.columns], list(_rows(table)))
        for note in _notes(table):
            yield from ("", note)
    for reason in results.skipped:
        yield from ("", f"Not measured: {reason}")
    for error in results.failed:
        yield from ("", f"Failed: {error.splitlines()[0]}")


def _markdown_table(head: list[str], rows: list[list[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'|'.join(['---', *['---:'] * (len(head) - 1)])}|"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"


def _rows(table: Table) -> Iterator[list[str]]:
    for row in table.rows:
        yield [row.who, *(row.figures[column].text if column in row.figures else "" for column in table.columns)]


def _notes(table: Table) -> list[str]:
    """What is to be said of the rows, and then of the table."""
    return [f"{row.who}: {' '.join(row.remark.split())}." for row in table.rows if row.remark] + table.notes


def _seen(aim: Aim) -> str:
    unit = "" if aim.seen.unit in ("index", "") else f" {aim.seen.unit}"
    return f"{aim.seen.text}{unit}"


def _listed(entries: dict[str, str]) -> str:
    return ", ".join(f"{key} {value}" if key else value for key, value in entries.items())
