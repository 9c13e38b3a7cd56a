"""What the time line of the page draws, as small as it can be: rows of numbers."""

from __future__ import annotations

import math
from typing import Any

from leasehold.chaos.checkers import Verdict, Violation
from leasehold.chaos.checkers.record import Lease, Record
from leasehold.chaos.history import RESOURCE, Event

MOST = 200
"""Violations of one property that the page shows; the JSON file has all of them."""


def picture(record: Record, verdicts: list[Verdict]) -> dict[str, Any]:
    """Everything that is drawn. Times are in milliseconds since the run began."""
    workers = {worker: number for number, worker in enumerate(record.workers)}
    names = {name: number for number, name in enumerate(record.names)}
    return {
        "workers": list(workers),
        "names": list(names),
        "ends": _ms(record.ended_at),
        "settled": _ms(record.settled_at) if record.settled_at is not None else None,
        "leases": [
            [
                workers[lease.worker],
                names[lease.name],
                _ms(lease.since),
                _ms(max(lease.until, lease.since)),
                lease.how,
                _shown_token(lease),
                lease.mode,
            ]
            for lease in record.leases
        ],
        "waits": [
            [
                workers[attempt.worker],
                names[attempt.name],
                _ms(attempt.ask.at),
                _ms(attempt.until),
                attempt.end.kind if attempt.end is not None else "cut off",
            ]
            for attempt in record.attempts
        ],
        "marks": _marks(record, workers),
        "faults": [
            [
                fault.name,
                _ms(fault.at),
                _ms(min(fault.over, record.ended_at)),
                [workers[one] for one in fault.struck if one in workers],
                ", ".join(fault.struck),
            ]
            for fault in record.faults
        ],
        "violations": [
            _violation(verdict, violation, workers, proven=proven)
            for verdict in verdicts
            for found, proven in ((verdict.violations, True), (verdict.shown, False))
            for violation in found[:MOST]
        ],
    }


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 2) if math.isfinite(seconds) else 0.0


def _shown_token(lease: Lease) -> str:
    # As text: tokens may be larger than what a script's numbers hold exactly.
    return str(lease.token) if lease.token is not None else ""


def _marks(record: Record, workers: dict[str, int]) -> list[list[Any]]:
    """Single moments in a worker's lane: writes that were refused, and what was lost."""
    marks = []
    for request in record.requests:
        end = request.end
        if end is not None and request.begin.kind == "write":
            what = {"wrote": "wrote", "refused": "refused", "unknown": "unknown"}.get(end.kind)
            if what is not None:
                seen = f"the fence had seen {end.detail['seen']}" if end.detail.get("seen") else ""
                side = str(request.begin.detail.get("resource", ""))
                marks.append([workers[end.worker], _ms(end.at), what, side, str(end.token or ""), seen])
    for lease in record.leases:
        if lease.lost is not None:
            how = "told by the library" if lease.lost.detail.get("told") else "found out by asking"
            marks.append([workers[lease.worker], _ms(lease.lost.at), "lost", "", _shown_token(lease), how])
    return sorted(marks, key=lambda mark: float(mark[1]))


def _violation(verdict: Verdict, violation: Violation, workers: dict[str, int], *, proven: bool) -> dict[str, Any]:
    who = {_whose(event) for event in violation.events}
    times = [event.at for event in violation.events] or [violation.at]
    return {
        "property": verdict.name,
        "proven": proven,
        "at": _ms(violation.at),
        "from": _ms(min(*times, violation.at)),
        "to": _ms(max(*times, violation.at)),
        "text": violation.text,
        "workers": sorted(workers[one] for one in who if one in workers),
        "events": [_told(event) for event in sorted(violation.events, key=lambda event: event.at)],
    }


def _whose(event: Event) -> str:
    return str(event.detail.get("by", "")) if event.worker == RESOURCE else event.worker


def _told(event: Event) -> list[Any]:
    """An event as a row of a table: when, who, what, and the rest."""
    rest = {name: value for name, value in event.detail.items() if name not in ("by_op", "lease", "ttl")}
    more = ", ".join(
        f"{name} {value:.3f}" if isinstance(value, float) else f"{name} {value}" for name, value in rest.items()
    )
    token = f"token {event.token}" if event.token is not None else ""
    about = f"“{event.name}”" if event.name else ""
    return [_ms(event.at), event.worker, event.kind, " ".join(one for one in (about, token) if one), more[:300]]
