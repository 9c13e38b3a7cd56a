"""A name whose holder died, or whose engine was away, is granted again in time."""

from __future__ import annotations

import math

from leasehold.chaos.checkers.gaps import Gap, due, gaps
from leasehold.chaos.checkers.record import ALLOWANCE, Record
from leasehold.chaos.checkers.verdict import Verdict, Violation, found

NAME = "recovery"
CLAIM = "After a holder died or the engine was away, the next one is granted the name in time: no lock is stuck."


def check(record: Record) -> Verdict:
    """Look at each time in which a name was wanted and nobody had it.

    The next grant is due when everything that may still be held on the engine has lapsed, and a little later. How long
    it took after deaths, after faults of the engine, and from a release to the next holder are the distributions of the
    report.
    """
    violations: list[Violation] = []
    judged = 0
    deaths: list[float] = []
    returns: list[float] = []
    hand_overs: list[float] = []
    slowest = 0.0
    for name in record.names:
        for gap in gaps(record, name):
            judged += 1
            overrun = gap.until - due(record, gap)
            slowest = max(slowest, overrun)
            if overrun > ALLOWANCE:
                violations.append(_stuck(gap, overrun))
            if gap.next is None or gap.before is None:
                continue
            took = gap.until - gap.before.until
            # Where something else broke before the next grant was due, the time says nothing about a death.
            disturbed = any(fault.at > gap.before.until for fault in gap.faults)
            if gap.before.how == "died" and gap.wanted - gap.before.until < record.run.ttl and not disturbed:
                deaths.append(took)
            if gap.before.release_confirmed and gap.waited and not gap.faults:
                hand_overs.append(took)
            ended = max((fault.over for fault in gap.faults if record.strikes_no_worker(fault)), default=math.inf)
            if ended < gap.until:
                returns.append(gap.until - max(ended, gap.wanted))
    return found(
        NAME,
        CLAIM,
        judged=judged,
        of="gaps",
        violations=violations,
        figures={
            "stuck": sum("Nobody" in one.text for one in violations),
            "furthest beyond its time (s)": max(slowest, 0.0),
            "slowest after a death (s)": max(deaths, default=0.0),
            "slowest after the engine came back (s)": max(returns, default=0.0),
        },
        samples={
            label: tuple(values)
            for label, values in (
                ("hand-over", hand_overs),
                ("after a death", deaths),
                ("after the engine came back", returns),
            )
            if values
        },
        nothing="no name was wanted while nobody had it",
    )


def _stuck(gap: Gap, overrun: float) -> Violation:
    before = f"After {gap.before.worker} ({gap.before.how})" if gap.before is not None else "At first"
    shown = (*(gap.before.shown_by if gap.before else ()), *(gap.next.shown_by if gap.next else ()))
    if gap.next is None:
        text = (
            f"{before}, “{gap.name}” was wanted from {gap.wanted:.3f} s on. Nobody was granted it until the end of the "
            f"run, {overrun:.2f} s beyond its time."
        )
    else:
        text = (
            f"{before}, “{gap.name}” was wanted from {gap.wanted:.3f} s on, but {gap.next.worker} was granted it only "
            f"at {gap.until:.3f} s, {overrun:.2f} s beyond its time."
        )
    return Violation(gap.until, text, shown or tuple(one.ask for one in gap.attempts[:4]))
