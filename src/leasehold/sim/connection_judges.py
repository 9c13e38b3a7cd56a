"""Judges for engines whose leases live and die with a connection, which either side can lose without the other.

Nobody excludes while a holder has not heard that the server lost its connection. What is claimed instead: it hears of
that as soon as it can, and in any case does not believe for longer than what it was last promised.
"""

from __future__ import annotations

from leasehold.engines.sql_session import LOOK_EVERY
from leasehold.sim.history import Noticed
from leasehold.sim.judges import SMALL, Verdict, Violation
from leasehold.sim.record import Record


def connection(record: Record) -> Verdict:
    """Whose connection broke ends its belief within `LOOK_EVERY` when it can see that, and within a TTL when not."""
    beliefs = {belief.holder: belief for belief in record.beliefs}
    for event in record.of(Noticed):
        belief = beliefs.get(event.holder)
        if belief is None or belief.token != event.token or "freeze" in record.kinds:
            continue
        soon = LOOK_EVERY * record.slowest + SMALL
        due = record.awake_after(belief.who, max(event.at, belief.since), soon) + soon
        if belief.until > due and not record.died_within(belief.who, event.at, due):
            yield Violation(
                "connection",
                due,
                f"{belief.holder} could see that its connection broke, and believed for {belief.until - event.at:.3f} "
                "s more",
                (belief.holder,),
            )
    longest = record.plan.longest_ttl * record.slowest + SMALL
    for (holder, token), lost_at in record.broken.items() if "freeze" not in record.kinds else ():
        belief = beliefs.get(holder)
        if belief is not None and belief.token == token and belief.until > lost_at + longest:
            yield Violation(
                "connection",
                lost_at + longest,
                f"the server lost the connection of {holder}, and {belief.until - lost_at:.3f} s later it still "
                "believed in its lease",
                (holder,),
            )


def collision(record: Record) -> Verdict:
    """Where two names have the same key, only one of them is ever had: of the other, an error tells.

    Not claimed where another server took over, which may not know whose the key was.
    """
    if "collision" not in record.kinds or "failover" in record.kinds:
        return
    first: str | None = None
    for belief in record.beliefs:
        first = first or belief.name
        if belief.name != first:
            yield Violation(
                "collision",
                belief.since,
                f"{belief.holder} has {belief.name!r}, whose key is that of {first!r}",
                (belief.holder,),
            )
