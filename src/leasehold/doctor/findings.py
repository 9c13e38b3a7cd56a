"""What a look at an engine found."""

from __future__ import annotations

from typing import Literal, NamedTuple

Level = Literal["ok", "note", "warning", "problem"]
"""Fine; worth knowing; the deployment gives less than it could; it does not work, or breaks what leases promise."""


class Finding(NamedTuple):
    """One thing that was looked at."""

    check: str
    level: Level
    seen: str
    fix: str = ""
    """What to do about it; empty when nothing has to be done."""


class Look(NamedTuple):
    """What a family of engines found out about a server."""

    version: str
    findings: list[Finding]


MOST_SKEW = 1.0
"""Seconds by which the engine's clock may differ from ours before it is worth a word."""


def clock_finding(engine_time: float, asked_at: float, answered_at: float) -> Finding:
    """Compare the engine's wall clock with ours, which were read before and after it."""
    middle, error = (asked_at + answered_at) / 2, (answered_at - asked_at) / 2
    skew = engine_time - middle
    seen = f"the engine's clock differs from this machine's by {skew:+.3f} s (± {error:.3f} s)"
    if abs(skew) - error > MOST_SKEW:
        return Finding(
            "clock",
            "warning",
            f"{seen}: leases do not depend on it, but after a loss of data tokens go on from the engine's clock",
            "run NTP or chrony on both machines",
        )
    return Finding("clock", "ok", seen)
