"""Several processes want one name: how often it changes hands, how fairly, and how fast."""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import dataclass, field
from typing import NamedTuple

from leasehold.bench.contestant import Contestant
from leasehold.bench.contestants import LEASEHOLD, peers_at
from leasehold.bench.crew import Crew
from leasehold.bench.effort import Run
from leasehold.bench.figures import Spread, in_turn, jain, quantile, spread
from leasehold.bench.peers import PYTHON_REDIS_LOCK, REDIS_PY
from leasehold.bench.places import Place
from leasehold.bench.results import Aim, Figure, Finding, Row, Table
from leasehold.worlds import boot_clock

BODY = 0.005
"""How long a holder works, where it works."""
LEAD = 0.1
"""The crew is told this long ahead when a round starts."""
STARVED = 10
"""A waiter is starved that waits for more than so many times its fair share."""

CHANGES, FAIRNESS, LONGEST = "changes/s (p10-p90)", "fairness (Jain)", "longest wait ms"
MIDDLE, SLOWEST = "hand-off p50 µs", "hand-off p99 µs"
EFFORT = "processor µs a change"
AIMS = ((PYTHON_REDIS_LOCK, 4.0), (REDIS_PY, 100.0))
"""How many times the holder changes of these peers Leasehold is to reach."""
FAIR = 0.9
"""On other engines it is to be ahead of each peer that is fair by this index; who lets the last holder in again is
faster, and no measure."""


class Hold(NamedTuple):
    """One hold by one process, on a clock that all share."""

    asked: float
    acquired: float
    releasing: float
    by: int


class TwoHolders(AssertionError):
    """Two processes held the name at the same time."""


@dataclass(frozen=True, slots=True)
class Contention:
    """What happened in one round."""

    changes_a_second: float
    fairness: float
    longest_wait: float
    fair_share: float
    """How long a waiter would wait if all waited for the same time."""
    hand_offs: list[float]
    """From one process that lets go to another one that holds, in seconds."""
    effort: float
    """Processor time of all processes for each change, in seconds. What a server takes is no part of it."""


def analyse(
    holds: list[list[tuple[float, float, float]]], begins: float, seconds: float, processor: float = 0.0
) -> Contention:
    """Judge a round by what every process noted, and by the processor time of them all.

    Holds that began after the round are only its clearing up.
    """
    ends = begins + seconds
    every = sorted(
        (Hold(*times, by) for by, noted in enumerate(holds) for times in noted), key=lambda hold: hold.acquired
    )
    within = [hold for hold in every if hold.acquired < ends]
    hand_offs, changes = [], 0
    for one, following in itertools.pairwise(every):
        if following.acquired < one.releasing:
            raise TwoHolders(f"process {following.by} held the name before process {one.by} had let go of it")
        if following.acquired < ends and following.by != one.by:
            changes += 1
            hand_offs.append(following.acquired - one.releasing)
    served = [sum(hold.by == by for hold in within) for by in range(len(holds))]
    waits = [min(hold.acquired, ends) - hold.asked for hold in every if hold.asked < ends]
    return Contention(
        changes_a_second=changes / seconds,
        fairness=jain(served),
        longest_wait=max(waits, default=seconds),
        fair_share=len(holds) * seconds / max(len(within), 1),
        hand_offs=hand_offs,
        effort=processor / max(changes, 1),
    )


@dataclass(slots=True)
class Lane:
    """One contestant with its crew, and its rounds."""

    contestant: Contestant
    crew: Crew
    rush: list[Contention] = field(default_factory=list)
    work: list[Contention] = field(default_factory=list)

    def round(self, seconds: float, body: float) -> Contention:
        """Let the crew contend for so long."""
        begins = boot_clock() + LEAD
        answers = self.crew.ask(begins=begins, seconds=seconds, body=body)
        processor = sum(answer["processor"] for answer in answers)
        return analyse([answer["holds"] for answer in answers], begins, seconds, processor)

    @property
    def fairness(self) -> float:
        """Jain's index of the rounds in which holders work."""
        return quantile([one.fairness for one in self.work], 0.5)


def measure(run: Run) -> Finding:
    """Every engine, every contestant that runs there."""
    finding = Finding([], [])
    for place in run.places:
        with contextlib.ExitStack() as stack:
            lanes = _lanes(run, place, stack)
            _warm_up(lanes)
            with run.steps.of(
                f"{run.effort.crew} processes on {place.engine}", len(lanes) * run.effort.rush_rounds
            ) as advance:
                for _number, lane in in_turn(lanes, run.effort.rush_rounds):
                    lane.rush.append(lane.round(run.effort.rush, body=0.0))
                    advance()
            for _number, lane in in_turn(lanes, run.effort.work_rounds):
                lane.work.append(lane.round(run.effort.work, body=BODY))
        finding.tables.append(_table(run, place, lanes))
        finding.aims.extend(_aims(place, lanes))
    return finding


def _lanes(run: Run, place: Place, stack: contextlib.ExitStack) -> list[Lane]:
    contestants = [LEASEHOLD, *peers_at(place, contending=True)]
    lanes = []
    with run.steps.of(f"starting processes for {place.engine}", len(contestants)) as advance:
        for contestant in contestants:
            crew = Crew(run.effort.crew, "contend", place, contestant=contestant.key, name="contended")
            lanes.append(Lane(contestant, stack.enter_context(crew)))
            advance()
    return lanes


def _warm_up(lanes: list[Lane]) -> None:
    for lane in lanes:
        lane.round(0.1, body=0.0)


def _table(run: Run, place: Place, lanes: list[Lane]) -> Table:
    rows = []
    for lane in lanes:
        hand_offs = [seconds * 1e6 for one in lane.work for seconds in one.hand_offs]
        figures = {
            CHANGES: Figure.of(spread([one.changes_a_second for one in lane.rush]), "per s"),
            EFFORT: Figure(quantile([one.effort for one in lane.rush], 0.5) * 1e6, "us"),
            FAIRNESS: Figure(lane.fairness, "index"),
            LONGEST: Figure(max(one.longest_wait for one in lane.work) * 1e3, "ms"),
        }
        if hand_offs:
            figures[MIDDLE] = Figure(quantile(hand_offs, 0.5), "us")
            figures[SLOWEST] = Figure(quantile(hand_offs, 0.99), "us")
        rows.append(Row(lane.contestant.label, figures))
    return Table(
        "contended",
        f"{run.effort.crew} processes, one name, on {place.engine}",
        [CHANGES, EFFORT, FAIRNESS, LONGEST, MIDDLE, SLOWEST],
        rows,
        [
            f"Changes, and what they took, with an empty body; everything else with a body of {BODY * 1e3:g} ms.",
            "Processor time is that of all processes together; what the server took is no part of it.",
        ],
    )


def _aims(place: Place, lanes: list[Lane]) -> list[Aim]:
    ours, *others = lanes
    bounds = {peer.key: bound for peer, bound in AIMS}
    if not place.speaks_redis:
        bounds = {lane.contestant.key: 1.0 for lane in others if lane.fairness >= FAIR and not lane.contestant.bare}
    aims = []
    for lane in others:
        if lane.contestant.key in bounds:
            what = f"holder changes on {place.engine}, to those of {lane.contestant.label}"
            seen = Figure.of(_times(ours, lane), "times")
            aims.append(Aim(what, "at least", bounds[lane.contestant.key], seen))
    aims.append(Aim(f"fairness (Jain) on {place.engine}", "at least", 0.99, Figure(ours.fairness, "index")))
    shares = Figure(max(one.longest_wait / one.fair_share for one in ours.work), "times")
    aims.append(Aim(f"longest wait on {place.engine}, to a fair share", "at most", STARVED, shares))
    return aims


def _times(ours: Lane, peer: Lane) -> Spread:
    """Round by round; a peer whose holder did not change even once counts as one change in the round."""
    least = 1.0 / max(len(peer.rush), 1)
    return spread(
        [
            mine.changes_a_second / max(its.changes_a_second, least)
            for mine, its in zip(ours.rush, peer.rush, strict=True)
        ]
    )
