"""The report of a run: one page for people, which needs nothing but itself, and the same as JSON for programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from leasehold import __version__
from leasehold.chaos.checkers import Verdict, Violation
from leasehold.chaos.checkers.record import Record
from leasehold.chaos.history import Event
from leasehold.chaos.report.goals import Goal, goals
from leasehold.chaos.report.page import page
from leasehold.chaos.run_info import RunInfo

__all__ = ["Goal", "Report", "goals", "write"]


class Report(NamedTuple):
    """Where the two files are."""

    html: Path
    json: Path


def write(folder: Path, history: list[Event], run: RunInfo, verdicts: list[Verdict]) -> Report:
    """Write `report.html` and `report.json` into a folder."""
    record = Record(history, run)
    met = goals(record, verdicts)
    report = Report(folder / "report.html", folder / "report.json")
    report.html.write_text(page(record, verdicts, met), encoding="utf-8")
    report.json.write_text(json.dumps(as_json(record, verdicts, met), indent=1) + "\n", encoding="utf-8")
    return report


def as_json(record: Record, verdicts: list[Verdict], met: list[Goal]) -> dict[str, Any]:
    """The report for programs."""
    run = record.run
    return {
        "format": 1,
        "leasehold": __version__,
        "run": {
            "engine": run.engine,
            "address": run.address,
            "subject": run.subject,
            "workload": run.workload,
            "faults": list(run.faults),
            "left_out": run.left_out,
            "seed": run.seed,
            "seconds": run.seconds,
            "ttl": run.ttl,
            "wait": run.wait,
            "permits": run.permits,
            "workers": run.workers,
            "command": run.command,
            "events": len(record.events),
            "ended_at": record.ended_at,
            "struck": struck(record),
        },
        "verdicts": [_verdict(verdict) for verdict in verdicts],
        "goals": [goal._asdict() for goal in met],
    }


def struck(record: Record) -> dict[str, int]:
    """How often each fault struck."""
    counts = dict.fromkeys(record.run.faults, 0)
    for fault in record.faults:
        counts[fault.name] = counts.get(fault.name, 0) + 1
    return counts


def _verdict(verdict: Verdict) -> dict[str, Any]:
    return {
        "property": verdict.name,
        "claim": verdict.claim,
        "status": verdict.status,
        "judged": verdict.judged,
        "of": verdict.of,
        "why": verdict.why,
        "figures": verdict.figures,
        "samples": {name: [round(one, 6) for one in values] for name, values in verdict.samples.items()},
        "violations": [_violation(one) for one in verdict.violations],
        "shown": [_violation(one) for one in verdict.shown],
    }


def _violation(violation: Violation) -> dict[str, Any]:
    return {
        "at": violation.at,
        "text": violation.text,
        "events": [json.loads(event.line()) for event in violation.events],
    }
