"""Each judge, on histories written by hand: what it condemns, and what it must let pass."""

from __future__ import annotations

from dataclasses import replace

import pytest

from leasehold.core.held import RAN_OUT, RELEASED
from leasehold.sim.history import (
    Began,
    Broke,
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
    Left,
    Moved,
    NotGot,
    Queued,
    Refused,
    Told,
    Touched,
    Unqueued,
)
from leasehold.sim.judges import judge, lost_updates
from leasehold.sim.plan import LAST_WAIT, draw
from leasehold.sim.record import Record

PLAN = replace(draw(0), kinds=(), lock_delay=0.0, ttl=1.0, workers=(1, 1), names=("a",))


def condemned(*events: Event, kinds: tuple[str, ...] = (), lock_delay: float = 0.0) -> list[str]:
    """The judges that find fault."""
    plan = replace(PLAN, kinds=kinds, lock_delay=lock_delay)
    ordered = sorted(events, key=lambda event: event.at)
    return sorted({violation.judge for violation in judge(History(0, plan, [*ordered, Calm(900.0)], 1000.0))})


def began(
    at: float, holder: str, *, mode: str = "exclusive", limit: int = 1, wait: float = 5.0, **more: float
) -> Began:
    delay, due = more.get("delay", 0.0), more.get("due", at + wait + 1.0)
    return Began(at, f"{holder[0]}1", holder, "a", mode, limit, 1.0, wait, delay, due, together=False)  # type: ignore[arg-type]


def lease(
    holder: str, since: float, until: float, *, token: int, mode: str = "exclusive", limit: int = 1
) -> list[Event]:
    """A lease from its grant to a release that works."""
    who = f"{holder[0]}1"
    return [
        began(since, holder, mode=mode, limit=limit),
        Granted(since, "a", holder, token, mode),  # type: ignore[arg-type]
        Got(since, who, holder, "a", token, until + 0.5),
        Ended(until, who, holder, RELEASED),
        Freed(until, "a", holder, "released", 0.0),
        Done(until, who, holder, "released"),
    ]


def lost(holder: str, since: float, until: float, *, token: int, told: float, delay: float = 0.0) -> list[Event]:
    """A lease whose deadline passes."""
    who = f"{holder[0]}1"
    return [
        began(since, holder, delay=delay),
        Granted(since, "a", holder, token, "exclusive"),
        Got(since, who, holder, "a", token, until),
        Ended(told, who, holder, RAN_OUT),
        Told(told, who, holder),
        Freed(until + 0.01, "a", holder, "lapsed", until + 0.01 + delay if delay else 0.0),
        Done(told, who, holder, "LeaseLost"),
    ]


def test_leases_that_follow_each_other_are_fine() -> None:
    assert condemned(*lease("A.1", 1.0, 2.0, token=1), *lease("B.1", 2.1, 3.0, token=2)) == []


@pytest.mark.parametrize("kinds", [(), ("pause", "crash", "back")])
def test_two_who_believe(kinds: tuple[str, ...]) -> None:
    both = [*lease("A.1", 1.0, 3.0, token=1), *lease("B.1", 2.0, 4.0, token=2)]
    assert "exclusion" in condemned(*both, kinds=kinds)
    assert condemned(*both, kinds=(*kinds, "forward")) == [], "no lease can bear that"


def test_who_hears_late_of_a_lock_that_its_connection_has_lost() -> None:
    """That is the business of other judges."""
    late: list[Event] = [
        began(0.5, "A.1"),
        Granted(0.6, "a", "A.1", 1, "exclusive"),
        Freed(0.9, "a", "A.1", "broken", 0.0),
        Got(1.2, "A1", "A.1", "a", 1, 1.5),
        Ended(1.3, "A1", "A.1", RELEASED),
        Done(1.3, "A1", "A.1", "released"),
    ]
    assert condemned(*lease("B.1", 1.0, 2.0, token=2), *late, kinds=("half",)) == []
    unbroken = [event for event in late if not isinstance(event, Freed)]
    assert condemned(*lease("B.1", 1.0, 2.0, token=2), *unbroken, kinds=("half",)) == ["exclusion"]


def test_readers_may_believe_together_but_not_with_a_writer() -> None:
    readers = [*lease("A.1", 1.0, 3.0, token=1, mode="shared"), *lease("B.1", 2.0, 4.0, token=2, mode="shared")]
    assert condemned(*readers) == []
    assert "exclusion" in condemned(*readers, *lease("C.1", 2.5, 2.7, token=3))


def test_no_more_than_the_permits() -> None:
    two = [
        *lease("A.1", 1.0, 3.0, token=1, mode="permit", limit=2),
        *lease("B.1", 2.0, 4.0, token=2, mode="permit", limit=2),
    ]
    assert condemned(*two) == []
    assert condemned(*two, *lease("C.1", 2.5, 2.7, token=3, mode="permit", limit=2)) == ["exclusion"]


def test_a_lease_that_is_over_when_it_is_returned() -> None:
    late: list[Event] = [began(1.0, "A.1"), Got(3.0, "A1", "A.1", "a", 1, 2.0), Ended(3.0, "A1", "A.1", RELEASED)]
    assert condemned(*late, kinds=("forward",)) == ["exclusion"]


@pytest.mark.parametrize("second", [1, 2])
def test_tokens_must_rise(second: int) -> None:
    events = [*lease("A.1", 1.0, 2.0, token=2), *lease("B.1", 3.0, 4.0, token=second)]
    assert "tokens" in condemned(*events, kinds=("back", "force", "wild"))
    assert condemned(*events, kinds=("wipe", "back")) == [], "lost data and a clock set back"


def touched(
    at: float, token: int, *, write: int = 0, based_on: int = 0, accepted: bool = True, fence: str = "both"
) -> Event:
    return Touched(at, "A1", f"A.{token}", f"a/{fence}", fence, write, based_on, token, 0, accepted)


def test_a_fence_takes_no_stale_token_and_refuses_no_other() -> None:
    assert condemned(touched(1.0, 5), touched(2.0, 4)) == ["fence"]
    assert condemned(touched(1.0, 5), touched(2.0, 5, accepted=False)) == ["fence"]
    assert condemned(touched(1.0, 5), touched(2.0, 4, accepted=False), touched(3.0, 5, write=1)) == []


def test_an_update_lost_behind_a_whole_fence() -> None:
    reads_first = [touched(1.0, 5), touched(2.0, 5, write=1), touched(3.0, 5, write=2, based_on=0)]
    assert condemned(*reads_first) == ["fence"]


def test_updates_lost_without_a_fence_are_counted_not_condemned() -> None:
    events = [touched(1.0, 5, write=1, fence="none"), touched(2.0, 4, write=2, based_on=0, fence="none")]
    assert condemned(*events) == []
    assert lost_updates(Record(History(0, PLAN, events, 9.0)), "none") == 1


def test_a_loss_must_be_told_in_time() -> None:
    assert condemned(*lost("A.1", 1.0, 2.0, token=1, told=2.0)) == []
    assert condemned(*lost("A.1", 1.0, 2.0, token=1, told=2.3)) == ["told"]


def test_a_paused_holder_is_told_when_it_wakes_up() -> None:
    pause = Fault(1.5, "pause", "A", 4.0, "")
    assert condemned(pause, *lost("A.1", 1.0, 2.0, token=1, told=4.001), kinds=("pause",)) == []
    assert condemned(pause, *lost("A.1", 1.0, 2.0, token=1, told=4.5), kinds=("pause",)) == ["told"]


def test_a_dead_holder_need_not_be_told() -> None:
    crash = Fault(2.01, "crash", "A", 2.01, "")
    silent: list[Event] = [
        began(1.0, "A.1"),
        Got(1.0, "A1", "A.1", "a", 1, 2.0),
        Ended(2.01, "A1", "A.1", "its process died"),
        crash,
    ]
    assert condemned(*silent, kinds=("crash",)) == []


def test_nothing_comes_back_to_life() -> None:
    events = lost("A.1", 1.0, 2.0, token=1, told=2.0)
    assert condemned(*events, Moved(2.5, "A1", "A.1", 3.5)) == ["told"]
    assert condemned(*events, Ended(2.5, "A1", "A.1", "")) == ["told"]


def test_belief_must_be_over_when_the_server_grants_to_another() -> None:
    events = [*lost("A.1", 1.0, 2.0, token=1, told=2.0), Granted(1.9, "a", "B.1", 2, "exclusive")]
    assert "told" in condemned(*events)
    assert "told" not in condemned(*events, kinds=("force",))


def test_who_is_patient_is_served_in_good_weather() -> None:
    waits: list[Event] = [began(950.0, "A.1", wait=LAST_WAIT), NotGot(951.0, "A1", "A.1", "NotAcquired")]
    assert condemned(*waits, kinds=("loss",)) == ["liveness"]
    assert condemned(began(1.0, "A.1", wait=2.0), NotGot(3.0, "A1", "A.1", "NotAcquired"), kinds=("loss",)) == []


def test_a_name_must_not_lie_idle_while_it_is_waited_for() -> None:
    events = [began(901.0, "A.1", wait=60.0), *lease("A.1", 950.0, 951.0, token=1)[1:]]
    assert condemned(*events, kinds=("loss",)) == ["liveness"]


@pytest.mark.parametrize(("served", "verdict"), [(930.0, []), (950.0, ["liveness"])])
def test_who_is_lost_by_the_server_queues_anew(served: float, verdict: list[str]) -> None:
    events = [began(901.0, "A.1", wait=60.0), *lease("A.1", served, served + 1.0, token=1)[1:]]
    assert condemned(*events, Deafened(902.0, "A", "A.1"), kinds=("loss", "half")) == verdict


def test_nobody_is_refused_because_of_itself() -> None:
    assert condemned(*lease("A.1", 1.0, 2.0, token=1), Refused(1.5, "a", "A.1")) == ["liveness"]
    assert condemned(*lease("A.1", 1.0, 2.0, token=1), Refused(1.5, "a", "B.1")) == []


def test_nothing_is_left() -> None:
    assert condemned(Left(990.0, "a", "A.1", "seat"), kinds=("loss",)) == ["leftovers"]


def test_in_good_weather_nothing_is_left_for_a_second() -> None:
    interrupted: list[Event] = [
        began(1.0, "A.1"),
        NotGot(1.0, "A1", "A.1", "Interrupted"),
        Granted(1.01, "a", "A.1", 1, "exclusive"),
    ]
    late = Freed(3.0, "a", "A.1", "lapsed", 0.0)
    assert condemned(*interrupted, Freed(1.4, "a", "A.1", "released", 0.0)) == []
    assert condemned(*interrupted, late) == ["leftovers"]
    assert condemned(*interrupted, late, kinds=("loss",)) == []
    assert condemned(*interrupted[:2], Granted(3.0, "a", "A.1", 1, "exclusive"), late) == []
    queued: list[Event] = [began(1.0, "A.1"), Queued(1.1, "a", "A.1"), NotGot(2.0, "A1", "A.1", "NotAcquired")]
    assert condemned(*queued, Unqueued(2.1, "a", "A.1", "released")) == []
    assert condemned(*queued, Unqueued(3.5, "a", "A.1", "lapsed")) == ["leftovers"]


def waiting(holder: str, since: float, granted: float, token: int) -> list[Event]:
    who = f"{holder[0]}1"
    return [
        began(since, holder),
        Queued(since, "a", holder),
        Granted(granted, "a", holder, token, "exclusive"),
        Unqueued(granted, "a", holder, "lapsed"),
        Got(granted + 0.01, who, holder, "a", token, granted + 1.0),
        Ended(granted + 0.1, who, holder, RELEASED),
        Freed(granted + 0.1, "a", holder, "released", 0.0),
        Done(granted + 0.1, who, holder, "released"),
    ]


def test_first_come_first_served() -> None:
    holding = lease("A.1", 1.0, 2.0, token=1)
    assert condemned(*holding, *waiting("B.1", 1.1, 2.05, 2), *waiting("C.1", 1.2, 2.3, 3)) == []
    past = [*holding, *waiting("B.1", 1.1, 2.3, 3), *waiting("C.1", 1.2, 2.05, 2)]
    assert condemned(*past) == ["order"]
    assert condemned(*past, kinds=("loss",)) == []


def test_who_is_next_is_served_promptly() -> None:
    assert condemned(*lease("A.1", 1.0, 2.0, token=1), *waiting("B.1", 1.1, 2.9, 2)) == ["handover"]


def test_acquire_keeps_to_its_wait() -> None:
    late: list[Event] = [began(1.0, "A.1", due=3.0), NotGot(4.0, "A1", "A.1", "NotAcquired")]
    assert condemned(*late, kinds=("cut",)) == ["patience"]
    assert condemned(*late, Fault(2.0, "pause", "A", 3.9, ""), kinds=("cut", "pause")) == []


def test_a_lock_delay_is_kept() -> None:
    loss = lost("A.1", 1.0, 2.0, token=1, told=2.0, delay=1.0)
    assert condemned(*loss, *lease("B.1", 2.5, 2.6, token=2), lock_delay=1.0) == ["lock_delay"]
    assert condemned(*loss, *lease("B.1", 3.2, 3.3, token=2), lock_delay=1.0) == []
    assert condemned(*loss, *lease("B.1", 2.5, 2.6, token=2), kinds=("back",), lock_delay=1.0) == []


def test_a_lock_delay_is_for_a_lease_that_somebody_was_told_of() -> None:
    untold: list[Event] = [
        began(1.0, "A.1", delay=1.0),
        Granted(1.0, "a", "A.1", 1, "exclusive"),
        Freed(2.0, "a", "A.1", "lapsed", 3.0),
    ]
    taken = lease("B.1", 2.5, 2.6, token=2)
    given_up, told = NotGot(2.7, "A1", "A.1", "OutcomeUnknown"), Got(1.9, "A1", "A.1", "a", 1, 2.0)
    assert condemned(*untold, given_up, *taken, lock_delay=1.0) == []
    assert "lock_delay" in condemned(*untold, told, *taken, lock_delay=1.0)
    death = Fault(1.5, "crash", "A", 1.5, "")
    assert condemned(*untold, death, *taken, kinds=("crash",), lock_delay=1.0) == ["lock_delay"]
    other: list[Event] = [
        began(0.9, "C.1", delay=1.0),
        Freed(1.9, "a", "C.1", "lapsed", 2.9),
        Fault(1.5, "crash", "C", 1.5, ""),
    ]
    assert condemned(*other, *untold, given_up, *taken, kinds=("crash",), lock_delay=1.0) == ["lock_delay"]


def test_an_algorithm_that_breaks() -> None:
    assert condemned(Broke(1.0, "renewals", "ValueError()"), kinds=("wipe", "back")) == ["soundness"]
