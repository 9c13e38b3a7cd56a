"""A history put in order: attempts, leases, requests to the resource, faults. What all checkers build on."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from leasehold.chaos.history import RESOURCE, RUN, Event, Kind
from leasehold.chaos.run_info import RunInfo

How = Literal["released", "lost", "died", "open"]
_ASK_ENDS = ("granted", "busy", "unknown", "failed")
_RELEASE_ENDS = ("released", "unknown", "failed")
_REQUEST_ENDS = ("got", "wrote", "refused", "unknown", "failed")
ALLOWANCE = 2.0
"""Seconds that a busy machine may take from anybody: a bound in time is called violated only beyond it. The goals of
the report are compared with what was measured, without any allowance."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One ask for the lock, and what came of it."""

    ask: Event
    end: Event | None
    """None: its process died, or it never returned."""
    until: float
    """When it ended: by its end, or by the last that was heard of its process."""

    @property
    def worker(self) -> str:
        """Who asked."""
        return self.ask.worker

    @property
    def name(self) -> str:
        """For which lock."""
        return self.ask.name

    @property
    def unknown(self) -> bool:
        """Whether it may have been granted without anybody knowing."""
        return self.end is None or self.end.kind == "unknown"


@dataclass(frozen=True, slots=True)
class Lease:
    """One grant, and for how long its holder believed in it."""

    ask: Event
    granted: Event
    until: float
    """When the holder's belief ended: it released, it knew that the lease was lost, or it died. Nothing that came
    later counts as belief, and everything before it is certain."""
    how: How
    release: Event | None = None
    released: Event | None = None
    """The end of its release, whatever that was."""
    lost: Event | None = None
    deadline: Event | None = None
    """The "believed until", where there is one."""
    in_doubt: bool = False
    """Whether the answer to its release may have been lost: then it was given back, or was lost before, and nobody,
    not even the library, can know which."""

    @property
    def worker(self) -> str:
        """Who holds."""
        return self.granted.worker

    @property
    def name(self) -> str:
        """What is held."""
        return self.granted.name

    @property
    def since(self) -> float:
        """When its holder was told that it holds."""
        return self.granted.at

    @property
    def token(self) -> int | None:
        """The fencing token, where there is one."""
        return self.granted.token

    @property
    def mode(self) -> str:
        """Exclusive, shared or permit."""
        return str(self._asked("mode", "exclusive"))

    @property
    def permits(self) -> int:
        """How many may hold."""
        return int(self._asked("permits", 1))

    @property
    def again(self) -> bool:
        """Whether its holder held the name already."""
        return bool(self._asked("again", False))

    @property
    def owner(self) -> str:
        """Who counts as the same holder: the worker, unless it says otherwise."""
        return str(self._asked("owner", self.worker))

    @property
    def release_confirmed(self) -> bool:
        """Whether the engine said that it was held until its release."""
        return self.released is not None and self.released.kind == "released" and not self.in_doubt

    @property
    def known_at(self) -> float:
        """When the holder knew that the lease was gone; infinite if it never did."""
        return min((one.at for one in (self.lost, self.deadline) if one is not None), default=math.inf)

    @property
    def shown_by(self) -> tuple[Event, ...]:
        """Its events."""
        return tuple(one for one in (self.ask, self.granted, self.lost, self.deadline, self.release) if one is not None)

    def _asked(self, what: str, usual: Any) -> Any:
        return self.granted.detail.get(what, self.ask.detail.get(what, usual))


def compatible(one: Lease, other: Lease) -> bool:
    """Whether both may be held at once; how many permits there are is another question."""
    return one.mode == other.mode != "exclusive" or (one.owner == other.owner and (one.again or other.again))


def was_before(one: Lease, other: Lease) -> bool:
    """Whether the engine gave the first of two leases before the second: the news of a grant may come late."""
    if one.token is None or other.token is None or one.token == other.token:
        return one.since < other.since
    return one.token < other.token


@dataclass(frozen=True, slots=True)
class Request:
    """A read or a write at the resource, as its worker saw it."""

    begin: Event
    end: Event | None

    @property
    def events(self) -> tuple[Event, ...]:
        """Both, or the one that there is."""
        return (self.begin,) if self.end is None else (self.begin, self.end)


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that was broken for a while."""

    begin: Event
    """The intent to strike."""
    hit: Event | None
    """That it has struck; None where the run itself broke off before it could say so."""
    over: float
    """When it was mended; infinite if that was not recorded."""

    @property
    def since(self) -> float:
        """From when on it may have struck."""
        return self.begin.at

    @property
    def at(self) -> float:
        """By when it had struck."""
        return self.begin.at if self.hit is None else self.hit.at

    @property
    def robs(self) -> bool:
        """Whether it may stop a holder, or take its lease away, so that only a fence helps."""
        return bool(self.begin.detail.get("robs"))

    @property
    def loses(self) -> bool:
        """Whether answers to requests that were carried out may be lost by it."""
        return bool(self.begin.detail.get("loses"))

    @property
    def name(self) -> str:
        """Which one."""
        return str(self.begin.detail.get("fault", "?"))

    @property
    def struck(self) -> tuple[str, ...]:
        """What it struck: workers, servers, proxies."""
        at = None if self.hit is None else self.hit.detail.get("at")
        return tuple(str(at).split(", ")) if at is not None else ()


@dataclass
class Record:
    """A history in order."""

    events: list[Event]
    run: RunInfo
    attempts: list[Attempt] = field(default_factory=list)
    leases: list[Lease] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    log: list[Event] = field(default_factory=list)
    """What the resource says of itself, in the order of its own log."""

    def __post_init__(self) -> None:
        """Put the events in order."""
        by_operation: dict[tuple[str, int], list[Event]] = defaultdict(list)
        for event in self.events:
            if event.worker == RESOURCE:
                self.log.append(event)
            elif event.worker != RUN or event.kind in ("fault", "struck", "fault over"):
                by_operation[event.worker, event.op].append(event)
        self.log.sort(key=lambda event: event.op)
        self._heard: dict[str, float] = {}
        self._asks: dict[str, list[Event]] = defaultdict(list)
        for event in self.events:
            self._heard[event.worker] = max(event.at, self._heard.get(event.worker, 0.0))
            if event.kind == "ask":
                self._asks[event.worker].append(event)
        for events in by_operation.values():
            if events[0].worker == RUN:
                self.faults += _faults(events)
        self.faults.sort(key=lambda fault: fault.at)
        for events in by_operation.values():
            if events[0].worker != RUN:
                self._sort_in(events)
        self.attempts.sort(key=lambda attempt: attempt.ask.at)
        self.leases.sort(key=lambda lease: lease.since)
        self.requests.sort(key=lambda request: request.begin.at)

    def _sort_in(self, events: list[Event]) -> None:
        one = {event.kind: event for event in reversed(events)}
        if "read" in one or "write" in one:
            begin = one.get("read") or one["write"]
            self.requests.append(Request(begin, next((event for event in events if event.kind in _REQUEST_ENDS), None)))
        elif "ask" in one:
            end = next((event for event in events if event.kind in _ASK_ENDS), None)
            until = end.at if end is not None else self.cut_off_at(one["ask"])
            self.attempts.append(Attempt(one["ask"], end, until))
            if end is not None and end.kind == "granted":
                self.leases.append(self._lease(events, one))

    def _lease(self, events: list[Event], one: dict[Kind, Event]) -> Lease:
        release = one.get("release")
        after = events[events.index(release) :] if release is not None else []
        released = next((event for event in after if event.kind in _RELEASE_ENDS), None)
        lost, deadline = one.get("lost"), one.get("believed until")
        how: How = "open"
        known = [(event.at, way) for event, way in ((release, "released"), (lost, "lost"), (deadline, "lost")) if event]
        if known:
            until, way = min(known)
            how = "released" if way == "released" else "lost"
        else:
            # A lease without an end: its holder was struck, or went on without a word.
            strike = self._strike_after(events[-1])
            until = strike.at if strike is not None else min(self._goes_on(events[-1]), self._heard[events[0].worker])
            how = "open" if strike is None else "died"
        in_doubt = release is not None and released is not None and self._loses_answers(release, released)
        return Lease(one["ask"], one["granted"], until, how, release, released, lost, deadline, in_doubt)

    def _loses_answers(self, begin: Event, end: Event) -> bool:
        """Whether an answer to what a worker asked may have been lost, maybe on a connection that broke before."""
        return any(
            fault.loses
            and fault.since <= end.at
            and fault.over + self.run.ttl >= begin.at
            and (begin.worker in fault.struck or self.strikes_no_worker(fault))
            for fault in self.faults
        )

    def _strike_after(self, last: Event) -> Fault | None:
        """The fault that struck a worker after this event, and before it went on to ask for something else."""
        goes_on = self._goes_on(last)
        return next((one for one in self.faults if last.worker in one.struck and last.at <= one.at <= goes_on), None)

    def _goes_on(self, last: Event) -> float:
        """When a worker asked for something else after this event."""
        later = (event.at for event in self._asks[last.worker] if event.at > last.at and event.op != last.op)
        return next(later, math.inf)

    # Looking things up

    def last_heard(self, worker: str) -> float:
        """When a worker was last heard of."""
        return self._heard[worker]

    def cut_off_at(self, begin: Event) -> float:
        """Until when an operation that has no end went on: until its worker was struck, or the run was over."""
        strike = self._strike_after(begin)
        return strike.at if strike is not None else self.ended_at

    @cached_property
    def names(self) -> list[str]:
        """All names that anybody asked for."""
        return sorted({attempt.name for attempt in self.attempts})

    @cached_property
    def ended_at(self) -> float:
        """When the last thing happened."""
        return max((event.at for event in self.events), default=0.0)

    @cached_property
    def settled_at(self) -> float | None:
        """From when on nothing is broken any more."""
        return next((event.at for event in self.events if event.kind == "settled"), None)

    @cached_property
    def workers(self) -> list[str]:
        """All workers."""
        return sorted({event.worker for event in self.events} - {RUN, RESOURCE})

    def leases_on(self, name: str) -> list[Lease]:
        """Those on one name, in the order in which their holders knew."""
        return self._leases_by_name.get(name, [])

    def attempts_on(self, name: str) -> list[Attempt]:
        """Those on one name, in the order in which they began."""
        return self._attempts_by_name.get(name, [])

    def stopped_on(self, name: str) -> list[Attempt]:
        """Those on one name whose worker died or was stopped while it waited: their places in a queue may stand."""
        return self._stopped_by_name.get(name, [])

    @cached_property
    def _stopped_by_name(self) -> dict[str, list[Attempt]]:
        return _by_name([one for one in self.attempts if self.strikes_on(one.worker, one.ask.at, one.until)])

    @cached_property
    def _leases_by_name(self) -> dict[str, list[Lease]]:
        return _by_name(self.leases)

    @cached_property
    def _attempts_by_name(self) -> dict[str, list[Attempt]]:
        return _by_name(self.attempts)

    @cached_property
    def lease_of(self) -> dict[tuple[str, int], Lease]:
        """Leases by worker and op."""
        return {(lease.worker, lease.granted.op): lease for lease in self.leases}

    @cached_property
    def request_of(self) -> dict[tuple[str, int], Request]:
        """Requests by worker and op."""
        return {(request.begin.worker, request.begin.op): request for request in self.requests}

    @cached_property
    def done_writes(self) -> list[Request]:
        """The writes that their workers know to be done."""
        return [one for one in self.requests if one.begin.kind == "write" and one.end and one.end.kind == "wrote"]

    @property
    def answers(self) -> list[Request]:
        """The results that callers were given, of what may have been done before."""
        return [one for one in self.requests if one.begin.kind == "read" and one.end and "result" in one.end.detail]

    def strikes_on(self, worker: str, since: float, until: float) -> list[Fault]:
        """The faults that struck one worker within a time, or lasted into it."""
        return [one for one in self.faults if worker in one.struck and one.at <= until and one.over >= since]

    def faults_within(self, since: float, until: float) -> list[Fault]:
        """The faults that struck, or may have, or lasted, within a time."""
        return [fault for fault in self.faults if fault.since <= until and fault.over >= since]

    def strikes_no_worker(self, fault: Fault) -> bool:
        """Whether it struck the engine, or what lies between, rather than a worker."""
        return self._worker_names.isdisjoint(fault.struck)

    @cached_property
    def _worker_names(self) -> frozenset[str]:
        return frozenset(self.workers)

    def may_be_robbed(self, lease: Lease, at: float) -> bool:
        """Whether a fault of a run that stops or robs holders may have taken this lease from its holder by then."""
        return self.robbed_from(lease, at) is not None

    def robbed_from(self, lease: Lease, by: float) -> float | None:
        """The first moment at which a fault may have taken this lease from its holder, if one may have by then.

        It struck this worker, or no worker in particular. A lease can be taken away before its holder knows of it.
        """
        faults = [
            fault.since
            for fault in self.faults
            if fault.robs
            and fault.since <= by
            and fault.over >= lease.ask.at
            and (lease.worker in fault.struck or self.strikes_no_worker(fault))
        ]
        return max(lease.ask.at, min(faults)) if faults else None


def _by_name(things: list[Any]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = defaultdict(list)
    for thing in things:
        found[thing.name].append(thing)
    return found


def _faults(events: list[Event]) -> Iterator[Fault]:
    """The fault that these events are about, unless there was nothing that it could strike."""
    one = {event.kind: event for event in events}
    hit, over = one.get("struck"), one.get("fault over")
    if "fault" in one and (hit is None or hit.detail.get("at") is not None):
        yield Fault(one["fault"], hit, math.inf if over is None else over.at)
