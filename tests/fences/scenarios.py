"""What every fence must do, told once. Each scenario starts with a resource that nobody has touched.

The mutants in `test_mutants.py` show that these scenarios find a fence that is wrong.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable

import pytest
import redis
from tests.fences.guards import Blocked, Guard

from leasehold.errors import LeaseholdError, StaleToken, TokenUsed

Scenario = Callable[[Guard], None]


def a_lower_token_is_refused_with_both_numbers(guard: Guard) -> None:
    guard.write(5, "new")
    with pytest.raises(StaleToken) as refused:
        guard.write(4, "stale")
    assert (refused.value.resource, refused.value.token, refused.value.seen) == (guard.resource, 4, 5)
    with pytest.raises(StaleToken):
        guard.read(4)
    with pytest.raises(StaleToken):
        guard.announce(4)
    assert (guard.peek(), guard.floor()) == ("new", 5)


def an_equal_token_is_accepted(guard: Guard) -> None:
    guard.write(5, "first")
    guard.write(5, "second")
    assert guard.read(5) == "second"
    guard.announce(5)
    guard.write(5, "third")
    assert (guard.peek(), guard.floor()) == ("third", 5)


def a_higher_token_is_accepted_and_raises_the_floor(guard: Guard) -> None:
    for token in (0, 1, 9, 10, 99, 1_000):  # as texts, 9 would come after 10
        guard.write(token, str(token))
        assert (guard.peek(), guard.floor()) == (str(token), token)


def a_fenced_read_raises_the_floor(guard: Guard) -> None:
    guard.write(4, "old")
    assert guard.read(5) == "old"
    with pytest.raises(StaleToken):
        guard.write(4, "stale")
    assert (guard.peek(), guard.floor()) == ("old", 5)


def an_announcement_raises_the_floor(guard: Guard) -> None:
    guard.announce(4)
    guard.announce(5)
    with pytest.raises(StaleToken):
        guard.write(4, "stale")
    assert (guard.peek(), guard.floor()) == (None, 5)


def a_delete_is_a_write(guard: Guard) -> None:
    guard.write(5, "new")
    with pytest.raises(StaleToken):
        guard.delete(4)
    assert guard.peek() == "new"
    guard.delete(6)
    with pytest.raises(StaleToken):
        guard.write(5, "stale")
    assert (guard.peek(), guard.floor()) == (None, 6)


def the_floor_outlives_what_it_protects(guard: Guard) -> None:
    guard.write(5, "first life")
    guard.delete(5)
    assert guard.floor() == 5
    with pytest.raises(StaleToken):
        guard.write(4, "stale")
    guard.write(5, "second life")
    with pytest.raises(StaleToken):
        guard.write(4, "stale")
    assert guard.peek() == "second life"


def the_floor_never_falls(guard: Guard) -> None:
    guard.write(5, "new")
    guard.raise_floor(3)
    assert guard.floor() == 5
    guard.raise_floor(7)
    with pytest.raises(StaleToken):
        guard.write(6, "stale")
    guard.write(7, "newer")
    assert (guard.peek(), guard.floor()) == ("newer", 7)


def once_means_one_write_per_token(guard: Guard) -> None:
    guard.announce(5)
    assert guard.read(5) is None  # neither of the two is a write
    guard.write(5, "only", once=True)
    with pytest.raises(TokenUsed) as refused:
        guard.write(5, "again", once=True)
    assert (refused.value.resource, refused.value.token) == (guard.resource, 5)
    with pytest.raises(StaleToken):
        guard.write(4, "stale", once=True)
    assert guard.peek() == "only"
    guard.write(6, "next", once=True)
    guard.write(7, "many")
    with pytest.raises(TokenUsed):
        guard.write(7, "again", once=True)
    assert guard.peek() == "many"


def neighbours_above_two_to_the_53_are_told_apart(guard: Guard) -> None:
    for token in (2**53, 2**53 + 1, 10**18 - 1, 10**18, 2**63 - 2, 2**63 - 1):
        guard.write(token, str(token))
        guard.write(token, str(token), once=False)
        with pytest.raises(StaleToken) as refused:
            guard.write(token - 1, "stale")
        assert (refused.value.token, refused.value.seen) == (token - 1, token)
        assert (guard.peek(), guard.floor()) == (str(token), token)


def with_reads_fenced_no_update_is_lost(guard: Guard) -> None:
    old, new = guard, guard.another()
    old.write(1, "10")
    seen_by_new = new.read(2)
    with pytest.raises(StaleToken):
        old.write(1, "11")
    new.write(2, f"{seen_by_new} and more")
    assert guard.peek() == "10 and more"


def a_stale_write_never_lands_after_a_later_one(guard: Guard) -> None:
    """The later holder writes as soon as it can: at best between the check and the write of the earlier one."""
    later, wrote = guard.another(), []

    def overtake() -> None:
        try:
            later.write(2, "later")
            wrote.append(True)
        except Blocked:
            pass

    with contextlib.suppress(StaleToken):  # where nobody is locked out, the earlier one is refused
        guard.write(1, "earlier", between=overtake)
    if not wrote:
        overtake()
    assert wrote
    assert (guard.peek(), guard.floor()) == ("later", 2)


def the_same_bytes_do_not_hide_a_later_holder(guard: Guard) -> None:
    """What looks the same may have seen a later token meanwhile: the trap of ETags that speak of the body alone."""
    guard.write(1, "same")
    later, wrote = guard.another(), []

    def overtake() -> None:
        try:
            later.write(2, "same")
            wrote.append(True)
        except Blocked:
            pass

    with contextlib.suppress(StaleToken):
        guard.write(1, "stale", between=overtake)
    if not wrote:
        overtake()
    assert wrote
    assert (guard.peek(), guard.floor()) == ("same", 2)


SCENARIOS: tuple[Scenario, ...] = (
    a_lower_token_is_refused_with_both_numbers,
    an_equal_token_is_accepted,
    a_higher_token_is_accepted_and_raises_the_floor,
    a_fenced_read_raises_the_floor,
    an_announcement_raises_the_floor,
    a_delete_is_a_write,
    the_floor_outlives_what_it_protects,
    the_floor_never_falls,
    once_means_one_write_per_token,
    neighbours_above_two_to_the_53_are_told_apart,
    with_reads_fenced_no_update_is_lost,
    a_stale_write_never_lands_after_a_later_one,
    the_same_bytes_do_not_hide_a_later_holder,
)


def failing(fresh: Callable[[], Guard], only: Scenario | None = None) -> set[Scenario]:
    """Which scenarios (or whether the only one that is asked for) a fence does not pass, each on a fresh resource."""
    found = set()
    for scenario in [only] if only is not None else SCENARIOS:
        guard = fresh()
        try:
            scenario(guard)
        except (AssertionError, LeaseholdError, pytest.fail.Exception, sqlite3.Error, redis.RedisError):
            found.add(scenario)
        finally:
            guard.close()
    return found
