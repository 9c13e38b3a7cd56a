"""Judges: pure functions of a recorded history. Each says precisely what is claimed, and when.

Where faults lie beyond what a lease can bear (see `leasehold.sim.plan.BEYOND`), the claims that rest on time are not
made; those about tokens and fences still are. Whoever judges knows true time; nobody in the world does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

from leasehold.core.engine import Mode
from leasehold.core.held import HELD_TOO_LONG, RAN_OUT, RELEASED
from leasehold.core.table import SLACK, TURN
from leasehold.sim.history import (
    Broke,
    Ended,
    Fault,
    Freed,
    Got,
    Granted,
    History,
    Left,
    Queued,
    Refused,
    Told,
    Touched,
    Unqueued,
)
from leasehold.sim.plan import LAST_WAIT, QUIET, STILL, TABLE, UNBEARABLE
from leasehold.sim.record import CRASHED, Belief, Record
from leasehold.sim.rooms import PROMPT, Room

SMALL = 0.02
"""Seconds that a process may take to look, once it may."""
TINY = 1e-6
"""What arithmetic may lose."""


class Violation(NamedTuple):
    """A claim that a history breaks."""

    judge: str
    at: float
    text: str
    holders: tuple[str, ...]


Verdict = Iterator[Violation]


def within_assumptions(record: Record) -> bool:
    """No fault of a kind that no lease can bear."""
    return record.kinds.isdisjoint(UNBEARABLE)


def exclusion(record: Record) -> Verdict:
    """No two incompatible leases on one name are believed in at the same time, and no more permits than there are.

    A lease is believed in from the return of acquire until its deadline on the holder's own clock, or until it was
    released or latched as lost, or its process died. A pause is no excuse: the clock counts it, and belief is what the
    clock says when the holder looks. Claimed when the faults are within assumptions. Always claimed: no lease is
    returned that its own deadline has already ended. Where a lease ends with its connection: not of one whose
    connection the server has lost; that is the business of `leasehold.sim.connection_judges`.
    """
    for got in record.of(Got):
        if got.valid_until <= got.at:
            yield Violation("exclusion", got.at, f"{got.holder} was returned after its own deadline", (got.holder,))
    if not within_assumptions(record):
        return
    for name in record.names:
        standing: list[Belief] = []
        for belief in sorted((one for one in record.beliefs if one.name == name), key=lambda one: one.since):
            standing = [one for one in standing if one.until > belief.since + TINY]
            if belief.until <= belief.since or record.broke_off(belief, belief.since):
                continue
            for other in standing:
                if not record.broke_off(other, belief.since) and not _compatible(belief.mode, other.mode):
                    yield Violation(
                        "exclusion",
                        belief.since,
                        f"{belief.holder} ({belief.mode}) and {other.holder} ({other.mode}) both believe to hold "
                        f"{name!r}, for {min(belief.until, other.until) - belief.since:.3f} s",
                        (belief.holder, other.holder),
                    )
            standing.append(belief)
            if belief.mode == "permit" and len(standing) > belief.limit:
                yield Violation(
                    "exclusion",
                    belief.since,
                    f"{len(standing)} believe to hold one of {belief.limit} permits of {name!r}",
                    tuple(one.holder for one in standing),
                )


def _compatible(one: Mode, other: Mode) -> bool:
    return one == other and one != "exclusive"


def tokens(record: Record) -> Verdict:
    """For each name, whoever was granted later has the higher token; no token is granted twice.

    In the order in which the server gave seats, and for all tokens that callers ever got. Whatever clocks, messages
    and processes do; not claimed when the server lost its data and its clock was also set back.
    """
    if _tokens_may_fall(record):
        return
    highest: dict[str, tuple[int, str]] = {}
    for event in record.of(Granted):
        token = record.token_got(event)
        before, whose = highest.get(event.name, (0, ""))
        if token and token <= before:
            yield Violation(
                "tokens",
                event.at,
                f"{event.holder} was granted {event.name!r} after {whose} but has token {token}, not above {before}",
                (event.holder, whose),
            )
        if token > before:
            highest[event.name] = (token, event.holder)
    owners: dict[tuple[str, int], str] = {}
    for belief in record.beliefs:
        owner = owners.setdefault((belief.name, belief.token), belief.holder)
        if owner != belief.holder or record.times_got[belief.holder] > 1:
            yield Violation(
                "tokens",
                belief.since,
                f"token {belief.token} of {belief.name!r} was given to {owner} and to {belief.holder}",
                (owner, belief.holder),
            )


def _tokens_may_fall(record: Record) -> bool:
    return not record.kinds.isdisjoint({"wipe", "failover"}) and not record.kinds.isdisjoint({"back", "strobe"})


def fence(record: Record) -> Verdict:
    """A fence accepts no token below one that it has seen, and refuses no other.

    With reads fenced as well, no update is ever lost: every accepted write is based on the one accepted before it.
    Claimed whenever tokens are.
    """
    if _tokens_may_fall(record):
        return
    seen: dict[str, int] = {}
    latest: dict[str, int] = {}
    for event in record.of(Touched):
        floor = seen.get(event.resource, -1)
        fenced = event.fence == "both" or (event.fence == "writes" and event.write > 0)
        what = f"{event.holder} with token {event.token} on {event.resource}"
        if fenced and event.accepted and event.token < floor:
            yield Violation("fence", event.at, f"accepted: {what}, where {floor} has been seen", (event.holder,))
        if not event.accepted and event.token >= floor:
            yield Violation("fence", event.at, f"refused: {what}, where only {floor} has been seen", (event.holder,))
        if not event.accepted:
            continue
        if fenced:
            seen[event.resource] = max(floor, event.token)
        if event.write:
            if event.fence == "both" and latest.get(event.resource, 0) != event.based_on:
                yield Violation(
                    "fence",
                    event.at,
                    f"update lost: {what} overwrote write {latest[event.resource]}, having read {event.based_on}",
                    (event.holder,),
                )
            latest[event.resource] = event.write


def lost_updates(record: Record, fence_kind: str) -> int:
    """How many updates were lost on resources with this kind of fence; what a fence is there to prevent."""
    latest: dict[str, int] = {}
    lost = 0
    for event in record.of(Touched):
        if event.fence == fence_kind and event.write and event.accepted:
            lost += latest.get(event.resource, 0) != event.based_on
            latest[event.resource] = event.write
    return lost


def told(record: Record) -> Verdict:
    """A loss is told in time, stays told, and is known before anybody else can be granted the name.

    In time: no later than `SMALL` after the deadline, or after the end of the pause in which the deadline fell, by
    the keeper or by an operation that raises `LeaseLost`. Not to a process that died. Stays: no deadline moves after
    it has passed (unless the clock stood still meanwhile), and no end is undone. Known before: whenever the server
    grants a seat to another, belief in incompatible leases is over; claimed within assumptions only.
    """
    tellings: dict[str, list[Told]] = {}
    for event in record.of(Told):
        tellings.setdefault(event.holder, []).append(event)
    for belief in record.beliefs:
        yield from _told_in_time(record, belief, tellings.get(belief.holder, []))
    for end in record.of(Ended):
        if not end.reason:
            yield Violation("told", end.at, f"{end.holder} was revived after its end", (end.holder,))
    for move in record.revived if "freeze" not in record.kinds else []:
        yield Violation("told", move.at, f"the deadline of {move.holder} moved after it had passed", (move.holder,))
    if within_assumptions(record):
        yield from _known_before_next_grant(record)


def _told_in_time(record: Record, belief: Belief, tellings: list[Told]) -> Verdict:
    if belief.reason in (RELEASED, CRASHED) or belief.reason == "":
        return
    due = record.awake_after(belief.who, belief.until, SMALL) + SMALL
    if record.died_within(belief.who, belief.until, due):
        return
    first = min((event.at for event in tellings), default=record.ended_at)
    if first > due:
        yield Violation(
            "told",
            belief.until,
            f"{belief.holder} was lost and its holder heard of it {first - belief.until:.3f} s later",
            (belief.holder,),
        )


def _known_before_next_grant(record: Record) -> Verdict:
    for grant in record.of(Granted):
        for belief in record.beliefs:
            if (
                belief.name == grant.name
                and belief.holder != grant.holder
                and belief.since < grant.at < belief.until - TINY
                and not record.broke_off(belief, grant.at + TINY)
                and not _compatible(belief.mode, grant.mode)
            ):
                yield Violation(
                    "told",
                    grant.at,
                    f"{grant.holder} was granted {grant.name!r} while {belief.holder} still believed in its lease",
                    (grant.holder, belief.holder),
                )


def liveness(record: Record) -> Verdict:
    """Once the faults are over, everybody who is alive and patient is served, and no name lies idle.

    Idle: somebody alive waits for it and nobody believes to hold it; for at most three of the longest TTLs, the
    lock-delay (longer if the server's clock was set back), and a turn for each place that there was in the queue.
    Also, at any time: nobody is refused because of a lease of its own.
    """
    calm = record.calm_at
    for attempt in record.attempts:
        patient = attempt.began.at >= calm and attempt.began.wait >= LAST_WAIT
        collides = "collision" in record.kinds and attempt.outcome == "EngineError"
        if patient and attempt.token is None and not attempt.interrupted and not collides:
            yield Violation(
                "liveness",
                min(attempt.answered, record.ended_at),
                f"{attempt.began.holder} waited for {attempt.began.name!r} in good weather and was not served: "
                f"{attempt.outcome or 'it waits still'}",
                (attempt.began.holder,),
            )
    plan = record.plan
    # A lock-delay is kept on the server's clock; the longest that it can become is what the clock was set back by.
    set_back = (
        sum(fault.by for fault in record.of(Fault) if fault.kind in ("back", "strobe")) if plan.lock_delay else 0.0
    )
    for name in record.names:
        turns = record.longest_queue(name) * TURN / 1_000_000
        allowed = (3 * plan.longest_ttl + plan.lock_delay + turns + set_back) * record.slowest
        for since, until in record.idle(name):
            if until - since > allowed:
                yield Violation("liveness", until, f"{name!r} lay idle for {until - since:.1f} s while waited for", ())
    yield from _refused_by_itself(record)


def takeover(record: Record) -> Verdict:
    """Once the faults are over, who is first in the queue looks for itself when a lease runs out that nobody ends.

    Where processes only died, stopped, or were interrupted, no name lies idle, while somebody alive waits for it, for
    longer than what a lease lasts, the lock-delay, and a turn for each who stood before the one that has it then, or
    before one who waited and gave up, and went without it. The tighter twin of `liveness`, whose bound has room for all
    that bad weather leaves behind.
    """
    if not record.kinds <= STILL or record.plan.engine != TABLE.engine:
        return
    plan = record.plan
    for name in record.names:
        grants = [event for event in record.of(Granted) if event.name == name]
        for since, until in record.idle(name):
            following = next((grant.holder for grant in grants if grant.at >= since), "")
            waited = [one for one in record.attempts if one.began.at < until and one.answered > since]
            asked = {following, *(one.began.holder for one in waited if one.began.name == name)}
            turns = max(record.gone_before(holder, name) for holder in asked) * TURN / 1_000_000
            allowed = (plan.longest_ttl + plan.lock_delay + turns + SLACK / 1_000_000) * record.slowest + PROMPT
            if until - since > allowed:
                yield Violation(
                    "takeover",
                    until,
                    f"{name!r} lay idle for {until - since:.1f} s before {following} took it over",
                    (following,),
                )


def _refused_by_itself(record: Record) -> Verdict:
    seated: dict[tuple[str, str], bool] = {}
    for event in record.events:
        if isinstance(event, Granted):
            seated[event.name, event.holder] = True
        elif isinstance(event, Freed):
            seated.pop((event.name, event.holder), None)
        elif isinstance(event, Refused) and (event.name, event.holder) in seated:
            yield Violation(
                "liveness", event.at, f"{event.holder} was told that {event.name!r} is held, by itself", (event.holder,)
            )


def leftovers(record: Record) -> Verdict:
    """Nothing is left behind: no seat, no place in a queue, no lease in a keeper, when all is over.

    In quiet histories also soon: what an attempt had, or a lease that ended, is gone from the server within a second
    (not claimed with a lock-delay, since then a lost lease has to run out there). A server that looks only now and then
    whether its waiters are still there may give a seat to one that left, and takes it back in the same breath.
    """
    for left in record.of(Left):
        yield Violation(
            "leftovers", left.at, f"a {left.what} of {left.holder} is left on {left.name!r}", (left.holder,)
        )
    if not record.kinds <= QUIET:
        return
    gone = {(event.name, event.holder): event for event in record.of(Freed)}
    unqueued = {(event.name, event.holder): event for event in record.of(Unqueued)}
    granted = {(event.name, event.holder): event for event in record.of(Granted)}
    queued = record.places
    for attempt in record.attempts:
        key, soon = (attempt.began.name, attempt.began.holder), attempt.finished + 1.0
        latest = max(soon, granted[key].at) if key in granted else soon
        if key in granted and not attempt.began.delay and (key not in gone or gone[key].at > latest):
            yield Violation("leftovers", soon, f"the seat of {key[1]} is still there though it is over", (key[1],))
        if key in queued and (key not in unqueued or unqueued[key].at > soon):
            yield Violation("leftovers", soon, f"the place of {key[1]} is still there though it is over", (key[1],))


def order(record: Record) -> Verdict:
    """In quiet histories, first come, first served: nobody is granted a name past an earlier waiter.

    Earlier: it had its place in the queue before the other had one (or, if the other never had one, before it was
    granted), and it still waits. Not claimed right after a lease that ran out, or while its lock-delay may last, or
    after a place that outlived its interrupted waiter: then nobody is woken, and a waiter that has meanwhile moved up
    to the head may not know it and let its turn go by.
    """
    if not record.kinds <= QUIET:
        return
    attempts = {attempt.began.holder: attempt for attempt in record.attempts}
    rooms = {name: Room(closes=record.plan.lock_delay > 0) for name in record.names}
    for event in record.events:
        if not isinstance(event, Granted | Freed | Queued | Unqueued):
            continue
        room = rooms[event.name]
        if isinstance(event, Granted) and room.woken:
            patient = [holder for holder in room.ahead_of(event.holder) if attempts[holder].answered > event.at]
            if patient:
                yield Violation(
                    "order", event.at, f"{event.holder} was granted {event.name!r} past {patient[0]}", (patient[0],)
                )
        room.follow(event, attempts)


def handover(record: Record) -> Verdict:
    """In quiet histories, who is at the head of the queue is served within `PROMPT` when there is room for it.

    Since the release that made room, or since it came to the head; not claimed after a lease that ran out, or after a
    place that outlived its interrupted waiter: then nobody is woken. And not where a lock-delay may keep it closed.
    """
    if not record.kinds <= QUIET or record.plan.lock_delay:
        return
    attempts = {attempt.began.holder: attempt for attempt in record.attempts}
    rooms = {name: Room(closes=False) for name in record.names}
    for event in record.events:
        if not isinstance(event, Granted | Freed | Queued | Unqueued):
            continue
        was = rooms[event.name].follow(event, attempts)
        if was is None:
            continue
        holder, since = was
        if attempts[holder].answered > event.at > since + PROMPT:
            yield Violation(
                "handover",
                event.at,
                f"{holder} was at the head of the queue for {event.name!r} and was not served for "
                f"{event.at - since:.2f} s though there was room",
                (holder,),
            )


def patience(record: Record) -> Verdict:
    """Acquire is over when its wait is, or one last short request and a grace later, whatever the engine does.

    With no wait, that request is the only one and may take a request's time. Several names need a request each, and
    a grace more to be given back. Not claimed where its own process was paused meanwhile.
    """
    for attempt in record.attempts:
        due = attempt.began.due
        late = attempt.answered - due
        if late > SMALL and not record.paused_within(attempt.began.who, attempt.began.at, attempt.answered):
            yield Violation(
                "patience",
                due,
                f"{attempt.began.holder} with a wait of {attempt.began.wait:.2f} s was over "
                f"{late:.2f} s after its time and all grace",
                (attempt.began.holder,),
            )


def lock_delay(record: Record) -> Verdict:
    """After a lease that was lost rather than released, its name stays closed for the delay that it asked for.

    Lost on the server, or (within assumptions, and if it was exclusive) lost by its holder, whose deadline comes
    first. Claimed when the server's clock was left alone and its data survived. Not of a lease that its caller
    has not been told of, if it lives: nobody works under it yet, and an engine may give it back. Who died cannot.
    """
    if not record.kinds.isdisjoint({"back", "forward", "strobe", "wipe"}):
        return
    if within_assumptions(record):
        yield from _closed_after_belief(record)
    yield from _closed_by_the_server(record)


def _closed_after_belief(record: Record) -> Verdict:
    for belief in record.beliefs:
        if belief.reason in (RAN_OUT, HELD_TOO_LONG) and belief.mode == "exclusive" and belief.delay:
            opens = belief.until + belief.delay / 1.005
            for grant in record.of(Granted):
                if grant.name == belief.name and belief.until < grant.at < opens:
                    yield Violation(
                        "lock_delay",
                        grant.at,
                        f"{grant.holder} was granted {grant.name!r} {opens - grant.at:.3f} s before the lock-delay of "
                        f"{belief.holder}, who lost it, was over",
                        (grant.holder, belief.holder),
                    )


def _closed_by_the_server(record: Record) -> Verdict:
    since = {attempt.began.holder: 0.0 if attempt.outcome == CRASHED else math.inf for attempt in record.attempts}
    since |= {one.holder: math.inf if one.reason == RELEASED else one.since for one in record.beliefs}
    closed: dict[str, list[Freed]] = {}
    for event in record.events:
        if isinstance(event, Freed) and event.closed_until:
            closed.setdefault(event.name, []).append(event)
        elif isinstance(event, Granted):
            for lost in closed.get(event.name, []):
                if since.get(lost.holder, 0.0) <= event.at < lost.closed_until - TINY:
                    yield Violation(
                        "lock_delay",
                        event.at,
                        f"{event.holder} was granted {event.name!r} {lost.closed_until - event.at:.3f} s before the "
                        f"lock-delay of {lost.holder} was over",
                        (event.holder, lost.holder),
                    )


def soundness(record: Record) -> Verdict:
    """No algorithm ends with an error that it does not declare, and none runs in circles."""
    for event in record.of(Broke):
        yield Violation("soundness", event.at, f"{event.who}: {event.error}", ())


JUDGES: tuple[Callable[[Record], Verdict], ...] = (
    exclusion,
    tokens,
    fence,
    told,
    liveness,
    takeover,
    leftovers,
    order,
    handover,
    patience,
    lock_delay,
    soundness,
)


def judge(history: History) -> list[Violation]:
    """All that is wrong with a history, in the order of time."""
    return judge_record(Record(history))


def judge_record(record: Record) -> list[Violation]:
    """The same, for who has put the history in order already."""
    found = [violation for one in JUDGES for violation in one(record)]
    return sorted(found, key=lambda violation: violation.at)
