"""A worker's hands: how it takes locks and touches the resource, with everything recorded as it happens."""

from __future__ import annotations

import contextlib
import math
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Final

from leasehold.chaos.history import Kind, Recorder
from leasehold.chaos.marks import Marks
from leasehold.chaos.resource import Request, Resource, Side, Work
from leasehold.chaos.site import Doing
from leasehold.chaos.subject import Held, Mode, Subject, TakesSeveral
from leasehold.errors import EngineUnavailable, Misuse, StaleToken, TokenJump

LONG_WORK: Final = 0.05
"""How often the work takes so long that the lease has to be renewed meanwhile."""
LONGEST_CLING: Final = 8.0
"""TTLs after which a worker that was told to go on holding does not believe that anybody will say when it is enough."""


@dataclass(frozen=True, slots=True)
class Terms:
    """How the locks of a run are asked for."""

    ttl: float
    wait: float
    permits: int


@dataclass(frozen=True, slots=True)
class Change:
    """A write that was computed, mostly from what was read before."""

    kind: str
    key: str
    value: Any
    work: Work[object]
    """Puts it into the cells."""
    after: Any = None
    """What it builds on."""


class Grip:
    """A lock that was granted, from the moment that the worker knows until it knows that it is over."""

    def __init__(self, record: Recorder, name: str, op: int) -> None:
        self._record = record
        self.name, self.op = name, op
        self._held: Held | None = None
        self.token: int | None = None
        self._telling = threading.Lock()
        self._known_lost = False
        self._told_early = False

    def granted(self, held: Held, **detail: Any) -> None:
        """The library said that it is held."""
        with self._telling:
            self._held, self.token = held, held.token
            until = self._on_run_clock(held.until)
            believed = {} if until is None else {"believed": until}
            self._record("granted", name=self.name, op=self.op, token=held.token, **detail, **believed)
            early = self._told_early
        if early:
            self.told()

    def told(self) -> None:
        """The library says that it is lost. This may come from any thread, even before it said that it is held."""
        with self._telling:
            if self._held is None:
                self._told_early = True
                return
        self._note_loss(told=True)

    def believes(self) -> bool:
        """Ask the library. Whoever finds out in this way that it is lost knows it from now on."""
        assert self._held is not None
        if self._held.believes():
            return True
        self._note_loss(told=False)
        return False

    def release(self) -> None:
        """Give it back, and record what came of it."""
        assert self._held is not None
        self._note_deadline()
        self._record("release", name=self.name, op=self.op, token=self.token)
        try:
            was_held = self._held.release()
        except Exception as error:  # noqa: BLE001 -- whatever a library raises is a result of the run
            self._record(outcome_of(error), name=self.name, op=self.op, error=_text(error))
            return
        if was_held:
            self._record("released", name=self.name, op=self.op, token=self.token)
        else:
            self._note_loss(told=True)
            self._record("failed", name=self.name, op=self.op, error="it was not held any more")

    def _note_loss(self, *, told: bool) -> None:
        with self._telling:
            if self._known_lost:
                return
            self._known_lost = True
        self._note_deadline()
        self._record("lost", name=self.name, op=self.op, token=self.token, told=told)

    def _note_deadline(self) -> None:
        """Its holder's own clock may have ended the belief before anybody came to say so."""
        assert self._held is not None
        until = self._on_run_clock(self._held.until)
        if until is not None and until < self._record.now():
            self._record("believed until", name=self.name, op=self.op, token=self.token, at=until, believed=until)

    def _on_run_clock(self, moment: float) -> float | None:
        return None if math.isinf(moment) else self._record.moment(moment)


def outcome_of(error: Exception) -> Kind:
    """Whether an error says that nothing was done, or leaves it open."""
    return "failed" if isinstance(error, EngineUnavailable | Misuse) else "unknown"


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:300]


class Hand:
    """What a workload works with, in one worker process."""

    def __init__(
        self,
        worker: str,
        number: int,
        *,
        subject: Subject,
        resource: Resource,
        record: Recorder,
        marks: Marks,
        terms: Terms,
        chance: random.Random,
        first_op: int,
    ) -> None:
        """`number` is the worker's place in the marks; no op below `first_op` is used."""
        self.worker, self.subject, self.resource, self.terms, self.chance = worker, subject, resource, terms, chance
        self._record, self._marks, self._number = record, marks, number
        self._op = first_op
        self.laps = 0

    def next_op(self) -> int:
        """A number for the next operation."""
        self._op += 1
        return self._op

    def unique(self) -> str:
        """A value that nobody else writes in this run."""
        return f"{self.worker}-{self._op}"

    def record(self, kind: Kind, **detail: Any) -> None:
        """Record something that has no method of its own."""
        self._record(kind, **detail)

    def now(self) -> float:
        """Seconds since the run began."""
        return self._record.now()

    @property
    def stopping(self) -> bool:
        """Whether the run wants its workers to come to an end."""
        return self._marks.stopping

    # Locks

    def holding(self, name: str, mode: Mode = "exclusive") -> AbstractContextManager[Grip | None]:
        """Hold a lock for as long as the block, or None where it was not granted."""
        terms = self.terms

        def take(grip: Grip) -> Held | None:
            return self.subject.take(
                name, ttl=terms.ttl, wait=terms.wait, told=grip.told, mode=mode, permits=terms.permits
            )

        return self.holding_by(take, name, mode)

    @contextlib.contextmanager
    def holding_by(
        self, take: Callable[[Grip], Held | None], name: str, mode: Mode = "exclusive"
    ) -> Iterator[Grip | None]:
        """Hold what `take` takes for as long as the block, or None where it was not granted."""
        grip = Grip(self._record, name, self.next_op())
        asked = {"mode": mode, **({"permits": self.terms.permits} if mode == "permit" else {})}

        def take_one() -> list[Held] | None:
            held = take(grip)
            return None if held is None else [held]

        with self._asked([grip], take_one, asked) as granted:
            yield grip if granted else None

    @contextlib.contextmanager
    def holding_several(self, names: Sequence[str]) -> Iterator[list[Grip] | None]:
        """Hold several locks for as long as the block, all or none of them."""
        subject, terms = self.subject, self.terms
        assert isinstance(subject, TakesSeveral)
        grips = {name: Grip(self._record, name, self.next_op()) for name in names}

        def take() -> list[Held] | None:
            return subject.take_several(names, ttl=terms.ttl, wait=terms.wait, told=lambda name: grips[name].told())

        with self._asked(list(grips.values()), take, {"mode": "exclusive"}) as granted:
            yield list(grips.values()) if granted else None

    @contextlib.contextmanager
    def _asked(
        self, grips: Sequence[Grip], take: Callable[[], list[Held] | None], asked: dict[str, Any]
    ) -> Iterator[bool]:
        self.note("waits")
        for grip in grips:
            self._record("ask", name=grip.name, op=grip.op, wait=self.terms.wait, ttl=self.terms.ttl, **asked)
        try:
            held = take()
        except Exception as error:  # noqa: BLE001 -- whatever a library raises is a result of the run
            self.note("idle")
            for grip in grips:
                self._record(outcome_of(error), name=grip.name, op=grip.op, error=_text(error))
            self.rest(longest=0.2)
            held = None
        else:
            for grip in grips if held is None else ():
                self._record("busy", name=grip.name, op=grip.op)
        if held is None:
            self.note("idle")
            yield False
            return
        for grip, one in zip(grips, held, strict=True):
            grip.granted(one, **asked)
        with self.holds():
            yield True
            for grip in reversed(grips):
                grip.release()

    @contextlib.contextmanager
    def holds(self) -> Iterator[None]:
        """Say that something is held for as long as the block."""
        self._marks.count_grant(self._number)
        self.note("holds")
        yield
        self.note("idle")

    # Time

    def note(self, doing: Doing) -> None:
        """Say what this worker is at."""
        self._marks.note(self._number, doing)

    def work(self) -> None:
        """Take as long as work takes: mostly a moment, sometimes longer than a lease, or for as long as it is told."""
        if self._marks.holds_on(self._number):
            self._cling()
        elif self.chance.random() < LONG_WORK:
            time.sleep(self.chance.uniform(0.4, 1.4) * self.terms.ttl)
        else:
            time.sleep(self.chance.uniform(0.0, 0.01))

    def _cling(self) -> None:
        """Go on holding until it is told that it is enough, whatever happens to the lease meanwhile."""
        give_up_at = time.monotonic() + LONGEST_CLING * self.terms.ttl
        self.note("clings")
        while self._marks.holds_on(self._number) and time.monotonic() < give_up_at:
            time.sleep(0.005)
        self.note("holds")

    def rest(self, longest: float = 0.03) -> None:
        """Do nothing for a moment."""
        time.sleep(self.chance.uniform(0.0, longest))

    @contextlib.contextmanager
    def gap(self, *grips: Grip) -> Iterator[bool]:
        """Look at the lease a last time, and be in the gap until the block begins; whether it is still believed."""
        if not all(grip.believes() for grip in grips):
            yield False
            return
        self.note("gap")
        time.sleep(self.chance.uniform(0.002, 0.02))
        self.note("holds")
        yield True

    # The resource

    def sides(self, *grips: Grip) -> tuple[Side, ...]:
        """The sides on which there is something to be done: nobody can be fenced without a token."""
        return ("plain", "fenced") if all(grip.token is not None for grip in grips) else ("plain",)

    def read(self, grip: Grip, side: Side, kind: str, key: str, work: Work[Any]) -> tuple[bool, Any]:
        """Read; whether it was allowed, and what was read."""
        request = self._request(grip, side, kind, key, reads=True)
        self._note_request("read", request, lease=grip.op)
        try:
            value = self.resource.read(request, work)
        except (StaleToken, TokenJump) as refusal:
            self._note_request("refused", request, lease=grip.op, seen=refusal.seen)
            return False, None
        self._note_request("got", replace(request, value=value), lease=grip.op)
        return True, value

    def write(self, grip: Grip, side: Side, change: Change) -> bool:
        """Write; whether it was allowed."""
        request = self._request(grip, side, change.kind, change.key, value=change.value, after=change.after)
        return self.carry_out(request, lambda: self.resource.write(request, change.work), lease=grip.op)

    def carry_out(self, request: Request, work: Callable[[], object], *, lease: int = 0, **answered: Any) -> bool:
        """Record a write of any kind around what does it; whether it was allowed."""
        self._note_request("write", request, lease=lease)
        try:
            work()
        except (StaleToken, TokenJump) as refusal:
            self._note_request("refused", request, lease=lease, seen=refusal.seen)
            return False
        self._note_request("wrote", request, lease=lease, **answered)
        return True

    def answered(self, kind: str, key: str, result: Any) -> None:
        """Record what a caller was given for something that may have been done before, by somebody else."""
        request = Request("fenced", kind, key, self.worker, self.next_op(), reads=True)
        self._note_request("read", request, lease=0)
        self._note_request("got", request, lease=0, result=result)

    def announce(self, grip: Grip, kind: str, key: str) -> None:
        """Keep earlier writers out, for somebody who shares the lock."""
        self.resource.announce(self._request(grip, "fenced", kind, key, reads=True))

    def tenure(self, name: str, token: int) -> Grip:
        """For what is held by other means than a lock of this hand, which the history does not follow."""
        grip = Grip(self._record, name, 0)
        grip.token = token
        return grip

    def _request(self, grip: Grip, side: Side, kind: str, key: str, **more: Any) -> Request:
        return Request(side, kind, key, self.worker, self.next_op(), grip.name, grip.token, **more)

    def _note_request(self, kind: Kind, request: Request, **more: Any) -> None:
        detail = {"kind": request.kind, "key": request.key, "value": request.value, "after": request.after}
        said = {name: value for name, value in detail.items() if value is not None}
        self._record.event(
            kind,
            name=request.name,
            op=request.by_op,
            token=request.token,
            detail={"resource": request.side, **said, **more},
        )
