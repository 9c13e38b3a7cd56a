"""Every checker accepts what is right, however odd it looks, and rejects a history with one thing wrong in it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tests.chaos.histories import RUN_INFO, TTL, Story, changed, right, verdicts

from leasehold.chaos.checkers import CHECKERS, linearizable
from leasehold.chaos.checkers.search import Operation, explain
from leasehold.chaos.history import RUN, Event

# The same examples in every run: a search for new ones is no part of the suite.
EXAMPLES = settings(derandomize=True, deadline=None, suppress_health_check=list(HealthCheck), max_examples=15)
SEEDS = st.integers(0, 2**32)
STOPPED = replace(RUN_INFO, pauses_holders=True, faults=("pause",))


def violated(history: list[Event]) -> set[str]:
    """The properties that the history breaks."""
    return {name for name, verdict in verdicts(history).items() if verdict.status == "violated"}


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
    return {event.worker for event in history} - {one.detail["at"] for one in history if one.kind == "fault"}


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


# Histories with a point: a wrong one, and beside it one that looks like it and is right


def _by(*leases: tuple[str, float, float, int | None, float | None], **detail: Any) -> Story:
    story = Story()
    for worker, ask, granted, token, release in leases:
        story.lease(worker, ask, granted, token, release=release, **detail)
    return story


def status(story: Story, name: str, **run: Any) -> str:
    return verdicts(story.history, replace(RUN_INFO, **run))[name].status


def test_readers_do_not_exclude_readers() -> None:
    readers = [("w1", 0.0, 1.0, 1, 5.0), ("w2", 0.0, 2.0, 2, 4.0)]
    assert status(_by(*readers, mode="shared"), "exclusive") == "held"
    assert status(_by(*readers, mode="shared"), "linearizable") == "held"
    story = _by(*readers, mode="shared")
    story.lease("w3", 2.0, 3.0, 3, release=3.5, mode="exclusive")
    assert status(story, "exclusive") == "violated"
    assert status(story, "linearizable") == "violated"


@pytest.mark.parametrize(("permits", "verdict"), [(2, "held"), (1, "violated")])
def test_permits_are_counted(permits: int, verdict: str) -> None:
    story = _by(("w1", 0.0, 1.0, 1, 5.0), ("w2", 0.0, 2.0, 2, 4.0), mode="permit", permits=permits)
    assert status(story, "permits") == verdict
    assert status(story, "linearizable") == verdict
    assert status(story, "exclusive") == "not asked"


@pytest.mark.parametrize(
    ("again", "token", "verdict"), [(True, 5, "held"), (True, 6, "violated"), (False, 5, "violated")]
)
def test_who_asks_again_gets_the_same_lease(again: bool, token: int, verdict: str) -> None:
    story = _by(("w1", 0.0, 1.0, 5, 9.0))
    story.lease("w1", 2.0, 2.1, token, release=3.0, again=again)
    story.lease("w2", 3.0, 9.1, 7, release=9.5)
    assert status(story, "linearizable") == verdict
    assert status(story, "exclusive") == ("held" if again else "violated")


def test_a_lease_that_its_holders_clock_ended_may_be_taken_over() -> None:
    """The holder was stopped, and learns of it only later; but belief is what its clock says."""
    story = Story()
    op = story.lease("w1", 0.0, 0.1, 1)
    story.add(2.05, "w1", "believed until", op, 1)
    story.add(8.0, "w1", "lost", op, 1, told=False)
    story.lease("w2", 1.0, 2.1, 2, release=3.0)
    found = verdicts(story.history)
    assert {found[name].status for name in ("exclusive", "linearizable", "told")} == {"held"}
    early = [event for event in story.history if event.kind != "believed until"]
    assert {"exclusive", "linearizable", "told"} <= violated(early)


def test_who_held_all_the_while_was_not_overtaken() -> None:
    """The grant of w2 was so late that it had run out when it arrived; w1 holds by right, and releases."""
    story = _by(("w1", 0.0, 3.0, 2, 4.0))
    late = story.lease("w2", 0.5, 3.5, 1)
    story.add(3.6, "w2", "lost", late, 1, told=False)
    assert status(story, "exclusive") == "violated"
    assert status(story, "told") == "not asked"


def test_an_overlap_after_a_stop_is_shown_but_not_held_against_the_lock() -> None:
    story = _by(("w1", 0.0, 0.1, 1, 9.0), ("w2", 1.0, 2.3, 2, 3.0))
    story.fault(1.0, 6.0, "pause", "w1")
    found = verdicts(story.history, STOPPED)
    assert (found["exclusive"].status, len(found["exclusive"].shown)) == ("held", 1)
    elsewhere = _by(("w1", 0.0, 0.1, 1, 9.0), ("w2", 1.0, 2.3, 2, 3.0))
    elsewhere.fault(1.0, 6.0, "pause", "w3")
    assert verdicts([*elsewhere.history, Event(0.0, "w3", "ask", op=99)], STOPPED)["exclusive"].status == "violated"


def test_what_a_fault_did_may_show_before_it_was_recorded() -> None:
    """An operator ends the lease of w1; the next one is granted it before the operator is done and notes it."""
    story = Story()
    op = story.lease("w1", 0.0, 0.1, 1)
    story.add(3.0, "w1", "lost", op, 1, told=True)
    story.lease("w2", 0.5, 1.0, 2, release=1.5)
    story.fault(1.1, 1.2, "revocation", story.name)
    found = verdicts(story.history, STOPPED)
    assert {found[name].status for name in ("exclusive", "linearizable", "told")} == {"held"}
    assert {"exclusive", "linearizable", "told"} <= violated(story.history)


def test_a_confirmed_release_of_a_lease_that_somebody_else_has_is_a_lie() -> None:
    """Nobody's beliefs overlap, but whoever released removed the lease of its successor."""
    story = Story()
    op = story.lease("w1", 0.0, 0.1, 1, release=3.0, released=3.1)
    story.add(2.0, "w1", "believed until", op, 1)
    story.lease("w2", 1.0, 2.1, 2, release=4.0)
    assert status(story, "exclusive") == "held"
    assert status(story, "linearizable") == "violated"
    unknown = [
        replace(one, kind="unknown") if one.kind == "released" and one.op == op else one for one in story.history
    ]
    assert verdicts(unknown)["linearizable"].status == "held"


def test_a_grant_may_be_known_before_the_release_that_made_it_possible() -> None:
    story = Story()
    story.lease("w1", 0.0, 0.1, 1, release=1.0, released=2.0)
    story.lease("w2", 0.5, 1.2, 2, release=1.5)
    assert status(story, "linearizable") == "held"


def test_tokens_of_overlapping_asks_may_come_either_way() -> None:
    """The grant with the lower token became known last: its answer was slow."""
    story = Story()
    op = story.lease("w1", 0.0, 3.0, 1)
    story.add(3.001, "w1", "believed until", op, 1)
    story.lease("w2", 0.5, 2.5, 2, release=2.9)
    assert status(story, "token order") == "held"
    story.lease("w3", 3.5, 3.6, 1, release=4.0)
    assert status(story, "token order") == "violated"


def test_busy_needs_somebody_who_holds() -> None:
    story = _by(("w1", 0.0, 0.1, 1, 9.0))
    refused = story.op()
    story.add(5.0, "w2", "ask", refused, wait=0)
    story.add(5.1, "w2", "busy", refused)
    assert status(story, "linearizable") == "held"
    story.add(20.0, "w2", "ask", refused + 1, wait=0)
    story.add(20.1, "w2", "busy", refused + 1)
    assert status(story, "linearizable") == "violated"
    story.fault(18.0, 20.0, "engine restart", "engine")
    assert status(story, "linearizable") == "held"


def test_a_search_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linearizable, "BUDGET", 10)
    verdict = verdicts(right(1))["linearizable"]
    assert verdict.status == "unknown"
    assert "given up after 10 steps" in verdict.why


def test_the_plain_side_is_shown_only() -> None:
    story = Story()
    for side in ("plain", "fenced"):
        for at, worker, token in ((1.0, "w2", 2), (2.0, "w1", 1)):
            accepted = side == "plain" or token == 2
            story.write(
                at, worker, 0, token, f"{worker}-{side}", side=side,
                logged="accepted" if accepted else "rejected", outcome="wrote" if accepted else "refused",
            )  # fmt: skip
    found = verdicts(story.history)
    assert found["stale writes"].status == "held"
    assert [one.at for one in found["stale writes"].shown] == [2.001]
    assert found["stale writes"].figures["refused by the fence"] == 1
    assert found["lost updates"].figures["lost (plain)"] == 1


def test_a_fence_that_refuses_the_highest_token_is_wrong() -> None:
    story = Story()
    story.write(1.0, "w1", 0, 1, "a")
    story.write(2.0, "w2", 0, 2, "b", "a", logged="rejected", outcome="refused")
    assert status(story, "stale writes") == "violated"


def test_stale_writes_are_found_without_tokens() -> None:
    story = Story()
    first = story.lease("w1", 0.0, 0.1, release=5.0)
    second = story.lease("w2", 0.5, 2.5, release=3.0)
    story.write(2.6, "w2", second, None, "b", side="plain")
    story.write(4.0, "w1", first, None, "a", side="plain")
    assert len(verdicts(story.history)["stale writes"].shown) == 1


@pytest.mark.parametrize(
    ("kind", "final", "verdict"),
    [
        ("set", ["a", "b"], "held"),
        ("set", ["a"], "violated"),
        ("queue", ["a", "b", "a"], "violated"),
        ("bank", ["a", "b"], "held"),
    ],
)
def test_what_was_collected_is_there_in_the_end(kind: str, final: list[str], verdict: str) -> None:
    story = Story()
    story.write(1.0, "w1", 0, 1, "a", kind=kind)
    # Nobody but the resource knows that the second one took effect: its writer was killed.
    story.write(2.0, "w2", 0, 2, "b", kind=kind, outcome="end")
    story.final(9.0, final, kind=kind)
    assert status(story, "lost updates") == verdict
    if kind == "bank":
        story.final(9.0, final, kind=kind, off_by=-7)
        assert status(story, "lost updates") == "violated"


def test_the_last_value_is_the_one_that_was_written_last() -> None:
    story = Story()
    story.write(1.0, "w1", 0, 1, "a")
    story.write(2.0, "w1", 0, 1, "b", "a", outcome="unknown")
    story.final(9.0, "b")
    assert status(story, "lost updates") == "held"
    story.final(9.0, "a")
    assert status(story, "lost updates") == "violated"


@pytest.mark.parametrize(
    ("results", "effects", "verdict"),
    [
        (["ok", "ok"], 1, "held"),  # asked twice, done once, told the same
        (["ok", "other"], 1, "violated"),
        (["ok"], 2, "violated"),
        (["ok"], 0, "violated"),
        ([], 1, "held"),  # whoever paid was killed before it was told
    ],
)
def test_a_payment_takes_effect_once(results: list[str], effects: int, verdict: str) -> None:
    story = Story()
    story.write(0.5, "w9", 0, None, 1, kind="payment", key="another", result="ok")
    for number in range(max(len(results), effects)):
        told = number < len(results)
        story.write(
            1.0 + number, f"w{number}", 0, None, 10, kind="payment", key="pay-1",
            outcome="wrote" if told else "end", logged="accepted" if number < effects else None,
            result=results[number] if told else None,
        )  # fmt: skip
    assert status(story, "idempotency") == verdict


@pytest.mark.parametrize(("times", "reported", "verdict"), [(1, 1, "held"), (2, 2, "violated"), (0, 1, "violated")])
def test_a_tick_is_completed_once(times: int, reported: int, verdict: str) -> None:
    story = Story()
    story.write(0.5, "w9", 0, None, 1, kind="job", key="11:00")
    for number in range(max(times, reported)):
        story.write(
            1.0 + number, f"w{number}", 0, None, 1, kind="job", key="12:00",
            outcome="wrote" if number < reported else "end", logged="accepted" if number < times else None,
        )  # fmt: skip
    assert status(story, "once-only jobs") == verdict


@pytest.mark.parametrize(
    ("writes", "verdict"),
    [
        ([("w1", 1), ("w1", 1), ("w2", 2)], "held"),
        ([("w1", 1), ("w2", 2), ("w1", 3)], "held"),  # it came back, in an epoch of its own
        ([("w1", 1), ("w2", 1)], "violated"),
        ([("w1", 1), ("w2", 2), ("w1", 1)], "violated"),
    ],
)
def test_a_partition_has_one_writer_in_each_epoch(writes: list[tuple[str, int]], verdict: str) -> None:
    story = Story()
    for number, (worker, epoch) in enumerate(writes):
        story.write(1.0 + number, worker, 0, epoch, number + 1, kind="partition")
    assert status(story, "partitions") == verdict


def _death(granted: float, **run: Any) -> str:
    story = Story()
    story.lease("w1", 0.0, 0.1, 1)
    story.fault(1.0, 1.1, "kill", "w1")
    story.lease("w2", 0.5, granted, 2, release=granted + 0.1)
    return status(story, "recovery", **run)


def test_recovery_from_a_death_takes_a_lease() -> None:
    assert _death(1.0 + TTL + 0.4) == "held"
    assert _death(1.0 + TTL + 4.0) == "violated"
    assert _death(1.0 + TTL + 4.0, engine="etcd") == "held"
    assert _death(1.0 + 2 * TTL + 1.5, engine="consul") == "held"


@pytest.mark.parametrize(("late", "verdict"), [(3.9, "held"), (4.5, "violated")])
def test_a_waiter_that_was_stopped_costs_a_turn(late: float, verdict: str) -> None:
    story = Story()
    story.lease("w1", 0.0, 0.1, 1)
    waiting = story.op()
    story.add(0.2, "w3", "ask", waiting, wait=60.0)
    story.fault(1.0, 1.1, "kill", "w1, w3")
    story.lease("w2", 0.5, 1.0 + TTL + 0.5 + late, 2, release=20.0)
    assert status(story, "recovery") == verdict


def test_a_lock_that_nobody_gets_any_more_is_stuck() -> None:
    story = Story()
    story.lease("w1", 0.0, 0.1, 1, release=1.0)
    waiting = story.op()
    story.add(2.0, "w2", "ask", waiting, wait=60.0)
    story.add(3.0, RUN, "settled")
    story.add(9.0, "w2", "lost", 77)
    assert "Nobody was granted" in verdicts(story.history)["recovery"].violations[0].text
    story.add(2.5, "w2", "granted", waiting, 2)
    assert status(story, "recovery") == "held"


def test_who_was_stopped_may_be_late() -> None:
    story = Story()
    story.lease("w1", 0.0, 9.0, 1, release=9.1, wait=1.0)
    assert status(story, "wait overrun") == "violated"
    story.fault(0.5, 8.9, "pause", "w1")
    assert status(story, "wait overrun") == "not asked"


def test_a_run_that_never_settled_leaves_liveness_unknown() -> None:
    story = _by(("w1", 0.0, 0.1, 1, 1.0))
    assert status(story, "liveness") == "unknown"
    story.add(2.0, RUN, "settled")
    story.lease("w1", 3.0, 3.1, 2, release=4.0)
    assert status(story, "liveness") == "held"


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
