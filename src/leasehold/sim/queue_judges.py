"""Judges for engines whose queue is kept by the server, where whoever is first has the name before it knows.

There the server's grants are in order by construction. What can go wrong is that somebody is not told of its turn, or
takes a turn that is not its own.
"""

from __future__ import annotations

from leasehold.sim.history import Freed, Granted
from leasehold.sim.judges import Verdict, Violation, within_assumptions
from leasehold.sim.plan import QUIET
from leasehold.sim.record import Record
from leasehold.sim.rooms import PROMPT


def turns(record: Record) -> Verdict:
    """In quiet histories, whose turn has come has its lease within `PROMPT`, if it still waits.

    Not claimed where a lock-delay may keep the name closed. Nor of one who lets go of it at once: on ZooKeeper, whoever
    finds the name taken exchanges the node that it came with for one that waits, and may be first in between.
    """
    if not record.kinds <= QUIET or record.plan.lock_delay:
        return
    let_go = [freed for freed in record.of(Freed) if freed.how == "released"]
    attempts = {attempt.began.holder: attempt for attempt in record.attempts}
    for grant in record.of(Granted):
        attempt = attempts[grant.holder]
        # Of several names that are taken together, each waits for those before it.
        if attempt.began.together or attempt.interrupted:
            continue
        if any(one.holder == grant.holder and grant.at <= one.at <= grant.at + PROMPT for one in let_go):
            continue
        if grant.at < attempt.answered and attempt.answered > grant.at + PROMPT:
            yield Violation(
                "turns",
                grant.at + PROMPT,
                f"it was the turn of {grant.holder} to have {grant.name!r}, and for {PROMPT} s it did not know",
                (grant.holder,),
            )


def given(record: Record) -> Verdict:
    """Each token that a caller got is one that the server gave to it, with the name.

    And within assumptions, exclusive leases that follow each other have higher and higher ones.
    """
    tokens = {(grant.name, grant.holder, grant.token) for grant in record.of(Granted)}
    latest: dict[str, tuple[int, str]] = {}
    for belief in sorted(record.beliefs, key=lambda one: one.since):
        if (belief.name, belief.holder, belief.token) not in tokens:
            yield Violation(
                "given",
                belief.since,
                f"{belief.holder} has {belief.name!r} with token {belief.token}, which it was not given",
                (belief.holder,),
            )
        before, whose = latest.get(belief.name, (0, ""))
        is_lost = record.broke_off(belief, belief.since)
        if belief.mode == "exclusive" and belief.token <= before and within_assumptions(record) and not is_lost:
            yield Violation(
                "given",
                belief.since,
                f"{belief.holder} got {belief.name!r} after {whose} but has token {belief.token}, not above {before}",
                (belief.holder, whose),
            )
        latest[belief.name] = max((belief.token, belief.holder), latest.get(belief.name, (0, "")))
