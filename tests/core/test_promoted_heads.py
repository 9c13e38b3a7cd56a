"""Nobody tells a waiter that those before it were served: it must know in time all the same that it is the first.

When a holder dies, only the head of the queue may take its place at once. A head that still sleeps as somebody far
behind would let the name lie idle.
"""

from __future__ import annotations

import pytest

from leasehold.core import table
from leasehold.core.table import LATENESS, NEAR, SLACK, TURN, Ask, Entry, Refused, Taken

TTL = 2_000_000
PATIENCE = 3_600_000_000


def asked(entry: Entry, holder: str, now: int) -> Taken | Refused:
    return table.take(entry, Ask(holder, TTL, patience=PATIENCE, address="somewhere"), now, now)


def crowded(waiters: int) -> Entry:
    """A name that is held, and so many who want it."""
    entry = Entry()
    for number in range(waiters + 1):
        asked(entry, f"h{number}", 0)
    assert [place.holder for place in entry.queue] == [f"h{number}" for number in range(1, waiters + 1)]
    return entry


def looks_in_time(entry: Entry) -> bool:
    """Whether the head of the queue asks by itself when the lease ends, if nobody renews it."""
    return entry.queue[0].until - LATENESS <= entry.seats[0].expires + SLACK


def test_who_is_near_looks_when_the_lease_ends() -> None:
    entry = crowded(NEAR + 1)
    assert all(place.until - LATENESS <= TTL for place in entry.queue)


@pytest.mark.parametrize("waiters", [2, NEAR, NEAR + 1, 3 * NEAR, 100])
def test_every_new_head_looks_in_time_or_is_told(waiters: int) -> None:
    """Everybody is served at once, one after the other: each of them may be the one that dies."""
    entry, now, told = crowded(waiters), 0, 0
    for number in range(waiters - 1):
        now += 1000
        released = table.release(entry, f"h{number}", now)
        assert released.wake is entry.queue[0]
        taken = asked(entry, entry.queue[0].holder, now)
        assert isinstance(taken, Taken)
        head = entry.queue[0]
        if taken.wake is None:
            assert looks_in_time(entry)
        else:
            assert taken.wake is head
            told += 1
            assert isinstance(asked(entry, head.holder, now), Refused)
            assert looks_in_time(entry), "who was told knows when to look"
    assert told == max(waiters - NEAR - 1, 0), "who is near costs no message"


def test_the_next_one_is_told_when_the_head_leaves_while_the_name_is_held() -> None:
    entry = crowded(NEAR + 3)
    for number in range(1, NEAR + 2):
        table.release(entry, f"h{number}", 1000)
    wake = table.release(entry, f"h{NEAR + 2}", 1000).wake
    assert wake is entry.queue[0]
    assert wake.holder == f"h{NEAR + 3}"


@pytest.mark.parametrize("patience", [1, 3, 5, 7, 22, 3600])
def test_one_whose_patience_ends_soon_is_told_like_everybody(patience: int) -> None:
    """It looks when it was told to, or leaves when its patience ends, whichever is first; neither may be too late."""
    entry = crowded(NEAR + 1)
    refused = table.take(entry, Ask("last", TTL, patience=patience * 1_000_000, address="somewhere"), 0, 0)
    assert isinstance(refused, Refused)
    acts_at = min(refused.ask_again, patience * 1_000_000)
    told = False
    for number in range(NEAR + 1):
        table.release(entry, f"h{number}", 1000 * number)
        taken = asked(entry, f"h{number + 1}", 1000 * number)
        assert isinstance(taken, Taken)
        told = taken.wake is not None and taken.wake.holder == "last"
    assert entry.queue[0].holder == "last"
    assert told == (acts_at > entry.seats[0].expires + SLACK)


def test_who_moves_up_behind_a_dead_waiter_comes_when_its_turn_does() -> None:
    """It asked while the name was free and two were in front. One of them is served and the other is dead."""
    entry = crowded(2)
    table.release(entry, "h0", 0)
    third = asked(entry, "h3", 0)
    assert isinstance(third, Refused)
    assert isinstance(asked(entry, "h1", 1000), Taken)
    table.release(entry, "h1", 2000)
    asks_at = third.ask_again
    while isinstance(again := asked(entry, "h3", asks_at), Refused):
        asks_at += again.ask_again
    assert 2000 + TURN <= asks_at <= 2000 + TURN + SLACK


def test_who_stands_before_a_closed_name_does_not_look_at_every_turn() -> None:
    entry = Entry(closed_until=10 * TURN)
    refused = [asked(entry, holder, 0) for holder in ("h1", "h2", "h3")]
    assert isinstance(refused[2], Refused)
    assert refused[2].ask_again > TURN
