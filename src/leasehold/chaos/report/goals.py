"""The goals that Leasehold sets itself: what was aimed at, what a run has seen of it, and who checks the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from leasehold.chaos.checkers import Verdict, patience
from leasehold.chaos.checkers.gaps import BOUNDS, ENGINE_BACK, USUAL
from leasehold.chaos.checkers.record import ALLOWANCE, Lease, Record

TOLD_WITHIN = 0.05
"""Seconds after its deadline in which a holder is told that its lease is over."""
ENOUGH = 20
"""Grants for each worker without which shares of them say nothing."""
LEAST_SHARE = 0.1


class Goal(NamedTuple):
    """One goal, and what was seen of it."""

    id: str
    text: str
    seen: str
    met: bool | None
    """None: nothing in this run could tell."""
    missed_by: str = ""
    shown_by: str = ""
    """Who checks it, where no run of the chaos tester can."""


def goals(record: Record, verdicts: list[Verdict]) -> list[Goal]:
    """Each goal: those that a run of the chaos tester can check, and after them those that others check."""
    by_name = {verdict.name: verdict for verdict in verdicts}
    elsewhere = [Goal(name, text, "", None, "", shown_by) for name, text, shown_by in ELSEWHERE]
    return [*(make(record, by_name) for make in _GOALS), *elsewhere]


Found = dict[str, Verdict]


def _count(found: Found, *parts: tuple[str, str]) -> tuple[str, bool | None, str]:
    """How often each of these was seen: none of them may be."""
    asked = [(found[name], figure) for name, figure in parts if found[name].status != "not asked"]
    if not asked:
        return "not asked in this run", None, ""
    seen = [(int(verdict.figures.get(figure, 0)), figure) for verdict, figure in asked]
    text = ", ".join(f"{count} {figure}" for count, figure in seen)
    total = sum(count for count, _ in seen)
    return text, total == 0, str(total or "")


def _time(seen: float | None, bound: float, count: int) -> tuple[str, bool | None, str]:
    if seen is None or not count:
        return "not asked in this run", None, ""
    met = seen <= bound
    return f"{_seconds(seen)} at most, of {count:,}", met, "" if met else _seconds(seen - bound)


def _seconds(value: float) -> str:
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.2f} s"


def _fenced(_record: Record, found: Found) -> Goal:
    return Goal(
        "R1",
        "The fenced resource loses no update and accepts no stale write",
        *_count(found, ("lost updates", "lost (fenced)"), ("stale writes", "accepted stale (fenced)")),
    )


def _tokens(_record: Record, found: Found) -> Goal:
    return Goal(
        "R2",
        "Tokens strictly increase in real time, with no duplicates",
        *_count(found, ("token order", "duplicates"), ("token order", "out of order")),
    )


def _beliefs(_record: Record, found: Found) -> Goal:
    return Goal(
        "R3",
        "Beliefs overlap only where a fault stopped a holder or took its lease away",
        *_count(found, ("exclusive", "overlaps"), ("permits", "too many")),
    )


def _never_told(_record: Record, found: Found) -> Goal:
    return Goal("R4", "Every overtaken holder is told", *_count(found, ("told", "never told")))


def _told_in_time(record: Record, found: Found) -> Goal:
    times = found["told"].samples.get("told after its deadline", ())
    goal = f"A holder that nothing stopped is told within {_seconds(TOLD_WITHIN)} of its own deadline"
    if record.run.pauses_holders:
        return Goal("R4", goal, "not asked: faults of this run stop holders", None)
    return Goal("R4", goal, *_time(max(times, default=None), TOLD_WITHIN, len(times)))


def _unheld(record: Record, found: Found) -> Goal:
    """Grants that were over when they were used, of workers that nothing stopped meanwhile."""
    goal = "A grant that comes after its own deadline, or after the wait, is not used"
    leases = [one for one in record.leases if not record.strikes_on(one.worker, one.ask.at, one.since)]
    dated = [one for one in leases if "believed" in one.granted.detail]
    if not dated or found["wait overrun"].status == "not asked":
        return Goal("R5", goal, "not asked in this run", None)
    over = sum(one.granted.detail["believed"] < one.since for one in dated)
    late = sum(_waited(one, record) > patience.GRACE + ALLOWANCE for one in leases)
    seen = f"{over} used after their deadline, {late} after the wait, of {len(leases):,}"
    return Goal("R5", goal, seen, over + late == 0, str(over + late or ""))


def _waited(lease: Lease, record: Record) -> float:
    """For how long beyond its wait it was waited for."""
    return lease.since - lease.ask.at - float(lease.ask.detail.get("wait", record.run.wait))


def _histories(_record: Record, found: Found) -> Goal:
    names = ("linearizable", "permits", "idempotency", "partitions", "once-only jobs")
    asked = [found[name] for name in names if found[name].status != "not asked"]
    goal = "Histories fit a sequential model, unknown outcomes included"
    if not asked:
        return Goal("R8", goal, "not asked in this run", None)
    seen = ", ".join(f"{one.name}: {one.status} ({one.judged} {one.of})" for one in asked)
    if any(one.status == "unknown" for one in asked) and not any(one.status == "violated" for one in asked):
        return Goal("R8", goal, seen, None)
    broken = sum(len(one.violations) for one in asked)
    return Goal("R8", goal, seen, broken == 0, str(broken or ""))


def _after_death(record: Record, found: Found) -> Goal:
    leases, slack = BOUNDS.get(record.run.engine, USUAL)
    bound = leases * record.run.ttl + slack
    times = found["recovery"].samples.get("after a death", ())
    goal = f"A holder dies: the next grant comes within {_seconds(bound)}"
    return Goal("L1", goal, *_time(max(times, default=None), bound, len(times)))


def _engine_back(record: Record, found: Found) -> Goal:
    leases, slack = BOUNDS.get(record.run.engine, USUAL)
    bound = leases * record.run.ttl + max(ENGINE_BACK, slack)
    times = found["recovery"].samples.get("after the engine came back", ())
    goal = f"The engine is back: the next grant comes within {_seconds(bound)}"
    return Goal("L2", goal, *_time(max(times, default=None), bound, len(times)))


def _waits(_record: Record, found: Found) -> Goal:
    verdict = found["wait overrun"]
    over = float(verdict.figures.get("furthest beyond its wait (s)", 0.0))
    goal = f"An acquisition ends within {_seconds(patience.GRACE)} of its wait, whatever the engine does"
    return Goal("L3", goal, *_time(over, patience.GRACE, verdict.judged))


def _alive(_record: Record, found: Found) -> Goal:
    counted = _count(found, ("liveness", "hung"), ("liveness", "idle"), ("liveness", "failed after the faults"))
    goal = "Nobody hangs, no wanted name lies idle for three TTLs, and all works again after the faults"
    if found["liveness"].status == "unknown":
        return Goal("L4", goal, found["liveness"].why, None)
    return Goal("L4", goal, *counted)


def _shares(record: Record, _found: Found) -> Goal:
    goal = f"Each worker is granted at least a tenth of its fair share, where that is {ENOUGH} grants or more"
    counts = dict.fromkeys(record.workers, 0)
    for lease in record.leases:
        counts[lease.worker] += 1
    fair = len(record.leases) / max(len(counts), 1)
    if fair < ENOUGH or len(counts) < 2:
        return Goal("L6", goal, "not asked in this run", None)
    least = min(counts.values()) / fair
    met = least >= LEAST_SHARE
    seen = f"{least:.2f} of a fair share at least, of {len(counts)} workers"
    return Goal("L6", goal, seen, met, "" if met else f"{LEAST_SHARE - least:.2f} of a share")


_GOALS: tuple[Callable[[Record, Found], Goal], ...] = (
    _fenced,
    _tokens,
    _beliefs,
    _never_told,
    _told_in_time,
    _unheld,
    _histories,
    _after_death,
    _engine_back,
    _waits,
    _alive,
    _shares,
)
ELSEWHERE: Final = (
    ("R6", "No simulated history breaks a claim: 10,000 for each change, 500,000 a night", "make sim N=500000"),
    ("R7", "Each of 25 planted bugs is caught within 1,000 histories, five by real faults", "make test, make planted"),
    ("L5", "A majority lock works with any minority down, in twice the time at most", "make test"),
    ("C1", "10,000 leases in one process: one keeper, 3 KiB each, a quarter of a core", "leasehold bench --only many"),
    ("C2", "10,000 waiting tasks: one connection, 4 KiB each, 4 requests a second", "leasehold bench --only many"),
    ("C3", "10,000 attempts in vain leave nothing on the engine", "make test"),
    ("C4", "A day at 100 holds a second: memory grows by 5 % at most, no file stays open", "make soak SOAK_FOR=24h"),
    ("F1", "50,000 fuzzed inputs: no untyped error, and nothing sent for what is invalid", "make test, make nightly"),
    ("F2", "No two names share a key, of a million pairs", "make test"),
    ("F3", "A planted secret is found in no repr, log, traceback, page or metric", "make test"),
    ("F4", "1,000 answers of nonsense at every step: never a false grant", "make test, make nightly"),
    ("F5", "Interrupted or cancelled at 2,000 points: free within the TTL and 0.5 s", "make test"),
)
"""What is asked of the library, or of one engine for long, and not of a run: its id, what it says, who checks it."""
