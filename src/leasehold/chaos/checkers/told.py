"""A holder that was overtaken knows it, and knows it first."""

from __future__ import annotations

import math

from leasehold.chaos.checkers.record import Lease, Record, compatible, was_before
from leasehold.chaos.checkers.verdict import Verdict, Violation, found

NAME = "told"
CLAIM = "Every holder that is overtaken knows that its lease is lost before the next one is granted it."


def check(record: Record) -> Verdict:
    """Look at each lease that was not over when somebody else was granted the name.

    Its holder has to know: because it was told, or because its own clock ended the lease, or because it asked. Never is
    always a violation, unless the holder died or was never heard of again. Later than the successor's grant is one
    unless a fault stopped the holder or took the lease from it; and later by more than a TTL is one all the same, where
    the library says until when a holder may believe: nobody who asked after the successor's grant was told that it may.
    """
    violations: list[Violation] = []
    shown: list[Violation] = []
    overtaken = never = 0
    latest = 0.0
    after_deadline: list[float] = []
    for name in record.names:
        leases = record.leases_on(name)
        for place, lease in enumerate(leases):
            if lease.lost is not None and lease.deadline is not None and lease.lost.at >= lease.deadline.at:
                after_deadline.append(lease.lost.at - lease.deadline.at)  # of others, news came before it
            later = (one for one in leases[place + 1 :] if was_before(lease, one))
            successor = next((one for one in later if not compatible(lease, one)), None)
            if successor is None or not _overtaken(record, lease, successor):
                continue
            overtaken += 1
            late = lease.known_at - successor.since
            if late == math.inf and lease.in_doubt and record.may_be_robbed(lease, successor.since):
                shown.append(_never(lease, successor))  # the answer to its release was lost, and would have told it
            elif late == math.inf:
                never += 1
                violations.append(_never(lease, successor))
            elif late > 0:
                latest = max(latest, late)
                beyond = late > record.run.ttl and "believed" in lease.granted.detail
                robbed = record.may_be_robbed(lease, successor.since) and not beyond
                (shown if robbed else violations).append(_late(lease, successor, late))
    return found(
        NAME,
        CLAIM,
        judged=overtaken,
        of="overtaken holders",
        violations=violations,
        shown=shown,
        figures={
            "never told": never,
            "told late": len(violations) - never,
            "told late after a stop": len(shown),
            "latest after the grant (s)": latest,
        },
        samples={"told after its deadline": tuple(after_deadline)} if after_deadline else {},
        nothing="nobody was overtaken",
    )


def _overtaken(record: Record, lease: Lease, successor: Lease) -> bool:
    """Whether its holder had not given it back when the successor was granted, and lived to learn of it."""
    if lease.how == "died":
        return False
    if lease.how == "open":
        return record.last_heard(lease.worker) > successor.since
    if lease.release_confirmed and not successor.release_confirmed:
        return False  # by the engine's own word it held all the while: the other one's grant was stale when it arrived
    return lease.release is None or lease.release.at > successor.since


def _never(lease: Lease, successor: Lease) -> Violation:
    return Violation(
        successor.since,
        f"{lease.worker} was never told that it lost “{lease.name}”, which {successor.worker} was granted at "
        f"{successor.since:.3f} s.",
        (*lease.shown_by, *successor.shown_by),
    )


def _late(lease: Lease, successor: Lease, late: float) -> Violation:
    return Violation(
        lease.known_at,
        f"{lease.worker} knew that it lost “{lease.name}” {late * 1000:.0f} ms after {successor.worker} was granted "
        "it.",
        (*lease.shown_by, *successor.shown_by),
    )
