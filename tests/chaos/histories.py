"""Histories for the tests of checkers and reports: made from a sequential model, so that every one of them is right.

The model has one thing happen after the other (grants, releases, lapses), and then lets everybody see it through a
window of time that contains the moment at which it happened. `Story` writes single events, for histories with a point.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from leasehold.chaos.checkers import Verdict, judge
from leasehold.chaos.faults import FAULTS
from leasehold.chaos.history import RESOURCE, RUN, Event, Kind
from leasehold.chaos.run_info import RunInfo

TTL = 2.0

RUN_INFO = RunInfo(
    engine="redis",
    address="redis://127.0.0.1:6379",
    subject="leasehold",
    workload="register",
    faults=("kill", "engine restart"),
    seed=7,
    seconds=30.0,
    ttl=TTL,
    workers=4,
    command="leasehold chaos --on redis://127.0.0.1:6379 --workload register --seed 7",
    wait=60.0,
)


def verdicts(history: list[Event], run: RunInfo = RUN_INFO) -> dict[str, Verdict]:
    """What the checkers say, by the name of the property."""
    return {verdict.name: verdict for verdict in judge(history, run)}


def violated(history: list[Event]) -> set[str]:
    """The properties that the history breaks."""
    return {name for name, verdict in verdicts(history).items() if verdict.status == "violated"}


class Story:
    """Writes a history, event by event."""

    def __init__(self, name: str = "orders") -> None:
        self.events: list[Event] = []
        self.name = name
        self._ops = 0
        self._places = 0

    @property
    def history(self) -> list[Event]:
        """What was written, in order."""
        return sorted(self.events, key=lambda event: event.at)

    def op(self) -> int:
        """The next number of an operation."""
        self._ops += 1
        return self._ops

    def add(self, at: float, worker: str, kind: Kind, op: int = 0, token: int | None = None, /, **detail: Any) -> Event:
        """One event."""
        event = Event(at, worker, kind, self.name, op, token, detail)
        self.events.append(event)
        return event

    def lease(
        self,
        worker: str,
        ask: float,
        granted: float,
        token: int | None = None,
        *,
        release: float | None = None,
        released: float | None = None,
        wait: float = 60.0,
        **detail: Any,
    ) -> int:
        """A grant, and if it is said when, its confirmed release. Its op is returned."""
        op = self.op()
        self.add(ask, worker, "ask", op, wait=wait, ttl=TTL, **detail)
        self.add(granted, worker, "granted", op, token, believed=granted + TTL, **detail)
        if release is not None:
            self.add(release, worker, "release", op, token)
            self.add(release + 0.01 if released is None else released, worker, "released", op, token)
        return op

    def write(
        self,
        at: float,
        worker: str,
        lease: int,
        token: int | None,
        value: Any,
        after: Any = None,
        *,
        kind: str = "register",
        side: str = "fenced",
        key: str = "",
        reads: bool = False,
        outcome: Kind = "wrote",
        logged: Kind | None = "accepted",
        **told: Any,
    ) -> None:
        """A write (or a read), seen by its worker and by the resource's own log."""
        op = self.op()
        what = {"resource": side, "kind": kind, "key": key or self.name}
        begin: Kind = "read" if reads else "write"
        self.add(at, worker, begin, op, token, **what, value=value, after=after, lease=lease)
        if logged is not None:
            self._places += 1
            detail = {"by": worker, "by_op": op, **({"reads": True} if reads else {}), "value": value, "after": after}
            kept = {name: one for name, one in detail.items() if one not in (None, False)}
            self.events.append(
                Event(at + 0.001, RESOURCE, logged, self.name, self._places, token, {**what, **kept, "by_op": op})
            )
        if outcome != "end":
            self.add(at + 0.002, worker, outcome, op, token, **what, value=value, **told)

    def final(self, at: float, value: Any, *, kind: str = "register", side: str = "fenced", **more: Any) -> None:
        """What the run reads at the end."""
        self.add(at, RUN, "got", resource=side, kind=kind, key=self.name, final=True, value=value, **more)

    def fault(self, at: float, over: float, fault: str, struck: Any, *, hit: float | None = None) -> None:
        """Something is broken for a while, from the intent (or from when it had struck) until it is mended."""
        op = self.op()
        kind = FAULTS.get(fault)
        robs, loses = (kind.pauses_holders, kind.loses_answers) if kind is not None else (False, False)
        self.add(at, RUN, "fault", op, fault=fault, robs=robs, loses=loses)
        self.events.append(Event(at if hit is None else hit, RUN, "struck", "", op, None, {"at": struck}))
        self.add(over, RUN, "fault over", op, fault=fault)


def right(seed: int, *, leases: int = 40, names: int = 2, mode: str = "exclusive", tokens: bool = True) -> list[Event]:
    """A history with nothing wrong in it, of workers that wait, hold, write, release, are killed and lose leases."""
    chance = random.Random(seed)
    story = Story()
    ended = 0.0
    for number in range(names):
        story.name = f"name-{number}"
        ended = max(ended, _life_of_a_name(story, chance, leases, f"{number}", mode=mode, tokens=tokens))
    story.name = ""
    story.add(0.0, RUN, "begin")
    story.add(ended, RUN, "settled")
    story.add(ended + 12, RUN, "end")
    for number in range(names):
        story.name = f"name-{number}"
        last = [one.token or 0 for one in story.events if one.kind == "granted" and one.name == story.name]
        story.lease(f"w{number}-0", ended + 6, ended + 6.1, max(last) + 1 if tokens else None, release=ended + 6.2)
    return story.history


def _life_of_a_name(story: Story, chance: random.Random, leases: int, group: str, *, mode: str, tokens: bool) -> float:
    """One name's leases, one after the other: each is free from a moment on, and is taken at a moment after that."""
    free, token, value = 0.5, chance.randrange(1000), None
    busy_until = {f"w{group}-{number}": 0.0 for number in range(4)}
    values: dict[str, Any] = {"plain": None, "fenced": None}
    for number in range(leases):
        free = max(free, min(busy_until.values()) + 0.001)
        worker = chance.choice([one for one, until in busy_until.items() if until < free])
        taken = free + chance.choice([0.0005, 0.01, 0.2])
        token += chance.choice([1, 1, 500])
        ask = max(busy_until[worker] + 0.001, taken - chance.choice([0.0001, 0.3, 1.5]))
        granted = taken + chance.choice([0.0001, 0.02, 0.1])
        shown = token if tokens else None
        op = story.lease(worker, min(ask, taken), granted, shown, mode=mode)
        at = granted + 0.001
        for side in ("plain", "fenced"):
            story.write(at, worker, op, shown, values[side], side=side, reads=True, outcome="got",
                        logged="accepted" if side == "fenced" else None)  # fmt: skip
            value = f"{worker}-{number}-{side}"
            # The answer of a write may be lost: nobody but the resource's own log knows that it took effect.
            outcome: Kind = chance.choice(["wrote", "wrote", "wrote", "unknown"])
            story.write(at + 0.004, worker, op, shown, value, values[side], side=side, outcome=outcome)
            values[side] = value
            at += 0.008
        free = _end_of_a_lease(story, chance, worker, op, shown, at)
        busy_until[worker] = max(free, at) + 0.2
        if chance.random() < 0.2:
            # Somebody whose grant nobody knows of; it was none.
            other = chance.choice([one for one in busy_until if one != worker])
            lost = story.op()
            begins = max(busy_until[other], at) + 0.01
            story.add(begins, other, "ask", lost, wait=60.0)
            story.add(begins + 0.05, other, "unknown", lost, error="connection reset")
            busy_until[other] = begins + 0.1
    for side in ("plain", "fenced"):
        story.final(free + 9, values[side], side=side)
    return free


def _end_of_a_lease(story: Story, chance: random.Random, worker: str, op: int, token: int | None, at: float) -> float:
    """How it ends, seen by its holder; when the name is free is returned."""
    at += chance.choice([0.001, 0.1])
    match chance.choice(["released"] * 5 + ["release unknown", "lost", "killed"]):
        case "released":
            # Freed at some moment of the call: the next one may know of its grant before this one knows of its release.
            freed = at + chance.choice([0.0001, 0.01])
            story.add(at, worker, "release", op, token)
            story.add(freed + chance.choice([0.0001, 0.05]), worker, "released", op, token)
            return freed
        case "release unknown":
            story.add(at, worker, "release", op, token)
            story.add(at + 0.1, worker, "unknown", op, token, error="timeout")
            return at + chance.choice([0.01, TTL])
        case "lost":
            # Its own clock ended it; it was told a moment later, and the engine let go of it only after both.
            story.add(at, worker, "believed until", op, token)
            story.add(at + 0.03, worker, "lost", op, token, told=True)
            return at + 0.1
        case _:
            story.fault(at, at + 0.5, "kill", worker)
            return at + TTL


def changed(history: list[Event], old: Event, **changes: Any) -> list[Event]:
    """The history with one event changed."""
    return sorted((replace(one, **changes) if one is old else one for one in history), key=lambda one: one.at)


def together(seed: int, mode: str, *, permits: int = 3, steps: int = 60) -> list[Event]:
    """A right history of holders who share a name, as readers (beside writers) or by permits."""
    chance = random.Random(seed)
    story = Story()
    held: dict[str, tuple[int, int]] = {}
    alone = False
    last = dict.fromkeys((f"w{number}" for number in range(6)), 0.0)
    for step in range(1, steps):
        # Each thing happens at one moment; whoever did it sees a window around that moment.
        moment = step * 0.1
        worker = chance.choice(list(last))
        if worker in held:
            op, token = held.pop(worker)
            story.add(max(last[worker] + 0.001, moment - chance.uniform(0.0, 0.3)), worker, "release", op, token)
            last[worker] = moment + chance.uniform(0.0, 0.3)
            story.add(last[worker], worker, "released", op, token)
            alone = alone and bool(held)
        elif not alone and (mode == "shared" or len(held) < permits):
            writes = mode == "shared" and not held and chance.random() < 0.3
            ask = max(last[worker] + 0.001, moment - chance.uniform(0.0, 1.0))
            if ask < moment:
                kind, last[worker] = "exclusive" if writes else mode, moment + chance.uniform(0.0, 0.05)
                held[worker] = story.lease(worker, ask, last[worker], step, mode=kind, permits=permits), step
                alone = writes
    return story.history
