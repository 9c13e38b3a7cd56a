"""Histories with a point: for each checker one that is wrong, and beside it one that looks like it and is right."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.chaos.histories import RUN_INFO, TTL, Story, right, verdicts, violated

from leasehold.chaos.checkers import linearizable
from leasehold.chaos.history import RUN, Event

STOPPED = replace(RUN_INFO, pauses_holders=True, faults=("pause",))


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


def test_who_hears_late_of_an_older_grant_was_overtaken_and_has_overtaken_nobody() -> None:
    """The engine's clock is set forward, and ends the lease of w1 before w1 has heard of it; then w2 has it."""
    story = Story()
    story.lease("w2", 1.5, 1.6, 2, release=4.0)
    op = story.lease("w1", 0.5, 2.0, 1)
    story.add(3.0, "w1", "lost", op, 1, told=True)
    story.fault(0.4, 1.4, "engine-clock-jump", "the engine")
    found = verdicts(story.history, STOPPED)
    assert (found["exclusive"].status, len(found["exclusive"].shown)) == ("held", 1)
    assert found["told"].status == "not asked"
    unexcused = [event for event in story.history if event.worker != "run"]
    assert verdicts(unexcused, STOPPED)["exclusive"].status == "violated"


def test_what_a_fault_did_may_show_before_it_is_done() -> None:
    """An operator ends the lease of w1; the next one is granted it before the operator is done and notes it."""
    story = Story()
    op = story.lease("w1", 0.0, 0.1, 1)
    story.add(3.0, "w1", "lost", op, 1, told=True)
    story.lease("w2", 0.5, 1.0, 2, release=1.5)
    story.fault(0.9, 1.2, "revocation", story.name, hit=1.1)
    found = verdicts(story.history, STOPPED)
    assert {found[name].status for name in ("exclusive", "linearizable", "told")} == {"held"}


def test_a_fault_is_no_excuse_for_what_was_before_it() -> None:
    story = Story()
    op = story.lease("w1", 0.0, 0.1, 1)
    story.add(3.0, "w1", "lost", op, 1, told=True)
    story.lease("w2", 0.5, 1.0, 2, release=1.5)
    story.fault(1.1, 1.2, "revocation", story.name)
    found = verdicts(story.history, STOPPED)
    assert {found[name].status for name in ("exclusive", "linearizable", "told")} == {"violated"}


def test_a_fault_that_robs_nobody_is_no_excuse_in_a_run_that_has_others() -> None:
    story = Story()
    op = story.lease("w1", 0.0, 0.1, 1)
    story.add(3.0, "w1", "lost", op, 1, told=True)
    story.fault(0.5, 2.0, "partition", "w1")
    story.lease("w2", 0.6, 1.6, 2, release=1.9)
    found = verdicts(story.history, STOPPED)
    assert {found[name].status for name in ("exclusive", "linearizable", "told")} == {"violated"}


def test_a_run_that_breaks_off_hides_no_fault() -> None:
    """It was about to strike: it may have struck anybody, for ever."""
    story = Story()
    op = story.lease("w1", 0.0, 0.1, 1)
    story.add(3.0, "w1", "lost", op, 1, told=True)
    story.fault(0.5, 2.0, "pause", "w2")
    story.lease("w2", 0.6, 1.6, 2, release=1.9)
    assert verdicts(story.history, STOPPED)["exclusive"].status == "violated"
    broken_off = [event for event in story.history if event.kind not in ("struck", "fault over")]
    assert verdicts(broken_off, STOPPED)["exclusive"].status == "held"


def test_who_was_robbed_knows_within_a_ttl_all_the_same() -> None:
    """A holder whose lease was taken by an operator is not told by anybody that it may go on."""
    for lost, status in ((1.0 + RUN_INFO.ttl, "held"), (1.1 + RUN_INFO.ttl, "violated")):
        story = Story()
        op = story.lease("w1", 0.0, 0.1, 1)
        story.fault(0.5, 0.9, "revocation", story.name)
        story.lease("w2", 0.6, 1.0, 2, release=1.5)
        story.add(lost, "w1", "lost", op, 1, told=True)
        assert verdicts(story.history, STOPPED)["told"].status == status


@pytest.mark.parametrize(
    ("fault", "struck", "over", "status"),
    [
        ("resets", "w1", 1.6, "held"),
        ("resets", "w1", 1.4 - RUN_INFO.ttl, "violated"),  # long ago
        ("resets", "w3", 1.6, "violated"),
        ("engine-restart", "server", 1.6, "held"),
        ("latency", "w1", 1.6, "violated"),  # which loses nothing
    ],
)
def test_a_release_whose_answer_may_have_been_lost_tells_nobody_anything(
    fault: str, struck: str, over: float, status: str
) -> None:
    """Asked again, the engine says that there is nothing to be released; that may be so since the first time."""
    story = Story()
    story.lease("w1", 0.0, 0.1, 1, release=1.5, released=1.8)
    story.fault(0.5, 0.9, "revocation", story.name)
    story.fault(min(0.5, over), over, fault, struck)
    story.lease("w2", 0.6, 1.0, 2, release=1.4)
    story.lease("w3", 2.0, 2.1, 3, release=2.2)
    found = verdicts(story.history, STOPPED)
    assert {found[name].status for name in ("linearizable", "told")} == {status}


@pytest.mark.parametrize(("fault", "status"), [("late-grant", "held"), (None, "violated")])
def test_a_grant_that_a_fault_holds_back_is_late_before_the_fault_is_said_to_have_struck(
    fault: str | None, status: str
) -> None:
    late = 3 * RUN_INFO.ttl
    story = Story()
    story.lease("w1", 0.0, 0.1, 1, release=0.9)
    if fault:
        story.fault(0.8, late + 4.0, fault, "w2", hit=late + 0.1)
    story.lease("w2", 0.5, late, 2, release=late + 1.0)
    assert verdicts(story.history, STOPPED)["recovery"].status == status


def test_a_release_in_doubt_is_no_excuse_where_nobody_was_robbed() -> None:
    story = Story()
    story.lease("w1", 0.0, 0.1, 1, release=1.5, released=1.8)
    story.fault(0.5, 1.6, "resets", "w1")
    story.lease("w2", 0.6, 1.0, 2, release=1.4)
    found = verdicts(story.history, STOPPED)
    assert {found[name].status for name in ("exclusive", "told")} == {"violated"}


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


@pytest.mark.parametrize(
    ("engine", "idle", "verdict"), [("redis", 5.5, "violated"), ("etcd", 5.5, "held"), ("etcd", 6.5, "violated")]
)
def test_a_name_may_lie_idle_for_as_long_as_the_engine_needs_to_end_a_lease(
    engine: str, idle: float, verdict: str
) -> None:
    story = _by(("w1", 0.0, 0.1, 1, 1.0), ("w2", 0.5, 1.0 + idle, 2, 1.5 + idle))
    story.add(1.6 + idle, RUN, "settled")
    story.lease("w1", 9.0 + idle, 9.1 + idle, 3, release=9.2 + idle)
    assert status(story, "liveness", engine=engine, ttl=1.0) == verdict


@pytest.mark.parametrize(("fault", "verdict"), [("revocation", "held"), ("partition", "violated")])
def test_a_lease_may_be_revoked_before_its_holder_knows_of_it(fault: str, verdict: str) -> None:
    """The engine grants it to w1, an operator ends it, w2 has it for a while; only then w1 hears of its grant."""
    story = Story()
    op = story.lease("w1", 0.0, 1.2, 1)
    story.fault(0.5, 0.6, fault, story.name)
    story.lease("w2", 0.3, 0.9, 2, release=1.0)
    story.add(1.5, "w1", "lost", op, 1, told=True)
    assert verdicts(story.history, STOPPED)["linearizable"].status == verdict
