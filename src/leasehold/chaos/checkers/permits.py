"""Never more holders than there are permits."""

from __future__ import annotations

from leasehold.chaos.checkers.exclusive import TINY
from leasehold.chaos.checkers.record import Lease, Record
from leasehold.chaos.checkers.verdict import Verdict, Violation, found

NAME = "permits"
CLAIM = "Never more holders at the same time than there are permits."


def check(record: Record) -> Verdict:
    """Count those who believe to hold a permit, at each grant."""
    violations: list[Violation] = []
    shown: list[Violation] = []
    judged = most = 0
    for name in record.names:
        standing: list[Lease] = []
        for lease in record.leases_on(name):
            if lease.mode != "permit" or lease.until <= lease.since:
                continue
            judged += 1
            standing = [one for one in standing if one.until > lease.since + TINY]
            standing.append(lease)
            most = max(most, len(standing))
            if len(standing) > lease.permits:
                robbed = any(record.may_be_robbed(one, lease.since) for one in standing[:-1])
                (shown if robbed else violations).append(_too_many(lease, standing))
    return found(
        NAME,
        CLAIM,
        judged=judged,
        of="permits",
        violations=violations,
        shown=shown,
        figures={"most at once": most, "too many": len(violations), "too many after a stop": len(shown)},
        nothing="no permit was granted",
    )


def _too_many(lease: Lease, standing: list[Lease]) -> Violation:
    who = ", ".join(one.worker for one in standing)
    return Violation(
        lease.since,
        f"With {lease.worker}'s grant, {len(standing)} believe to hold one of {lease.permits} permits of "
        f"“{lease.name}”: {who}.",
        tuple(event for one in standing for event in one.shown_by),
    )
