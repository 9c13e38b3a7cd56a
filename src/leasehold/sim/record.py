"""A history put in order for its judges: attempts, beliefs, pauses, and who waited for what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TypeVar, cast

from leasehold.engines.sql_session import SLICE
from leasehold.sim.history import (
    Began,
    Calm,
    Deafened,
    Done,
    Ended,
    Event,
    Fault,
    Freed,
    Got,
    Granted,
    History,
    Moved,
    NotGot,
    Queued,
    Unqueued,
)

E = TypeVar("E", bound=Event)

INTERRUPTIONS = frozenset({"Interrupted", "Signalled"})
LASTING = frozenset({"delay", "loss", "duplicate", "deaf"})
"""Kinds of faults that go on until the calm."""
CRASHED = "its process died"


class Belief:
    """A lease as its holder believed in it: from the return of acquire until its deadline or its end."""

    __slots__ = ("delay", "holder", "limit", "mode", "name", "reason", "since", "token", "until", "who")

    def __init__(self, got: Got, began: Began) -> None:
        self.who, self.holder, self.name, self.token = got.who, got.holder, got.name, got.token
        self.mode, self.limit, self.delay = began.mode, began.limit, began.delay
        self.since, self.until = got.at, got.valid_until
        self.reason = ""
        """How it ended; empty while it has not."""


class Attempt:
    """One acquire, and the lease that came of it."""

    __slots__ = ("answered", "began", "finished", "outcome", "token")

    def __init__(self, began: Began) -> None:
        self.began = began
        self.answered = self.finished = float("inf")
        """When acquire returned or raised; when its worker was through with everything that came of it."""
        self.token: int | None = None
        self.outcome = ""
        """How acquire failed, or else how release ended."""

    @property
    def interrupted(self) -> bool:
        """Whether the world put an end to it."""
        return self.outcome in INTERRUPTIONS or self.outcome == CRASHED


class Record:
    """What the judges ask about one history."""

    def __init__(self, history: History) -> None:
        self.plan, self.events, self.ended_at = history.plan, history.events, history.ended_at
        self.kinds = frozenset(history.plan.kinds)
        self._by_type: dict[type[object], list[Event]] = {}
        for event in history.events:
            self._by_type.setdefault(type(event), []).append(event)
        self.broken = self._lost_connections()
        """When the server lost the connection that a lease ends with, by its holder and its token."""
        self.calm_at = self._calm_at()
        """From then on there are no faults, but for clocks that differ."""
        self._pauses: dict[str, list[Fault]] = {}
        self._crashes: dict[str, list[float]] = {}
        for fault in self.of(Fault):
            if fault.kind in ("pause", "freeze"):
                self._pauses.setdefault(fault.who, []).append(fault)
            elif fault.kind == "crash":
                self._crashes.setdefault(fault.who, []).append(fault.at)
        self.attempts: list[Attempt] = []
        self.beliefs: list[Belief] = []
        self._follow()
        self.names = tuple(dict.fromkeys(attempt.began.name for attempt in self.attempts))
        self.places = {(event.name, event.holder) for event in self.of(Queued)}
        self.slowest = 1.0 / (1.0 - (0.25 if "wild" in self.kinds else 0.005))
        """How much longer than it should, a clock may let somebody wait."""

    def broke_off(self, belief: Belief, by: float = float("inf")) -> bool:
        """Whether the server had lost, by then, the connection that a lease ends with."""
        return self.broken.get((belief.holder, belief.token), float("inf")) < by

    def _lost_connections(self) -> dict[tuple[str, int], float]:
        tokens: dict[str, int] = {}
        broken: dict[tuple[str, int], float] = {}
        for event in self.events:
            if isinstance(event, Granted):
                tokens[event.holder] = event.token
            elif isinstance(event, Freed) and event.how == "broken":
                broken[event.holder, tokens.get(event.holder, 0)] = event.at
        return broken

    def of(self, kind: type[E]) -> list[E]:
        """All events of a type, in order."""
        return cast(list[E], self._by_type.get(kind, []))

    def _calm_at(self) -> float:
        if self.kinds.isdisjoint(LASTING):
            return max((fault.until for fault in self.of(Fault)), default=0.0)
        return min((event.at for event in self.of(Calm)), default=float("inf"))

    def _follow(self) -> None:
        """Follow every attempt and every belief from event to event."""
        attempts: dict[str, Attempt] = {}
        beliefs: dict[str, Belief] = {}
        self.times_got: Counter[str] = Counter()
        self.revived: list[Moved] = []
        """Deadlines that moved after they had passed."""
        for event in self.events:
            if isinstance(event, Began):
                attempts[event.holder] = attempt = Attempt(event)
                self.attempts.append(attempt)
            elif isinstance(event, Got):
                attempt = attempts[event.holder]
                attempt.answered, attempt.token = event.at, event.token
                beliefs[event.holder] = belief = Belief(event, attempt.began)
                self.beliefs.append(belief)
                self.times_got[event.holder] += 1
            elif isinstance(event, NotGot):
                attempt = attempts[event.holder]
                attempt.answered = attempt.finished = event.at
                attempt.outcome = event.why
            elif isinstance(event, Done):
                attempts[event.holder].finished, attempts[event.holder].outcome = event.at, event.outcome
            elif isinstance(event, Moved):
                belief = beliefs[event.holder]
                if belief.until < event.at:
                    self.revived.append(event)
                belief.until = event.valid_until
            elif isinstance(event, Ended):
                self._end(beliefs[event.holder], event)
            elif isinstance(event, Fault) and event.kind == "crash":
                self._crash(event)

    def _end(self, belief: Belief, event: Ended) -> None:
        if not event.reason:
            belief.reason = ""
        elif not belief.reason:
            belief.until, belief.reason = min(belief.until, event.at), event.reason

    def _crash(self, crash: Fault) -> None:
        for attempt in self.attempts:
            if attempt.began.who[0] == crash.who and attempt.finished > crash.at:
                attempt.answered = min(attempt.answered, crash.at)
                attempt.finished, attempt.outcome = crash.at, CRASHED

    def token_got(self, grant: Granted) -> int:
        """The token of a granted seat, also if it was only minted afterwards; 0 if nobody ever got it."""
        if grant.token:
            return grant.token
        return next((belief.token for belief in self.beliefs if belief.holder == grant.holder), 0)

    # Pauses and deaths.

    def awake_after(self, who: str, at: float, for_as_long: float) -> float:
        """The first time from then on at which the worker's process was awake, and stayed so for long enough."""
        for pause in self._pauses.get(who[0], []):
            if pause.at <= at + for_as_long and at < pause.until:
                at = pause.until
        return at

    def paused_within(self, who: str, since: float, until: float) -> bool:
        """Whether the worker's process was paused at any time between."""
        return any(pause.at <= until and pause.until >= since for pause in self._pauses.get(who[0], []))

    def died_within(self, who: str, since: float, until: float) -> bool:
        """Whether the worker's process died between."""
        return any(since <= at <= until for at in self._crashes.get(who[0], []))

    # Waiting.

    def longest_queue(self, name: str) -> int:
        """How many were in the queue at most, dead waiters and repeated requests among them."""
        length = longest = 0
        for event in self.events:
            if isinstance(event, Queued | Unqueued) and event.name == name:
                length += 1 if isinstance(event, Queued) else -1
                longest = max(longest, length)
        return longest

    def gone_before(self, holder: str, name: str) -> int:
        """How many stood before it in the queue when it came, and have gone from there without being served.

        Also one that was served later, unless it had come to the head, for the head is told: the others do not know
        that they have moved up, and may let their turns go by.
        """
        came = {event.holder: event.at for event in self.of(Queued) if event.name == name}
        left = dict.fromkeys(came, self.ended_at)
        left |= {event.holder: event.at for event in self.of(Unqueued) if event.name == name}
        got = {attempt.began.holder for attempt in self.attempts if attempt.token is not None}
        served = {event.holder: event.at for event in self.of(Granted) if event.name == name and event.holder in got}
        since, went = came.get(holder, self.ended_at), 0
        for other, at in came.items():
            if at < since <= left[other] < served.get(other, float("inf")):
                behind = any(came[one] < at and left[one] >= left[other] for one in came)
                went += behind or other not in served
        return went

    def _seats(self, name: str) -> Iterator[tuple[float, int, int]]:
        """From when to when the server kept it for somebody: a proxy lets the dead wait on, and have their turn."""
        since: dict[str, float] = {}
        for event in self.events:
            if isinstance(event, Granted) and event.name == name:
                since[event.holder] = event.at
            elif isinstance(event, Freed) and event.name == name and event.holder in since:
                yield since.pop(event.holder), 0, 1
                yield event.at, 0, -1

    def _heard(self, holder: str, since: float, until: float) -> Iterator[tuple[float, float]]:
        """When the server could know that it waits.

        Who stands in the server's queue by a connection that the server has lost is nowhere in it, and does not know
        that until it queues anew: it does so every so often for no other reason.
        """
        for event in self.of(Deafened):
            if event.holder == holder and since <= event.at < until:
                yield since, event.at
                since = min(event.at + SLICE * self.slowest, until)
        yield since, until

    def idle(self, name: str) -> Iterator[tuple[float, float]]:
        """When, since the calm, somebody waited whom the server could know of, and nobody believed to hold the name."""
        changes: list[tuple[float, int, int]] = []
        granted = {event.holder: event.at for event in self.of(Granted) if event.name == name}
        for attempt in self.attempts:
            if attempt.began.name != name or attempt.answered <= self.calm_at:
                continue
            since, until, holder = attempt.began.at, min(attempt.answered, self.ended_at), attempt.began.holder
            if not attempt.began.together:
                for heard_since, heard_until in self._heard(holder, since, until):
                    changes += ((heard_since, 1, 0), (heard_until, -1, 0))
            elif holder in granted:
                # Together with others: whoever has this one already keeps it while it waits for the next.
                changes += ((granted[holder], 0, 1), (max(until, granted[holder]), 0, -1))
        for belief in self.beliefs:
            if belief.name == name and belief.until > self.calm_at:
                changes += ((belief.since, 0, 1), (max(belief.until, belief.since), 0, -1))
        if "proxy" in self.kinds:
            changes += self._seats(name)
        changes.sort()
        waiting = holding = 0
        idle_since: float | None = None
        for at, waits, holds in changes:
            waiting, holding = waiting + waits, holding + holds
            idle = waiting > 0 and holding == 0
            if idle and idle_since is None:
                idle_since = at
            elif not idle and idle_since is not None:
                yield max(idle_since, self.calm_at), at
                idle_since = None
