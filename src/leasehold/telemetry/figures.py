"""The metrics, once for all systems: what they are called, and what each event adds to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Literal, NamedTuple

from leasehold.core.held import HELD_TOO_LONG, KEEPER_DIED, OTHER_PROCESS, RAN_OUT, REFUSED
from leasehold.events import (
    Broken,
    Conflicting,
    Crowded,
    Elected,
    Event,
    Failed,
    GaveUp,
    Granted,
    Keyed,
    Lost,
    Missed,
    Refused,
    Released,
    Renewed,
    Resigned,
    Tried,
)


class Metric(NamedTuple):
    """One metric. Counters are named without the ``_total`` that Prometheus adds."""

    name: str
    kind: Literal["counter", "histogram"]
    help: str
    labels: tuple[str, ...]


class Figure(NamedTuple):
    """What an event adds to a metric: one observation of a histogram, or an amount to a counter."""

    metric: Metric
    labels: tuple[str, ...]
    """In the order of the metric's labels."""
    value: float = 1


BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
"""Bounds of histograms, in seconds: from a free lock on a near engine to a job of half an hour."""

WAIT: Final = Metric(
    "leasehold_wait_seconds",
    "histogram",
    "How long callers waited for a lock, by what came of it (granted, gave_up, failed).",
    ("engine", "group", "outcome"),
)
CONTENDED: Final = Metric(
    "leasehold_contended",
    "counter",
    "Attempts that found the lock held by somebody else; as a share of the waits: the contention rate.",
    ("engine", "group"),
)
HOLD: Final = Metric(
    "leasehold_hold_seconds", "histogram", "How long leases were held until their end.", ("engine", "group")
)
RENEWALS: Final = Metric(
    "leasehold_renewals", "counter", "Renewals of leases, by outcome (renewed, failed).", ("engine", "group", "outcome")
)
LOST: Final = Metric(
    "leasehold_lost", "counter", "Leases lost while they were held, by reason.", ("engine", "group", "reason")
)
BROKEN: Final = Metric("leasehold_force_releases", "counter", "Releases by force.", ("engine", "group"))
CROWDED: Final = Metric("leasehold_crowded", "counter", "Warnings that a lock is crowded.", ("engine", "group"))
REFUSED_WRITES: Final = Metric(
    "leasehold_refused_writes",
    "counter",
    "Writes that a fence refused, by reason (stale, used, jump).",
    ("group", "reason"),
)
ATTEMPTS: Final = Metric(
    "leasehold_optimistic_attempts", "counter", "Attempts of functions that are retried on conflicts.", ("function",)
)
CONFLICTS: Final = Metric(
    "leasehold_optimistic_conflicts", "counter", "Those attempts that met a conflict.", ("function",)
)
KEYED: Final = Metric(
    "leasehold_idempotent_calls",
    "counter",
    "Operations with an idempotency key, and once-only jobs, by outcome (ran, failed, replayed, in_progress, reused).",
    ("scope", "outcome"),
)
MISSED: Final = Metric(
    "leasehold_missed_ticks", "counter", "Ticks of once-only jobs that were not done and will not be.", ("scope",)
)
ELECTED: Final = Metric("leasehold_elections", "counter", "Terms that instances of this process began.", ("group",))
RESIGNED: Final = Metric("leasehold_resignations", "counter", "Terms that were told to end.", ("group",))
METRICS: Final = (
    WAIT, CONTENDED, HOLD, RENEWALS, LOST, BROKEN, CROWDED, REFUSED_WRITES, ATTEMPTS, CONFLICTS, KEYED, MISSED,
    ELECTED, RESIGNED,
)  # fmt: skip

HELD_NOW: Final = ("leasehold_held", "Leases that this process holds now.")
WAITING_NOW: Final = ("leasehold_waiting", "Callers of this process that wait for a lock now.")

_REASONS: Final = {
    RAN_OUT: "ran_out",
    REFUSED: "refused",
    HELD_TOO_LONG: "held_too_long",
    OTHER_PROCESS: "forked",
    KEEPER_DIED: "keeper_died",
}


def figures(event: Event, group: Callable[[str], str]) -> Iterator[Figure]:
    """What an event adds to which metric."""
    match event:
        case Granted() | GaveUp() | Failed() | Released() | Lost() | Renewed():
            yield from _of_lease(event, event.about.engine, group(event.about.name))
        case Broken():
            yield Figure(BROKEN, (event.about.engine, group(event.about.name)))
        case Crowded():
            yield Figure(CROWDED, (event.about.engine, group(event.about.name)))
        case Refused():
            yield Figure(REFUSED_WRITES, (group(event.resource), event.reason))
        case Tried():
            function = group(event.function)
            yield Figure(ATTEMPTS, (function,), event.attempts)
            yield Figure(CONFLICTS, (function,), event.conflicts)
        case Conflicting():
            return
        case Keyed():
            yield Figure(KEYED, (_scope(event.scope, group), event.outcome.replace(" ", "_")))
        case Missed():
            yield Figure(MISSED, (_scope(event.scope, group),), event.count)
        case Elected():
            yield Figure(ELECTED, (group(event.name),))
        case Resigned():
            yield Figure(RESIGNED, (group(event.name),))


def _scope(scope: str, group: Callable[[str], str]) -> str:
    job = scope.removeprefix("job/")
    return group(scope) if job == scope else f"job/{group(job)}"


def _of_lease(
    event: Granted | GaveUp | Failed | Released | Lost | Renewed, engine: str, group: str
) -> Iterator[Figure]:
    match event:
        case Granted():
            yield Figure(WAIT, (engine, group, "granted"), event.waited)
        case GaveUp():
            yield Figure(WAIT, (engine, group, "gave_up"), event.waited)
        case Failed(doing="acquire"):
            yield Figure(WAIT, (engine, group, "failed"), event.waited)
        case Failed():
            yield Figure(RENEWALS, (engine, group, "failed"))
        case Renewed():
            yield Figure(RENEWALS, (engine, group, "renewed"))
        case Released():
            yield Figure(HOLD, (engine, group), event.held)
        case Lost():
            yield Figure(HOLD, (engine, group), event.held)
            yield Figure(LOST, (engine, group, _REASONS.get(event.reason, "other")))
    if isinstance(event, Granted | GaveUp) and event.contended:
        yield Figure(CONTENDED, (engine, group))
