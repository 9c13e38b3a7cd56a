"""When nothing is broken any more, everything works again."""

from __future__ import annotations

from collections.abc import Iterator

from leasehold.chaos.checkers.gaps import BOUNDS, ENGINE_BACK, USUAL, gaps, outside_faults
from leasehold.chaos.checkers.record import ALLOWANCE, Record
from leasehold.chaos.checkers.verdict import Verdict, Violation, found
from leasehold.chaos.history import Event

NAME = "liveness"
CLAIM = "Nobody hangs; no wanted name lies idle for three TTLs; and once the faults are over, everything works again."
IDLE = 3.0
"""TTLs for which a wanted name may lie idle outside of faults."""


def check(record: Record) -> Verdict:
    """Look for operations without an end, for names that lie idle, and for errors and silence after the faults."""
    hung, idle = list(_hung(record)), list(_idle(record))
    late, judged, unknown = _after_settled(record)
    return found(
        NAME,
        CLAIM,
        judged=len(record.attempts),
        of="acquisitions",
        violations=[*hung, *idle, *late],
        figures={
            "hung": len(hung),
            "idle": len(idle),
            "failed after the faults": len(late),
            "after the faults": judged,
        },
        nothing="nobody asked for anything",
        unknown=unknown,
    )


def _hung(record: Record) -> Iterator[Violation]:
    for begin, end, wait in _operations(record):
        if end is None:
            over = record.cut_off_at(begin) - begin.at - wait
            if over > IDLE * record.run.ttl + ALLOWANCE:
                yield Violation(
                    begin.at,
                    f"{begin.worker} hung: its “{begin.kind}” of “{begin.name}” had not ended {over:.1f} s after its "
                    "time, when the run ended.",
                    (begin,),
                )


def _operations(record: Record) -> Iterator[tuple[Event, Event | None, float]]:
    for attempt in record.attempts:
        yield attempt.ask, attempt.end, float(attempt.ask.detail.get("wait", record.run.wait))
    for request in record.requests:
        yield request.begin, request.end, 0.0
    for lease in record.leases:
        if lease.release is not None:
            yield lease.release, lease.released, 0.0


def _idle(record: Record) -> Iterator[Violation]:
    lapse, slack = BOUNDS.get(record.run.engine, USUAL)
    # Where TTLs are short, the engine may need longer than three of them to end a lease.
    longest = max(IDLE * record.run.ttl, lapse * record.run.ttl + slack)
    for name in record.names:
        for gap in gaps(record, name):
            idle = outside_faults(gap, gap.wanted)
            if idle > longest + ALLOWANCE:
                yield Violation(
                    gap.until,
                    f"“{name}” lay idle for {idle:.1f} s from {gap.wanted:.3f} s on, though it was wanted and nothing "
                    "was broken.",
                    tuple(attempt.ask for attempt in gap.attempts[:4]),
                )


def _after_settled(record: Record) -> tuple[list[Violation], int, str]:
    """What still failed when everything had to work again, how much was looked at, and why it cannot be said."""
    if record.settled_at is None:
        return [], 0, "the run was over before its faults were: nobody knows whether everything would have worked again"
    lapse, slack = BOUNDS.get(record.run.engine, USUAL)
    works_from = record.settled_at + lapse * record.run.ttl + max(slack, ENGINE_BACK) + ALLOWANCE
    after = [attempt for attempt in record.attempts if attempt.ask.at >= works_from]
    violations = [
        Violation(
            attempt.until,
            f"{attempt.worker} asked for “{attempt.name}” {attempt.ask.at - record.settled_at:.1f} s after the last "
            f"fault, and still got an error: {attempt.end.detail.get('error', attempt.end.kind)}.",
            (attempt.ask, attempt.end),
        )
        for attempt in after
        if attempt.end is not None and attempt.end.kind in ("unknown", "failed")
    ]
    granted = any(lease.since >= record.settled_at for lease in record.leases)
    if not granted and not after:
        return violations, 0, "nobody asked for anything after the faults"
    return violations, len(after), ""
