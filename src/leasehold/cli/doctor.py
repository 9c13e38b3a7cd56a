"""``leasehold doctor``: looks at an engine, and says what this deployment really guarantees."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from leasehold.cli import exits
from leasehold.cli.options import checked_url, engine_options, read_duration
from leasehold.cli.output import visible, write_json
from leasehold.cli.shown import console, write_tables

if TYPE_CHECKING:
    from rich.table import Table

    from leasehold.doctor import Diagnosis

WARNINGS, PROBLEMS = 1, 2
_STYLES = {"ok": "green", "note": "cyan", "warning": "yellow", "problem": "bold red"}


@click.command(
    "doctor",
    short_help="Check an engine, and say what this deployment really guarantees.",
    epilog="""\b
Examples:
  leasehold doctor
  leasehold doctor --on redis://db1:6379/0
  leasehold doctor --json | jq -r '.findings[] | select(.level == "problem") | .fix'

\b
Exit codes:
  0    nothing to complain of (notes at most)
  1    warnings: it works, and guarantees less than it could
  2    problems: it does not work, or breaks what leases promise
  78   the engine cannot be reached
""",
)
@engine_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object for scripts.")
@click.option(
    "--within", callback=read_duration, default="5", show_default=True, metavar="SECONDS", help="For each request."
)
def command(*, on: str | None, namespace: str, as_json: bool, within: float) -> int:
    """Check the engine: reachable, version, persistence, topology, clock, eviction, poolers, permissions.

    Only reads settings, and takes and gives back one lease of its own.
    """
    from leasehold.doctor import examine

    diagnosis = examine(checked_url(on), namespace=namespace, within=within)
    if as_json:
        write_json(as_data(diagnosis))
    else:
        _show(diagnosis)
    if not diagnosis.reachable:
        return exits.UNREACHABLE
    return {"problem": PROBLEMS, "warning": WARNINGS}.get(diagnosis.worst, exits.OK)


def as_data(diagnosis: Diagnosis) -> dict[str, Any]:
    """A diagnosis for scripts."""
    return {
        "engine": diagnosis.engine,
        "address": diagnosis.address,
        "version": diagnosis.version,
        "reachable": diagnosis.reachable,
        "worst": diagnosis.worst,
        "fit_for": diagnosis.fit_for,
        "not_guaranteed": diagnosis.not_guaranteed,
        "findings": [finding._asdict() for finding in diagnosis.findings],
    }


def _show(diagnosis: Diagnosis) -> None:
    version = f" ({diagnosis.version})" if diagnosis.version else ""
    click.echo(visible(f"{diagnosis.engine} at {diagnosis.address}{version}"))
    click.echo()
    write_tables(console(), [_table(diagnosis), _verdict(diagnosis)])


def _table(diagnosis: Diagnosis) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(max_width=90)
    for check, level, seen, fix in diagnosis.findings:
        told = Text(visible(seen))
        if fix:
            told.append(f"\n→ {visible(fix)}", style="bold" if level in ("warning", "problem") else "")
        table.add_row(Text(level, style=_STYLES[level]), Text(check), told)
    table.add_row()
    return table


def _verdict(diagnosis: Diagnosis) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(max_width=90)
    table.add_row(Text("Fit for", style="bold"), Text(visible(diagnosis.fit_for)))
    if diagnosis.not_guaranteed:
        table.add_row(Text("Not guaranteed", style="bold"), Text(visible(diagnosis.not_guaranteed)))
    return table
