"""What is told of a holder at several servers is what it knows of itself."""

from __future__ import annotations

import pytest

from leasehold.core.engine import HolderStatus
from leasehold.core.quorum import Occupied
from leasehold.engines.redlock_status import Seen, accepted, merged


def _seen(token: int, expires_in: float = 10.0) -> Seen:
    return Seen(token, True, b"one", HolderStatus(token, "exclusive", "one@host:1", 1.0, expires_in), {})


NOTHING = Seen(9, False, None, None, {})


@pytest.mark.parametrize(
    ("seen", "servers", "token"),
    [
        ([_seen(5), _seen(5), _seen(5)], 3, 5),
        ([_seen(5), _seen(8), _seen(5)], 3, 5),  # the last one granted more, and was late
        ([_seen(5), _seen(3), _seen(5)], 3, 5),  # the last one was not told
        ([_seen(5), _seen(5), NOTHING], 3, 5),
        ([_seen(9), _seen(5), _seen(5), _seen(7), _seen(5)], 5, 5),
        ([_seen(3), _seen(4), _seen(5)], 3, 5),  # about to be accepted
    ],
)
def test_the_token_of_a_holder_is_the_one_that_a_majority_has_accepted(
    seen: list[Seen], servers: int, token: int
) -> None:
    status = merged("name", seen, servers)
    assert status is not None
    assert [holder.token for holder in status.holders] == [token]
    assert status.token == token


@pytest.mark.parametrize(
    ("counters", "servers", "token"),
    [
        ([5, 5, 5], 3, 5),
        ([5, 5, 8], 3, 5),  # a late grant, which was given back
        ([5, 5, 3], 3, 5),
        ([5, 3], 3, 5),  # the third may stand at 5 as well
        ([9, 9, 5, 5, 5], 5, 5),
        ([9, 9, 5], 5, 9),
    ],
)
def test_the_token_of_a_name_is_the_highest_that_a_majority_can_have_accepted(
    counters: list[int], servers: int, token: int
) -> None:
    status = merged("name", [Seen(counter, True, None, None, {}) for counter in counters], servers)
    assert status is not None
    assert status.token == token


def test_who_has_no_majority_holds_nothing_and_a_lease_lasts_as_long_as_its_majority() -> None:
    alone = merged("name", [_seen(5), NOTHING, NOTHING], 3)
    assert alone is not None
    assert alone.holders == ()
    status = merged("name", [_seen(5, 1.0), _seen(5, 7.0), _seen(5, 9.0)], 3)
    assert status is not None
    assert status.holders[0].expires_in == 7.0
    assert merged("name", [NOTHING._replace(counter=0)] * 3, 3) is None


@pytest.mark.parametrize(
    ("tokens", "told"),
    [
        ([5, 5], 5),
        ([5, 6], 5),  # one of them has counted on for other names; the third was not heard
        ([6, 5, 6], 6),
        ([5, 6, 5], 5),
    ],
)
def test_who_is_refused_is_told_the_token_that_the_holder_has(tokens: list[int], told: int) -> None:
    occupied = [Occupied(token, 10.0, token, "one@host:1") for token in tokens]
    assert accepted(occupied, 3).token == told
