"""What holds for every cluster that agrees by majority."""

from __future__ import annotations

from leasehold.doctor.findings import Finding


def members_finding(voters: int, what: str = "member") -> Finding:
    """How many may fail."""
    may_fail = (voters - 1) // 2
    if voters == 1:
        return Finding(
            "topology",
            "note",
            f"a single {what}: when it is down nobody gets a lock, and when its disk is lost so are all tokens",
            "use three on different machines",
        )
    seen = f"{voters} {what}s, of which {may_fail} may fail"
    if voters % 2 == 0:
        fix = f"use {voters + 1}, or {voters - 1}: an even number bears no more failures and agrees more slowly"
        return Finding("topology", "warning", seen, fix)
    return Finding("topology", "ok", seen)
