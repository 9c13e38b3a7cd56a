"""Who is granted later has the higher token; no token is given twice."""

from __future__ import annotations

from leasehold.chaos.checkers.record import Lease, Record
from leasehold.chaos.checkers.verdict import Verdict, Violation, found

NAME = "token order"
CLAIM = "Tokens strictly increase in the order of the grants of a name, and none is given twice."


def check(record: Record) -> Verdict:
    """Compare each token with the highest of those grants that were over before its own ask began.

    Two grants that overlap in time may have their tokens either way, as long as they differ. Who asks again for what it
    holds gets the same token again.
    """
    violations: list[Violation] = []
    judged = 0
    for name in record.names:
        leases = [lease for lease in record.leases_on(name) if lease.token is not None]
        judged += len(leases)
        violations += _duplicates(leases)
        violations += _out_of_order(leases)
    return found(
        NAME,
        CLAIM,
        judged=judged,
        of="grants",
        violations=violations,
        figures={
            "duplicates": sum("twice" in one.text for one in violations),
            "out of order": sum("after" in one.text for one in violations),
        },
        nothing=f"{record.run.subject} gives no tokens",
    )


def _duplicates(leases: list[Lease]) -> list[Violation]:
    owners: dict[int | None, Lease] = {}
    violations = []
    for lease in leases:
        first = owners.setdefault(lease.token, lease)
        if first is not lease and not (lease.again and first.owner == lease.owner):
            violations.append(
                Violation(
                    lease.since,
                    f"Token {lease.token} of “{lease.name}” was given twice: to {first.worker} at {first.since:.3f} s "
                    f"and to {lease.worker} at {lease.since:.3f} s.",
                    (*first.shown_by, *lease.shown_by),
                )
            )
    return violations


def _out_of_order(leases: list[Lease]) -> list[Violation]:
    violations = []
    granted = iter(leases)  # in the order of their ends
    following = next(granted, None)
    highest: Lease | None = None
    for lease in sorted(leases, key=lambda one: one.ask.at):
        while following is not None and following.since < lease.ask.at:
            if highest is None or _token(following) > _token(highest):
                highest = following
            following = next(granted, None)
        same = lease.again and highest is not None and lease.token == highest.token
        if highest is not None and _token(lease) < _token(highest) and not same:
            violations.append(
                Violation(
                    lease.since,
                    f"{lease.worker} asked for “{lease.name}” after {highest.worker} had been granted token "
                    f"{highest.token}, and was given {lease.token}.",
                    (*highest.shown_by, *lease.shown_by),
                )
            )
    return violations


def _token(lease: Lease) -> int:
    return lease.token or 0
