"""``leasehold jobs``: how once-only jobs are doing: last runs, overruns, missed ticks."""

from __future__ import annotations

import contextlib
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from leasehold.cli import exits
from leasehold.cli.options import client, engine_options
from leasehold.cli.output import duration, say, tick_text, visible, write_json
from leasehold.cli.shown import console, write_tables
from leasehold.core.worlds import run_blocking
from leasehold.errors import quoted

if TYPE_CHECKING:
    from pathlib import Path

    from rich.table import Table

    from leasehold import Leasehold
    from leasehold.patterns.jobs import JobStatus

NOT_WELL = 1


@click.command(
    "jobs",
    short_help="Show how once-only jobs are doing, and what was missed.",
    epilog="""\b
Examples:
  leasehold jobs
  leasehold jobs nightly-export
  leasehold jobs --json | jq '.jobs[] | select(.missed_in_all > 0)'

\b
Exit codes:
  0    all is well
  1    a job is behind by more than its last tick, or has missed ticks that the
       book still lists; or a NAME was never asked for here; or there is no lease
       file where the engine is one
  64   the arguments cannot be right        78  the books cannot be read
""",
)
@click.argument("names", nargs=-1, metavar="[NAME]...")
@engine_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object for scripts.")
def command(*, names: tuple[str, ...], on: str | None, namespace: str, as_json: bool) -> int:
    """Show the jobs that `leasehold run --every` and `--cron` have run: last runs, overruns, ticks that were missed.

    With NAMEs, each run and each report that the book still has.
    """
    from leasehold.patterns.jobs.jobs import books_by_name, status_of
    from leasehold.patterns.jobs.ledger import all_books
    from leasehold.patterns.jobs.shelves import notes_with

    with client(on, namespace) as locks, contextlib.closing(notes_with(locks._family, "leasehold-jobs")) as notes:
        missing_file = _missing_file(locks)
        found = run_blocking(all_books(notes, namespace))
    jobs = [status_of(*one) for one in books_by_name(*found)]
    if missing_file is not None:
        say(f"there is no lease file {quoted(str(missing_file))} yet; check --on and LEASEHOLD_URL")
    unknown = sorted(set(names) - {job.name for job in jobs})
    for name in unknown:
        say(f"no job {name!a} was ever asked for here")
    jobs = [job for job in jobs if not names or job.name in names]
    if as_json:
        write_json({"jobs": [as_data(job) for job in jobs]})
    elif not jobs:
        click.echo("No job was ever asked for here.")
    else:
        write_tables(console(), [_overview(jobs, found[0]), *(_details(job) for job in jobs if names)])
    is_well = not unknown and missing_file is None and not any(job.missed or (job.behind or 0) > 1 for job in jobs)
    return exits.OK if is_well else NOT_WELL


def _missing_file(locks: Leasehold) -> Path | None:
    """The lease file, if the engine is one that is not there: a typing error must not look like jobs that are well."""
    from leasehold.engines.sqlite import SqliteFamily
    from leasehold.wires.sqlite_file import find_place

    family = locks._family
    if not isinstance(family, SqliteFamily):
        return None
    path, _ = find_place(family._file, family._read_mounts)
    return None if path.exists() else path


def as_data(job: JobStatus) -> dict[str, Any]:
    """One job for scripts."""
    return {
        "name": job.name,
        "schedule": job.schedule,
        "settled": job.settled.isoformat() if job.settled else None,
        "behind": job.behind,
        "under_way": asdict(job.under_way) if job.under_way else None,
        "missed_in_all": job.missed_in_all,
        "overruns": sum(run.overran for run in job.runs),
        "runs": [asdict(run) for run in job.runs],
        "missed": [asdict(one) for one in job.missed],
    }


def _overview(jobs: list[JobStatus], now: float) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    for heading in ("JOB", "SCHEDULE", "LAST RUN", "STATE", "TOOK", "BEHIND", "OVERRUNS", "MISSED"):
        table.add_column(heading, no_wrap=True)
    for job in jobs:
        last = job.runs[-1] if job.runs else None
        state = _state(job)
        table.add_row(
            visible(job.name),
            visible(job.schedule),
            f"{duration(now - last.ended)} ago" if last else "",
            Text(state, style="" if state == "done" else "yellow"),
            duration(last.ended - last.began) if last else "",
            "" if job.behind is None else str(job.behind),
            str(sum(run.overran for run in job.runs)),
            Text(str(job.missed_in_all), style="red" if job.missed_in_all else ""),
        )
    return table


def _state(job: JobStatus) -> str:
    if job.under_way is not None and job.under_way.run:
        return f"under way ({visible(job.under_way.by)})" if job.is_alive else "silent"
    return job.runs[-1].state if job.runs else ""


def _details(job: JobStatus) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 3, 0, 0))
    table.add_row("")
    table.add_row(Text(visible(job.name), style="bold"))
    for run in job.runs:
        note = " overran" if run.overran else f" {visible(run.error)}" if run.error else ""
        took = duration(run.ended - run.began)
        table.add_row(f"  {tick_text(run.tick)}", run.state, f"attempt {run.attempt}", took, f"{visible(run.by)}{note}")
    if job.under_way is not None and not job.under_way.run:
        tried = job.under_way
        again = datetime.fromtimestamp(tried.not_before, UTC).isoformat(timespec="seconds")
        table.add_row(f"  {tick_text(tried.tick)}", "waiting", f"attempt {tried.attempt + 1}", "", f"after {again}")
    for one in job.missed:
        until = "" if one.first == one.last else f" to {tick_text(one.last)}"
        table.add_row(
            f"  {tick_text(one.first)}{until}", Text("missed", style="red"), str(one.count), "", visible(one.why)
        )
    return table
