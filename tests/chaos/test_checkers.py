"""Every checker accepts what is right, however odd it looks, and rejects a history with one thing wrong in it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tests.chaos.histories import RUN_INFO, changed, right, together, verdicts, violated

from leasehold.chaos.checkers import CHECKERS
from leasehold.chaos.checkers.search import Operation, explain
from leasehold.chaos.history import Event, Kind

# The same examples in every run: a search for new ones is no part of the suite.
EXAMPLES = settings(derandomize=True, deadline=None, suppress_health_check=list(HealthCheck), max_examples=15)
SEEDS = st.integers(0, 2**32)
STOPPED = replace(RUN_INFO, pauses_holders=True, faults=("pause",))


# What is right


@given(SEEDS, st.booleans())
@EXAMPLES
def test_right_histories_are_accepted(seed: int, tokens: bool) -> None:
    found = verdicts(right(seed, tokens=tokens))
    assert {name: one.violations for name, one in found.items() if one.status in ("violated", "unknown")} == {}
    assert found["exclusive"].judged == 82
    assert (found["token order"].status == "held") is tokens


def test_an_empty_history_asks_nothing() -> None:
    assert {verdict.status for verdict in verdicts([]).values()} == {"not asked", "unknown"}
    assert len(verdicts([])) == len(CHECKERS)


def test_a_history_of_twenty_thousand_events_is_judged_in_seconds() -> None:
    history = right(3, leases=650)
    assert len(history) > 18_000
    assert not violated(history)


# Wrong histories, made from right ones: whoever changed a thing has to be found out


def _pairs(history: list[Event]) -> list[tuple[Event, Event, Event]]:
    """Grant and release of a lease whose release is confirmed, with the grant that follows it."""
    found = []
    for name in ("name-0", "name-1"):
        grants = [event for event in history if event.kind == "granted" and event.name == name]
        ends = {(event.worker, event.op): event for event in history if event.kind == "release"}
        sure = {(event.worker, event.op) for event in history if event.kind == "released"}
        for first, second in pairwise(grants):
            end = ends.get((first.worker, first.op))
            if end is not None and (end.worker, end.op) in sure and first.worker != second.worker:
                found.append((first, end, second))
    return found


def _overlap(history: list[Event], chance: random.Random) -> list[Event]:
    first, end, second = chance.choice(_pairs(history))
    middle = (first.at + end.at) / 2
    history = changed(history, second, at=middle)
    ask = next(one for one in history if one.kind == "ask" and (one.worker, one.op) == (second.worker, second.op))
    return changed(history, ask, at=min(ask.at, middle - 0.0001))


def _swapped_tokens(history: list[Event], chance: random.Random) -> list[Event]:
    asks = {(event.worker, event.op): event.at for event in history if event.kind == "ask"}
    sure = [
        (one, other) for one, _end, other in _pairs(history) if one.at < asks[other.worker, other.op]
    ]  # overlapping asks may get their tokens either way
    assume(sure)
    one, other = chance.choice(sure)
    return changed(changed(history, one, token=other.token), other, token=one.token)


def _same_token(history: list[Event], chance: random.Random) -> list[Event]:
    one, _, other = chance.choice(_pairs(history))
    return changed(history, other, token=one.token)


def _fenced(history: list[Event]) -> list[Event]:
    return [
        event
        for event in history
        if event.kind == "accepted" and event.detail["resource"] == "fenced" and not event.detail.get("reads")
    ]


def _stale_write(history: list[Event], chance: random.Random) -> list[Event]:
    entries = [one for one in _fenced(history) if one.name == "name-0"]
    old, new = sorted(chance.sample(range(len(entries)), 2))
    late = replace(entries[old], at=entries[new].at + 0.0001, op=entries[new].op)
    return sorted([*history, late], key=lambda event: event.at)


def _lost_update(history: list[Event], chance: random.Random) -> list[Event]:
    entries = [one for one in _fenced(history) if one.name == "name-0"]
    entry = chance.choice(entries[1:])
    return changed(history, entry, detail={**entry.detail, "after": "something older"})


def _vanished_write(history: list[Event], chance: random.Random) -> list[Event]:
    told = {(event.worker, event.op) for event in history if event.kind == "wrote"}
    entry = chance.choice([one for one in _fenced(history) if (one.detail["by"], one.detail["by_op"]) in told])
    return [event for event in history if event is not entry]


def _never_told(history: list[Event], chance: random.Random) -> list[Event]:
    heard = {event.worker: event.at for event in history}
    overtaken = [
        event
        for event in history
        if event.kind == "lost"
        and any(one.kind == "granted" and one.name == event.name and event.at < one.at < heard[event.worker]
                for one in history)
    ]  # fmt: skip
    assume(overtaken)
    one = chance.choice(overtaken)
    return [event for event in history if not _of(event, one) or event.kind not in ("lost", "believed until")]


def _of(event: Event, operation: Event) -> bool:
    return (event.worker, event.op) == (operation.worker, operation.op)


def _stuck(history: list[Event], chance: random.Random) -> list[Event]:
    """Everything after a release comes ten seconds later, except that it was asked for in time."""
    granted = {(event.worker, event.op) for event in history if event.kind == "granted"}
    unknown = {(event.worker, event.op) for event in history if event.kind == "unknown"} - granted
    history = [event for event in history if (event.worker, event.op) not in unknown]
    _first, end, second = chance.choice(_pairs(history))
    stays = [one for one in history if (one.kind == "ask" and _of(one, second)) or _of(one, end)]
    moved = [replace(one, at=one.at + 10) if one.at > end.at and one not in stays else one for one in history]
    return sorted(moved, key=lambda event: event.at)


def _unharmed(history: list[Event]) -> set[str]:
    """Workers that no fault struck."""
    return {event.worker for event in history} - {one.detail["at"] for one in history if one.kind == "struck"}


def _impatient(history: list[Event], chance: random.Random) -> list[Event]:
    workers = _unharmed(history)
    asks = [event for event in history if event.kind == "ask" and event.worker in workers]
    assume(asks)
    ask = chance.choice(asks)
    return changed(history, ask, at=ask.at - 3, detail={**ask.detail, "wait": 0.5})


def _hung(history: list[Event], chance: random.Random) -> list[Event]:
    workers = _unharmed(history)
    ended = history[-1].at
    begins = [one for one in history if one.kind == "release" and one.worker in workers and one.at < ended - 10]
    assume(begins)
    begin = chance.choice(begins)
    return [one for one in history if not _of(one, begin) or one.kind in ("ask", "granted", "release")]


def _fails_in_the_end(history: list[Event], _chance: random.Random) -> list[Event]:
    last = [event for event in history if event.kind == "granted"][-1]
    kept = [event for event in history if (event.worker, event.op) != (last.worker, last.op) or event.kind == "ask"]
    failed = replace(last, kind="failed", token=None, detail={"error": "connection refused"})
    return sorted([*kept, failed], key=lambda event: event.at)


Mutation = Callable[[list[Event], random.Random], list[Event]]


@pytest.mark.parametrize(
    ("mutation", "found_by"),
    [
        (_overlap, {"exclusive", "linearizable"}),
        (_swapped_tokens, {"token order", "linearizable"}),
        (_same_token, {"token order", "linearizable"}),
        (_stale_write, {"stale writes", "lost updates"}),
        (_lost_update, {"lost updates"}),
        (_vanished_write, {"lost updates"}),
        (_never_told, {"told"}),
        (_stuck, {"recovery"}),
        (_impatient, {"wait overrun"}),
        (_hung, {"liveness"}),
        (_fails_in_the_end, {"liveness"}),
    ],
)
@given(seed=SEEDS)
@EXAMPLES
def test_wrong_histories_are_rejected(mutation: Mutation, found_by: set[str], seed: int) -> None:
    assert found_by <= violated(mutation(right(seed), random.Random(seed)))


@given(SEEDS)
@EXAMPLES
def test_readers_and_writers(seed: int) -> None:
    """A right history is accepted; not when one of two who read at the same time claims to have written."""
    history = together(seed, "shared")
    found = verdicts(history)
    assert (found["exclusive"].status, found["linearizable"].status) == ("held", "held")
    since = {(one.worker, one.op): one for one in history if one.kind == "granted"}
    until = {(one.worker, one.op): one.at for one in history if one.kind == "release"}
    both = [
        one
        for key, one in since.items()
        for other, second in since.items()
        if key != other and second.at < one.at < until.get(other, 0.0) and until.get(key, 0.0) > one.at
    ]
    assume(both)
    reader = random.Random(seed).choice(both)
    wrong = changed(history, reader, detail={**reader.detail, "mode": "exclusive"})
    assert {"exclusive", "linearizable"} <= violated(wrong)


@given(SEEDS)
@EXAMPLES
def test_semaphores(seed: int) -> None:
    """A right history is accepted; not when there was one permit less than were seen to be held."""
    history = together(seed, "permit")
    found = verdicts(history)
    assert (found["permits"].status, found["linearizable"].status) == ("held", "held")
    most = int(found["permits"].figures["most at once"])
    assume(most > 1)
    fewer = [
        replace(one, detail={**one.detail, "permits": most - 1}) if "permits" in one.detail else one for one in history
    ]
    assert {"permits", "linearizable"} <= violated(fewer)


@given(SEEDS)
@EXAMPLES
def test_reentrant_holders(seed: int) -> None:
    """Who holds may ask again, and gets the same token; nobody else may, and no other token is right."""
    history = right(seed)
    releases = {(one.worker, one.op): one for one in history if one.kind == "release"}
    outer = random.Random(seed).choice([one for one in history if (one.worker, one.op) in releases])
    since = next(one for one in history if one.kind == "granted" and _of(one, outer))
    part = (releases[outer.worker, outer.op].at - since.at) / 5
    kinds: tuple[Kind, ...] = ("ask", "granted", "release", "released")

    def again(worker: str, token: int) -> set[str]:
        inner = [
            Event(since.at + place * part, worker, kind, since.name, 999_999, token, {"again": True, "wait": 60.0})
            for place, kind in enumerate(kinds, 1)
        ]
        return violated(sorted([*history, *inner], key=lambda event: event.at))

    assert since.token is not None
    assert again(since.worker, since.token) == set()
    assert {"exclusive", "linearizable"} <= again("somebody else", since.token)
    assert "linearizable" in again(since.worker, since.token + 1)


# The search itself, compared with trying everything


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 6), st.integers(0, 2), st.booleans()), max_size=6))
@settings(EXAMPLES, max_examples=150)
def test_the_search_finds_an_order_exactly_when_there_is_one(given_: list[tuple[int, int, int, bool]]) -> None:
    """A register: reads (of the value given) and writes, some of which may never have happened."""
    operations = [
        Operation(float(began), float("inf") if writes and takes == 6 else float(began + takes), (writes, value))
        for began, takes, value, writes in given_
    ]

    def step(state: int, what: tuple[bool, int]) -> int | None:
        writes, value = what
        return value if writes else (state if state == value else None)

    def possible(state: int, left: list[Operation[tuple[bool, int]]]) -> bool:
        if all(one.ended == float("inf") for one in left):
            return True
        ends = min(one.ended for one in left)
        return any(
            one.began <= ends
            and (after := step(state, one.what)) is not None
            and possible(after, [other for other in left if other is not one])
            for one in left
        )

    assert explain(operations, 0, step).answer is possible(0, operations)
