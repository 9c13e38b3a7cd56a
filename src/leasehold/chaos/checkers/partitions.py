"""One writer for each partition and epoch."""

from __future__ import annotations

from leasehold.chaos.checkers.log import accepted_writes, by_place, worker_of
from leasehold.chaos.checkers.record import Record
from leasehold.chaos.checkers.verdict import Verdict, Violation, found
from leasehold.chaos.history import Event

NAME = "partitions"
CLAIM = "Each partition has one writer in each epoch, and epochs follow each other: no writer comes back."


def check(record: Record) -> Verdict:
    """Go through what each partition accepted, in order: the token is the epoch."""
    violations: list[Violation] = []
    shown: list[Violation] = []
    judged = 0
    epochs = set()
    for (side, key), accepted in by_place(accepted_writes(record.log, "partition")).items():
        judged += len(accepted) if side == "fenced" else 0
        epochs |= {(key, entry.token) for entry in accepted if side == "fenced"}
        (violations if side == "fenced" else shown).extend(_mixed(key, accepted))
    return found(
        NAME,
        CLAIM,
        judged=judged,
        of="writes",
        violations=violations,
        shown=shown,
        figures={"epochs": len(epochs), "violations (fenced)": len(violations), "violations (plain)": len(shown)},
        nothing="no partition was written to",
    )


def _mixed(key: str, accepted: list[Event]) -> list[Violation]:
    violations: list[Violation] = []
    first_of: dict[int, Event] = {}
    newest: Event | None = None
    for entry in accepted:
        epoch = entry.token or 0
        first = first_of.setdefault(epoch, entry)
        side = entry.detail.get("resource")
        if worker_of(first) != worker_of(entry):
            writers = f"{worker_of(first)} and {worker_of(entry)}"
            text = f"Partition “{key}” ({side}) has two writers in epoch {epoch}: {writers}."
            violations.append(Violation(entry.at, text, (first, entry)))
        elif newest is not None and epoch < (newest.token or 0):
            text = (
                f"Partition “{key}” ({side}) accepted a write of {worker_of(entry)} in epoch {epoch} after one of "
                f"{worker_of(newest)} in epoch {newest.token}."
            )
            violations.append(Violation(entry.at, text, (newest, entry)))
        if newest is None or epoch > (newest.token or 0):
            newest = entry
    return violations
