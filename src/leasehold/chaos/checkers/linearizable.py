"""The lock itself behaves like one lock that all use in turn, at one moment each."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal, NamedTuple

from leasehold.chaos.checkers.record import Attempt, Lease, Record
from leasehold.chaos.checkers.search import Explained, Operation, explain
from leasehold.chaos.checkers.verdict import Figure, Verdict, Violation, found

NAME = "linearizable"
CLAIM = "Every grant, release and refusal of the lock makes sense at one moment of its call."
BUDGET = 200_000
"""Steps that the search may take for each name."""


class Holder(NamedTuple):
    """Somebody who holds, in the model."""

    lease: int
    owner: str
    mode: str
    token: int | None


class State(NamedTuple):
    """The lock: who holds it, and the highest token so far."""

    holders: frozenset[Holder] = frozenset()
    token: int = 0


class Step(NamedTuple):
    """One operation on the lock."""

    what: Literal["acquire", "release", "lapse", "busy"]
    lease: int
    owner: str = ""
    mode: str = "exclusive"
    permits: int = 1
    token: int | None = None
    again: bool = False


def lock(state: State, step: Step) -> State | None:
    """The model: what the lock becomes by this step, or None when it could not have done it.

    It is a fenced lock that knows its owners: a token is higher than all before it, except that who asks again for
    what it holds gets the same one. Without tokens, with readers and with permits it is the same model.
    """
    if step.what in ("release", "lapse"):
        held = [holder for holder in state.holders if holder.lease == step.lease]
        return State(state.holders - set(held), state.token) if held else None
    own = [holder for holder in state.holders if step.again and holder.owner == step.owner]
    others = state.holders - set(own)
    free = all(holder.mode == step.mode != "exclusive" for holder in others)
    if step.mode == "permit":
        free = free and len(others) < step.permits
    if step.what == "busy":
        return None if free else state
    if not free:
        return None
    token = state.token
    if step.token is not None:
        fits = step.token == own[0].token if own else step.token > state.token
        if not fits:
            return None
        token = max(token, step.token)
    return State(state.holders | {Holder(step.lease, step.owner, step.mode, step.token)}, token)


def check(record: Record) -> Verdict:
    """Search, for each name, for an order of all operations in which a single lock could have given these answers.

    A lease that was not released by a confirmed release may lapse at any time once its holder had stopped to believe,
    or once a fault had stopped or robbed it. A release or a grant of which nobody knows the outcome may or may not have
    happened. "Busy" has to make sense only where nobody else was waiting, whose turn it could have been, and nothing
    was broken.
    """
    violations: list[Violation] = []
    given_up: list[str] = []
    judged = steps = 0
    for name in record.names:
        operations = list(_operations(record, name))
        judged += len(operations)
        explained = explain(operations, State(), lock, budget=BUDGET)
        steps += explained.steps
        if explained.answer is None:
            given_up.append(name)
        elif not explained.answer:
            violations.append(_unexplained(record, name, explained))
    figures: dict[str, Figure] = {"names": len(record.names), "steps of the search": steps}
    return found(
        NAME,
        CLAIM,
        judged=judged,
        of="operations",
        violations=violations,
        figures=figures,
        nothing="nothing was granted",
        unknown=f"the search was given up after {BUDGET} steps for {', '.join(given_up)}" if given_up else "",
    )


def _operations(record: Record, name: str) -> Iterator[Operation[Step]]:
    for number, lease in enumerate(record.leases_on(name)):
        yield Operation(
            lease.ask.at,
            lease.since,
            Step("acquire", number, lease.owner, lease.mode, lease.permits, lease.token, lease.again),
        )
        if lease.release_confirmed and lease.release is not None and lease.released is not None:
            yield Operation(lease.release.at, lease.released.at, Step("release", number))
        else:
            yield Operation(_may_lapse_from(record, lease), math.inf, Step("lapse", number))
    for attempt in record.attempts_on(name):
        if _must_have_been_busy(record, attempt):
            asked = attempt.ask.detail
            yield Operation(
                attempt.ask.at,
                attempt.until,
                Step(
                    "busy",
                    -1,
                    attempt.worker,
                    asked.get("mode", "exclusive"),
                    asked.get("permits", 1),
                    again=asked.get("again", False),
                ),
            )


def _may_lapse_from(record: Record, lease: Lease) -> float:
    ends = max(lease.until, lease.since)
    robbed = record.robbed_from(lease, ends)
    return ends if robbed is None else min(robbed, ends)


def _must_have_been_busy(record: Record, attempt: Attempt) -> bool:
    """Whether "busy" can only be because somebody held it: nobody waited or had just given up, nothing was broken."""
    if attempt.end is None or attempt.end.kind != "busy" or attempt.ask.detail.get("wait", record.run.wait) > 0:
        return False
    since = attempt.ask.at - 2 * record.run.ttl
    if record.faults_within(since, attempt.until):
        return False
    return not any(
        other is not attempt
        and other.ask.at <= attempt.until
        and other.until >= since
        and not _was_granted(other, since)
        for other in record.attempts_on(attempt.name)
    )


def _was_granted(attempt: Attempt, since: float) -> bool:
    return attempt.end is not None and attempt.end.kind == "granted" and attempt.until < since


def _unexplained(record: Record, name: str, explained: Explained[Step]) -> Violation:
    leases = record.leases_on(name)
    state = State()
    for step in explained.order:
        state = lock(state, step) or state
    holding = sorted(leases[holder.lease].worker for holder in state.holders)
    stuck = explained.stuck
    assert stuck is not None, "a search fails at an operation that ended"
    last = leases[stuck.what.lease] if stuck.what.lease >= 0 else None
    who = last.worker if last is not None else stuck.what.owner
    with_token = f" with token {stuck.what.token}" if stuck.what.token is not None else ""
    held = f"held by {' and '.join(holding)}" if holding else "free"
    highest = f", its highest token so far {state.token}" if state.token else ""
    shown = [
        *(last.shown_by if last else ()),
        *(one for holder in state.holders for one in leases[holder.lease].shown_by),
    ]
    return Violation(
        stuck.ended,
        f"No order of the operations on “{name}” explains the “{stuck.what.what}” of {who}{with_token} that ended at "
        f"{stuck.ended:.3f} s: in the best order that was found the lock is then {held}{highest}.",
        tuple(sorted(shown, key=lambda event: event.at)),
    )
