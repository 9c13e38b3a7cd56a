"""Checkers: pure functions from a history to verdicts. One file a property.

Each says what is claimed, what it looked at, and what breaks the claim. Operations whose outcome nobody knows may or
may not have happened: a checker calls a thing violated only if it is so either way. The answer may be "unknown" (the
history does not tell, or the search for an answer was given up) or "not asked" (nothing of the kind happened).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from leasehold.chaos.checkers import (
    exclusive,
    idempotency,
    jobs,
    linearizable,
    liveness,
    lost_updates,
    partitions,
    patience,
    permits,
    recovery,
    stale_writes,
    tokens,
    told,
)
from leasehold.chaos.checkers.record import Record
from leasehold.chaos.checkers.verdict import Status, Verdict, Violation
from leasehold.chaos.history import Event
from leasehold.chaos.run_info import RunInfo

__all__ = ["CHECKERS", "Status", "Verdict", "Violation", "judge"]

CHECKERS: Final[tuple[Callable[[Record], Verdict], ...]] = (
    exclusive.check,
    permits.check,
    linearizable.check,
    tokens.check,
    stale_writes.check,
    lost_updates.check,
    idempotency.check,
    partitions.check,
    jobs.check,
    told.check,
    recovery.check,
    patience.check,
    liveness.check,
)


def judge(history: list[Event], run: RunInfo) -> list[Verdict]:
    """What every checker says about a history."""
    record = Record(history, run)
    return [check(record) for check in CHECKERS]
