"""Nobody believes to hold what somebody else believes to hold alone."""

from __future__ import annotations

from leasehold.chaos.checkers.record import Lease, Record, compatible, was_before
from leasehold.chaos.checkers.verdict import Verdict, Violation, found

NAME = "exclusive"
CLAIM = "No two holders that exclude each other believe to hold the same name at the same time."
TINY = 1e-6
"""What arithmetic may lose."""


def check(record: Record) -> Verdict:
    """Look for overlapping beliefs.

    A holder believes from the moment at which its call returned until it began to release, knew that the lease was
    lost, or died; what its own clock ended is over, whether it looked at the clock or not. Readers do not exclude
    readers, nor does a caller exclude itself who asked again for what it holds. An overlap after a fault that stopped
    the earlier holder, or took its lease away, is shown but not held against the lock: there, only a fence helps.
    """
    violations: list[Violation] = []
    shown: list[Violation] = []
    longest = 0.0
    for name in record.names:
        standing: list[Lease] = []
        for lease in record.leases_on(name):
            if lease.until <= lease.since:
                continue
            standing = [one for one in standing if one.until > lease.since + TINY]
            for other in standing:
                if compatible(lease, other):
                    continue
                overlap = min(lease.until, other.until) - lease.since
                longest = max(longest, overlap)
                robbed = record.may_be_robbed(other if was_before(other, lease) else lease, lease.since)
                (shown if robbed else violations).append(_overlap(other, lease, overlap))
            standing.append(lease)
    leases = [lease for lease in record.leases if lease.mode != "permit"]
    return found(
        NAME,
        CLAIM,
        judged=len(leases),
        of="leases",
        violations=violations,
        shown=shown,
        figures={"overlaps": len(violations), "overlaps after a stop": len(shown), "longest overlap (s)": longest},
        nothing="no exclusive or shared lease was granted",
    )


def _overlap(first: Lease, second: Lease, overlap: float) -> Violation:
    return Violation(
        second.since,
        f"{second.worker} was granted “{second.name}” ({second.mode}) while {first.worker}, who holds it "
        f"({first.mode}) since {first.since:.3f} s, still believed in its lease: for {overlap * 1000:.0f} ms both did.",
        (*first.shown_by, *second.shown_by),
    )
