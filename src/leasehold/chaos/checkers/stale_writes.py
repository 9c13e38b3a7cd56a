"""The fence accepts nothing from a holder that was overtaken."""

from __future__ import annotations

from leasehold.chaos.checkers.log import worker_of
from leasehold.chaos.checkers.record import Record
from leasehold.chaos.checkers.verdict import Verdict, Violation, found
from leasehold.chaos.history import Event

NAME = "stale writes"
CLAIM = "The fenced resource accepts no write of a holder after a later one has touched it, and refuses no other."

GUARDED_OTHERWISE = ("permits", "payment", "job")
"""Kinds of resources for which the order of tokens decides nothing: they have checkers of their own."""


def check(record: Record) -> Verdict:
    """Go through the resource's own log, and compare each token with the highest that it has seen.

    What the plain resource accepts is shown beside it: it has no fence, so that is what a lock alone lets through.
    Where the subject has no tokens, leases count in the order in which they were granted.
    """
    violations: list[Violation] = []
    shown: list[Violation] = []
    judged = {"plain": 0, "fenced": 0}
    refused = 0
    highest: dict[tuple[str, str], tuple[float, Event]] = {}
    for entry in record.log:
        side, place = str(entry.detail.get("resource")), _where(entry)
        rank = _rank(record, entry)
        if rank is None or side not in judged or entry.detail.get("kind") in GUARDED_OTHERWISE:
            continue
        before = highest.get((side, place))
        stale = before is not None and rank < before[0]
        reads = bool(entry.detail.get("reads"))
        if entry.kind == "accepted":
            judged[side] += not reads
            if stale and before is not None and not reads:
                (violations if side == "fenced" else shown).append(_accepted(before[1], entry))
            if before is None or rank > before[0]:
                highest[side, place] = (rank, entry)
        elif side == "fenced":
            refused += 1
            if before is None or rank > before[0]:
                violations.append(_wrongly_refused(entry))
    return found(
        NAME,
        CLAIM,
        judged=judged["fenced"],
        of="fenced writes",
        violations=violations,
        shown=shown,
        figures={
            "refused by the fence": refused,
            "accepted stale (fenced)": len(violations),
            "accepted stale (plain)": len(shown),
            "plain writes": judged["plain"],
        },
        nothing="nothing was written to a fenced resource",
    )


def _where(entry: Event) -> str:
    """What the fence calls the resource."""
    return entry.name or str(entry.detail.get("key", ""))


def _rank(record: Record, entry: Event) -> float | None:
    """The order of the lease under which it was done."""
    if entry.token is not None:
        return entry.token
    request = record.request_of.get((worker_of(entry), int(entry.detail.get("by_op", 0))))
    op = request.begin.detail.get("lease", 0) if request is not None else 0
    lease = record.lease_of.get((worker_of(entry), op))
    return lease.since if lease is not None else None


def _accepted(overtaker: Event, entry: Event) -> Violation:
    side = entry.detail.get("resource")
    mine = f"token {entry.token}" if entry.token is not None else "an earlier lease"
    theirs = f"token {overtaker.token}" if overtaker.token is not None else "a later lease"
    return Violation(
        entry.at,
        f"The {side} resource “{_where(entry)}” accepted a write of {worker_of(entry)} with {mine} after it had seen "
        f"{theirs} of {worker_of(overtaker)}.",
        (overtaker, entry),
    )


def _wrongly_refused(entry: Event) -> Violation:
    return Violation(
        entry.at,
        f"The fenced resource “{_where(entry)}” refused token {entry.token} of {worker_of(entry)}, the highest that "
        "it had seen.",
        (entry,),
    )
