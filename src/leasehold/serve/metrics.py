r"""Gauges of what the engine tells, in the text format of Prometheus.

>>> line("leasehold_engine_waiters", {"group": 'a"b\\c'}, 3)
'leasehold_engine_waiters{group="a\\"b\\\\c"} 3'
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from leasehold.roster import Row
from leasehold.serve.books import by_group
from leasehold.serve.watch import Watch
from leasehold.telemetry.groups import Groups

KIND: Final = "text/plain; version=0.0.4; charset=utf-8"


def exposition(watch: Watch, groups: Groups) -> str:
    """All gauges. Names are counted in groups, of which there are only so many."""
    roster, engine = watch.roster, {"engine": watch.locks.facts.engine}
    totals = roster.totals()
    sums: dict[str, list[float]] = {}
    for row in roster:
        _add(sums.setdefault(groups(row.status.name), [0.0] * len(_BY_GROUP)), row)
    lines: list[str] = []
    for name, about, value in (
        ("up", "Whether the engine answered (1) or not (0).", watch.problem is None),
        ("more", "Whether there are more names than were looked at.", roster.more or not roster.complete),
        ("names", "Names that are held, waited for or closed.", totals.names),
        ("overdue", "Names with a lease whose renewal is late.", totals.overdue),
        ("closed", "Names that stay closed after a lease was lost.", totals.closed),
        ("least_left_seconds", "Until the first lease would end.", totals.least_left),
        ("round_seconds", "How long the latest look at the engine took.", round(roster.seconds, 6)),
    ):
        if value is not None:
            lines += [*_heading(name, "gauge", about), line(f"leasehold_engine_{name}", engine, float(value))]
    ran_out = "Leases that were seen to run out unreleased."
    lines += [*_heading("ran_out_total", "counter", ran_out)]
    lines.append(line("leasehold_engine_ran_out_total", engine, float(roster.lost)))
    lines += _of_books(watch, groups, engine)
    for number, (name, about) in enumerate(_BY_GROUP.items()):
        lines += _heading(name, "gauge", about)
        for group, values in sorted(sums.items()):
            lines.append(line(f"leasehold_engine_{name}", {**engine, "group": group}, values[number]))
    return "\n".join(lines) + "\n"


def _of_books(watch: Watch, groups: Groups, engine: dict[str, str]) -> Iterator[str]:
    """What others wrote down; nothing where nobody has."""
    found = sorted(by_group(watch.books.jobs.values(), groups).items())
    if found:
        yield from _heading("job_behind", "gauge", "Ticks that are due and not settled, of the job that has most.")
        for group, (behind, _) in found:
            yield line("leasehold_engine_job_behind", {**engine, "group": group}, behind)
        yield from _heading("job_missed_ticks_total", "counter", "Ticks of jobs that were reported as missed.")
        for group, (_, missed) in found:
            yield line("leasehold_engine_job_missed_ticks_total", {**engine, "group": group}, missed)
    if watch.books.journal is not None:
        yield from _heading("refused_writes_total", "counter", "Writes that fences refused, as told by journals.")
        for reason, count in watch.books.journal.counts.items():
            yield line("leasehold_engine_refused_writes_total", {**engine, "reason": reason}, count)


_BY_GROUP: Final = {
    "holders": "Leases that are held, by anybody.",
    "waiters": "Waiters in all queues of the group.",
    "longest_queue": "Waiters for the name that most wait for.",
    "longest_wait_seconds": "For how long somebody has waited by now.",
}


def _add(sums: list[float], row: Row) -> None:
    waiting = len(row.status.waiters)
    sums[0] += len(row.status.holders)
    sums[1] += waiting
    sums[2] = max(sums[2], waiting)
    sums[3] = max([sums[3], *(one.waited_for for one in row.status.waiters)])


def _heading(name: str, kind: str, about: str) -> Iterator[str]:
    yield f"# HELP leasehold_engine_{name} {about}"
    yield f"# TYPE leasehold_engine_{name} {kind}"


def line(name: str, labels: Mapping[str, str], value: float) -> str:
    """One sample. Labels are foreign text: what could end them is escaped."""
    told = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
    return f"{name}{{{told}}} {value:.10g}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
