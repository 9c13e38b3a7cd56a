"""An effect takes place once at most, and whoever asks for it again is given the same result."""

from __future__ import annotations

import json
from collections import defaultdict

from leasehold.chaos.checkers.log import Place, accepted_writes, by_place, place_of, short, worker_of
from leasehold.chaos.checkers.record import Record, Request
from leasehold.chaos.checkers.verdict import Verdict, Violation, found
from leasehold.chaos.history import Event

NAME = "idempotency"
CLAIM = "Each payment takes effect once at most, and everybody who asks for it is given the same result."


def check(record: Record) -> Verdict:
    """Count effects in the resource's own log, and compare what callers were told.

    The plain side is one without an idempotency key: what it does twice is shown.
    """
    violations, shown, effects = repeated_effects(record, "payment", "payment")
    answers: dict[Place, list[Request]] = defaultdict(list)
    for request in [*record.done_writes, *record.answers]:
        if request.begin.detail.get("kind") == "payment":
            answers[place_of(request.begin)].append(request)
    for (side, key), told in answers.items():
        if differing := _differing(told):
            (violations if side == "fenced" else shown).append(_told_otherwise(key, told[0], differing))
        if side == "fenced" and (side, key) not in effects:
            violations.append(_without_effect(key, told[0]))
    return found(
        NAME,
        CLAIM,
        judged=sum(side == "fenced" for side, _ in effects),
        of="payments",
        violations=violations,
        shown=shown,
        figures={
            "answers": sum(len(told) for (side, _), told in answers.items() if side == "fenced"),
            "violations (keyed)": len(violations),
            "violations (plain)": len(shown),
        },
        nothing="no payment was made",
    )


def repeated_effects(
    record: Record, kind: str, what: str
) -> tuple[list[Violation], list[Violation], dict[Place, list[Event]]]:
    """Effects that took place more than once: the fenced side's, the plain side's; and all effects by side and key."""
    effects = by_place(accepted_writes(record.log, kind))
    violations: list[Violation] = []
    shown: list[Violation] = []
    for (side, key), times in effects.items():
        if len(times) > 1:
            who = ", ".join(worker_of(entry) for entry in times)
            text = f"On the {side} side {what} “{key}” took effect {len(times)} times: by {who}."
            (violations if side == "fenced" else shown).append(Violation(times[1].at, text, tuple(times)))
    return violations, shown, effects


def _result(request: Request) -> str:
    return json.dumps(request.end.detail.get("result") if request.end else None, sort_keys=True)


def _differing(told: list[Request]) -> Request | None:
    return next((one for one in told if _result(one) != _result(told[0])), None)


def _told_otherwise(key: str, first: Request, other: Request) -> Violation:
    return Violation(
        other.events[-1].at,
        f"{first.begin.worker} was given {short(_result(first))} for payment “{key}”, and {other.begin.worker} "
        f"{short(_result(other))}.",
        (*first.events, *other.events),
    )


def _without_effect(key: str, request: Request) -> Violation:
    return Violation(
        request.events[-1].at,
        f"{request.begin.worker} was told that payment “{key}” was made, but it never took effect.",
        request.events,
    )
