"""Each run of a job is completed once."""

from __future__ import annotations

from leasehold.chaos.checkers.idempotency import repeated_effects
from leasehold.chaos.checkers.log import place_of
from leasehold.chaos.checkers.record import Record
from leasehold.chaos.checkers.verdict import Verdict, Violation, found

NAME = "once-only jobs"
CLAIM = "Each tick of a job is completed once: never twice, and none that was reported done is missing."


def check(record: Record) -> Verdict:
    """Count completions of each tick in the resource's own log, and look for what was reported and is not there."""
    violations, shown, effects = repeated_effects(record, "job", "the tick")
    for request in record.done_writes:
        side, key = place_of(request.begin)
        if request.begin.detail.get("kind") == "job" and side == "fenced" and (side, key) not in effects:
            text = f"{request.begin.worker} reported tick “{key}” done, and the resource has no trace of it."
            violations.append(Violation(request.events[-1].at, text, request.events))
    return found(
        NAME,
        CLAIM,
        judged=sum(side == "fenced" for side, _ in effects),
        of="ticks",
        violations=violations,
        shown=shown,
        figures={"violations (fenced)": len(violations), "violations (plain)": len(shown)},
        nothing="no job was run",
    )
