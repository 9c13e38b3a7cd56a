"""How a chaos run is shown: while it goes on, and when it is over."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leasehold.chaos.faults import FAULTS
from leasehold.chaos.faults.clocks import ClockFault
from leasehold.chaos.faults.engine import NOT_OURS, DiskFault
from leasehold.chaos.faults.workers import NO_PROXY
from leasehold.chaos.peers import PEERS
from leasehold.chaos.running import Outcome, Plan, Run, by_reason
from leasehold.chaos.servers import ENGINES, NoServer, find
from leasehold.chaos.site import Site
from leasehold.chaos.workloads import WORKLOADS
from leasehold.cli.output import duration, say, visible, write_json
from leasehold.cli.shown import console, write_tables

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from leasehold.chaos.checkers import Verdict

MOST_VIOLATIONS = 5
"""Of each property; all are in the report."""
_COLOURS = {"held": "green", "violated": "bold red", "unknown": "yellow", "not asked": "dim"}


# While it runs


def run_and_show(run: Run, plan: Plan, *, as_json: bool) -> Outcome:
    """Do the run, and tell on stderr how far it is."""
    if not as_json:
        say(f"seed {plan.seed}; to repeat it: {plan.command}")
    with _progress(run, plan, quiet=as_json):
        return run.go()


@contextlib.contextmanager
def _progress(run: Run, plan: Plan, *, quiet: bool) -> Iterator[None]:
    out = console(err=True)
    if quiet:
        yield
    elif not out.is_terminal or out.is_dumb_terminal:
        run.tell = say
        yield
    else:
        from rich.live import Live

        run.tell = lambda news: out.print(news, style="dim")
        # What it redraws is the last line only, so that what happened stays on the screen above it.
        with Live(get_renderable=lambda: _line(run, plan), console=out, refresh_per_second=5, transient=True):
            yield


def _line(run: Run, plan: Plan) -> Text:
    from rich.text import Text

    grants = run.grants
    parts = [f"{time.monotonic() - run.began:5.1f}s", run.phase]
    if run.phase == "breaking things":
        parts[1] += f" for {duration(plan.seconds)}"
    if grants:
        parts.append(f"{sum(grants.values())} grants to {len(grants)} workers")
    parts.append(f"broken now: {', '.join(run.now_broken)}" if run.now_broken else "nothing broken now")
    return Text("  ".join(parts), style="bold" if run.now_broken else "")


# When it is over


def write_outcome(outcome: Outcome, report: Path | None) -> None:
    """The verdicts for people."""
    out = console()
    out.soft_wrap = True  # commands and paths are there to be copied
    write_tables(out, [_verdicts(outcome.verdicts)])
    for verdict in outcome.verdicts:
        for violation in verdict.violations[:MOST_VIOLATIONS]:
            out.print(f"  {verdict.name} at {violation.at:.3f}s: {visible(violation.text)}", style="red")
        more = len(verdict.violations) - MOST_VIOLATIONS
        if more > 0:
            out.print(f"  … and {more} more of {verdict.name}")
    out.print()
    struck = {name: count for name, count in outcome.struck.items() if count}
    out.print("struck: " + (", ".join(f"{name} {count}x" for name, count in struck.items()) or "nothing"))
    if idle := [name for name, count in outcome.struck.items() if not count]:
        out.print(f"had no turn in this time: {', '.join(idle)}")
    for reason, names in by_reason(outcome.info.left_out).items():
        out.print(f"left out: {', '.join(names)}: {reason}")
    if report is not None:
        out.print(f"report: {report}")
    out.print(f"again: {outcome.info.command}")
    out.print(_sentence(outcome), style="bold red" if outcome.violated else "bold green")


def _sentence(outcome: Outcome) -> str:
    if outcome.violated:
        names = [verdict.name for verdict in outcome.verdicts if verdict.status == "violated"]
        return f"Violated: {', '.join(names)}."
    return f"No violation was seen in {len(outcome.history)} events."


def _verdicts(verdicts: Sequence[Verdict]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in ("property", "verdict", "judged", "seen without a fence, or after a stop"):
        table.add_column(heading)
    for verdict in verdicts:
        if verdict.status != "not asked":
            table.add_row(
                verdict.name,
                Text(verdict.status, style=_COLOURS[verdict.status]),
                f"{verdict.judged} {verdict.of}" + (f" ({verdict.why})" if verdict.why else ""),
                str(len(verdict.shown) or ""),
            )
    return table


def as_data(outcome: Outcome, report: Path | None) -> dict[str, Any]:
    """The verdicts for scripts."""
    info = outcome.info
    return {
        "violated": outcome.violated,
        "engine": info.engine,
        "address": info.address,
        "subject": info.subject,
        "workload": info.workload,
        "seed": info.seed,
        "events": len(outcome.history),
        "struck": outcome.struck,
        "left_out": info.left_out,
        "verdicts": [
            {
                "name": verdict.name,
                "status": verdict.status,
                "judged": verdict.judged,
                "of": verdict.of,
                "violations": [violation.text for violation in verdict.violations],
                "shown": len(verdict.shown),
                "figures": verdict.figures,
            }
            for verdict in outcome.verdicts
        ],
        "report": None if report is None else str(report),
        "again": info.command,
    }


# What there is


def names_of(kind: str) -> list[str]:
    """The names of one kind, for completion."""
    return {
        "workloads": list(WORKLOADS),
        "faults": ["all", "none", "pairs", "random", *FAULTS],
        "subjects": ["leasehold", *PEERS],
        "servers": list(ENGINES),
    }[kind]


def write_list(*, as_json: bool) -> None:
    """The workloads, the faults with what they need, the subjects, and the servers that can be started."""
    listed = {
        "workloads": [(name, workload.summary, "") for name, workload in WORKLOADS.items()],
        "faults": [(name, fault.summary, _needs(name)) for name, fault in FAULTS.items()],
        "subjects": [
            ("leasehold", "Leasehold itself", ""),
            *((name, peer.label, _peer_needs(name)) for name, peer in PEERS.items()),
        ],
        "servers": [(name, f"--start {name}", _server_needs(name)) for name in ENGINES],
    }
    if as_json:
        keys = ("name", "summary", "needs")
        write_json({kind: [dict(zip(keys, row, strict=True)) for row in rows] for kind, rows in listed.items()})
        return
    write_tables(console(), [_listing(kind, rows) for kind, rows in listed.items()])


def _needs(fault: str) -> str:
    """What a fault needs besides worker processes, in a few words; where it is left out, the run says more."""
    missing = FAULTS[fault]().missing(Site("sqlite://", 1.0, []))
    if issubclass(FAULTS[fault], ClockFault):
        return "Linux and a C compiler" + ("; --start" if "engine" in fault else "")
    if issubclass(FAULTS[fault], DiskFault):
        return "Linux and a C compiler; --start, or a file of the run's own"
    short = {None: "", NO_PROXY: "an engine reached over TCP", NOT_OURS: "--start"}.get(missing, str(missing))
    members = {"leader-kill": " with --members 3", "failover": " redis or valkey with --members 2"}
    return short + members.get(fault, "")


def _server_needs(engine: str) -> str:
    try:
        find(engine)
    except NoServer as missing:
        return str(missing)
    return ""


def _peer_needs(name: str) -> str:
    peer = PEERS[name]
    runs_on = f"{' or '.join(peer.engines)}"
    return runs_on if peer.installed() else f"{runs_on}; pip install {peer.distribution}"


def _listing(kind: str, rows: Sequence[tuple[str, str, str]]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column(kind, no_wrap=True)
    table.add_column("")
    table.add_column("needs" if kind in ("faults", "subjects") else "")
    for row in rows:
        table.add_row(*row)
    table.add_row("", "", "")
    return table
