"""The goals that Leasehold sets itself, as far as a run can check them: what was aimed at, what was seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from leasehold.chaos.checkers import Verdict, patience
from leasehold.chaos.checkers.gaps import BOUNDS, ENGINE_BACK, USUAL
from leasehold.chaos.checkers.record import Record

TOLD_WITHIN = 0.05
"""Seconds after its deadline in which a holder is told that its lease is over."""


class Goal(NamedTuple):
    """One goal, and what was seen of it."""

    id: str
    text: str
    seen: str
    met: bool | None
    """None: nothing in this run could tell."""
    missed_by: str = ""


def goals(record: Record, verdicts: list[Verdict]) -> list[Goal]:
    """Each goal that a run of the chaos tester can check."""
    by_name = {verdict.name: verdict for verdict in verdicts}
    return [make(record, by_name) for make in _GOALS]


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


_GOALS: tuple[Callable[[Record, Found], Goal], ...] = (
    _fenced,
    _tokens,
    _beliefs,
    _never_told,
    _told_in_time,
    _histories,
    _after_death,
    _engine_back,
    _waits,
    _alive,
)
