"""Nobody waits longer than it said it would."""

from __future__ import annotations

from leasehold.chaos.checkers.record import ALLOWANCE, Attempt, Record
from leasehold.chaos.checkers.verdict import Verdict, Violation, found

NAME = "wait overrun"
CLAIM = "An acquisition ends when its wait does, whatever the engine does."
GRACE = 0.25
"""Seconds that an acquisition may take beyond its wait."""


def check(record: Record) -> Verdict:
    """Measure how long each acquisition took beyond its wait.

    Those of workers that were stopped meanwhile do not count.
    """
    violations: list[Violation] = []
    overruns: list[float] = []
    for attempt in record.attempts:
        wait = attempt.ask.detail.get("wait", record.run.wait)
        if attempt.end is None or record.strikes_on(attempt.worker, attempt.ask.at, attempt.until):
            continue
        overruns.append(attempt.until - attempt.ask.at - wait)
        if overruns[-1] > GRACE + ALLOWANCE:
            violations.append(_late(attempt, wait, overruns[-1]))
    return found(
        NAME,
        CLAIM,
        judged=len(overruns),
        of="acquisitions",
        violations=violations,
        figures={
            "furthest beyond its wait (s)": max([0.0, *overruns]),
            f"more than {GRACE:g} s beyond": sum(one > GRACE for one in overruns),
        },
        nothing="no acquisition ended",
    )


def _late(attempt: Attempt, wait: float, overrun: float) -> Violation:
    assert attempt.end is not None, "only acquisitions that ended are judged"
    return Violation(
        attempt.until,
        f"{attempt.worker} was to wait {wait:g} s for “{attempt.name}”, and waited {overrun:.2f} s longer.",
        (attempt.ask, attempt.end),
    )
