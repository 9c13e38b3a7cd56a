"""When a name was wanted and nobody had it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from leasehold.chaos.checkers.record import Attempt, Fault, Lease, Record

USUAL = (1.0, 0.5)
BOUNDS = {"etcd": (1.0, 3.0), "zookeeper": (1.0, 1.5), "consul": (2.0, 1.0)}
"""How many TTLs after the death of a holder the next one is granted its name, and how many seconds more it may take."""
ENGINE_BACK = 1.0
"""The seconds more, after an engine that was away came back."""

TURN = 2.0
"""Seconds that a waiter costs those behind it that died or was stopped while it waited."""
PAUSE = 0.3
"""Seconds between two attempts in which a name still counts as wanted."""


@dataclass(frozen=True, slots=True)
class Gap:
    """A time in which somebody wanted a name and nobody believed to hold it."""

    name: str
    wanted: float
    """From when on."""
    before: Lease | None
    """Who held it last."""
    next: Lease | None
    """Who ended it; None if nobody did."""
    until: float
    waited: bool
    """Whether somebody waited already when it began: then it is a hand-over."""
    attempts: tuple[Attempt, ...]
    """Those who wanted it."""
    faults: tuple[Fault, ...]
    """What was broken meanwhile, and concerned them."""


def gaps(record: Record, name: str) -> Iterator[Gap]:
    """All gaps of a name in the order of time."""
    before: Lease | None = None
    attempts = record.attempts_on(name)
    first = 0
    for lease in [*record.leases_on(name), None]:
        since = before.until if before is not None else 0.0
        until = lease.since if lease is not None else record.ended_at
        if since < until:
            while first < len(attempts) and attempts[first].until <= since:
                first += 1
            wanting = [one for one in _begun_before(until, attempts, first) if one.until > since]
            for crowd in _crowds(wanting):
                wanted, ends = max(since, crowd[0].ask.at), min(max(one.until for one in crowd), until)
                served = lease if lease is not None and ends == until else None
                waited = any(one.ask.at < since for one in crowd)
                faults = tuple(_concerning(record, crowd, wanted, ends))
                yield Gap(name, wanted, before, served, ends, waited, tuple(crowd), faults)
        if lease is not None and (before is None or lease.until > before.until):
            before = lease


def _concerning(record: Record, crowd: list[Attempt], since: float, until: float) -> Iterator[Fault]:
    """Faults that struck those who wanted it while they did, or no worker at all: the engine, or the way to it."""
    for fault in record.faults_within(since, until):
        if record.strikes_no_worker(fault) or any(
            one.worker in fault.struck and one.ask.at <= fault.over and one.until >= fault.since for one in crowd
        ):
            yield fault


def _begun_before(until: float, attempts: list[Attempt], first: int) -> Iterator[Attempt]:
    for place in range(first, len(attempts)):
        if attempts[place].ask.at >= until:
            return
        yield attempts[place]


def _crowds(attempts: list[Attempt]) -> Iterator[list[Attempt]]:
    """Those who wanted it at the same time, or so soon after each other that it was wanted all the while."""
    crowd: list[Attempt] = []
    until = 0.0
    for attempt in attempts:
        if crowd and attempt.ask.at > until + PAUSE:
            yield crowd
            crowd = []
        crowd.append(attempt)
        until = max(until, attempt.until)
    if crowd:
        yield crowd


def due(record: Record, gap: Gap) -> float:
    """By when the next grant was due: what may still be held on the engine has lapsed by then.

    That is the lease before, unless it was released; a grant of which nobody knows; the leases that an engine still
    has when it comes back; and a turn for each one in the queue that died or was stopped while waiting. Whoever wants
    several names at once may have this one, unseen, while it waits for another.
    """
    lapse, slack = BOUNDS.get(record.run.engine, USUAL)
    lapse *= record.run.ttl
    times = [gap.wanted]
    if gap.before is not None:
        times.append(gap.before.until + (0.0 if gap.before.release_confirmed else lapse))
        if gap.before.released is not None:
            times.append(gap.before.released.at + (0.0 if gap.before.release_confirmed else lapse))
    over = [one for one in gap.attempts if one.until < gap.until]
    times += [one.until + lapse for one in over if one.unknown or (one.end and one.end.kind == "failed")]
    for fault in gap.faults:
        slack = max(slack, ENGINE_BACK)
        times.append(min(fault.over, gap.until) + lapse)
    if record.run.workload == "several":
        others = [
            one for one in record.leases if one.name != gap.name and one.until > gap.wanted and one.since < gap.until
        ]
        times += [min(one.until, gap.until) + lapse for one in others]
    stands_since = gap.before.since if gap.before is not None else 0.0
    stopped = sum(stands_since <= one.until < gap.until for one in record.stopped_on(gap.name))
    return max(times) + slack + stopped * TURN


def outside_faults(gap: Gap, since: float) -> float:
    """How much of a gap lies outside of all faults."""
    at, total = since, 0.0
    for fault in sorted(gap.faults, key=lambda one: one.since):
        total += max(min(fault.since, gap.until) - at, 0.0)
        at = max(at, fault.over)
    return total + max(gap.until - at, 0.0) if at < math.inf else total
