"""The accept rule by itself: plain numbers, every border."""

from __future__ import annotations

import doctest
import time
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.errors import InvalidName, InvalidToken, LeaseholdError, Misuse, StaleToken, TokenJump, TokenUsed
from leasehold.fences import rule, signed, sql_plain, sqlite
from leasehold.fences.rule import DAY, NEVER, Rule, token_of
from leasehold.names import HIGHEST_TOKEN

tokens = st.integers(0, HIGHEST_TOKEN)
NOW = 1_800_000_000_000_000


class Carrier:
    """Something that has a token, as a lease does."""

    def __init__(self, token: Any) -> None:
        self.token = token

    def __repr__(self) -> str:
        return f"Carrier({self.token!r})"


@pytest.fixture
def clock_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wall clock shows `NOW`."""
    monkeypatch.setattr(time, "time_ns", lambda: NOW * 1000 + 999)


@pytest.mark.parametrize(
    ("token", "seen", "written", "once", "refusal"),
    [
        (5, NEVER, NEVER, False, None),
        (0, NEVER, NEVER, True, None),
        (5, 4, 4, False, None),
        (5, 5, 5, False, None),
        (5, 6, 5, False, StaleToken),
        (5, 6, 6, True, StaleToken),
        (5, 5, 4, True, None),
        (5, 5, NEVER, True, None),
        (5, 5, 5, True, TokenUsed),
        (0, 0, 0, True, TokenUsed),
        (0, 0, NEVER, True, None),
        (HIGHEST_TOKEN - 1, HIGHEST_TOKEN, NEVER, False, StaleToken),
    ],
)
def test_the_rule(token: int, seen: int, written: int, once: bool, refusal: type[LeaseholdError] | None) -> None:
    claim = Rule(jump_limit=HIGHEST_TOKEN).claim("thing", token, writes=True, once=once)
    assert type(claim.refusal(seen, written)) is (refusal or type(None))


@given(tokens, tokens)
def test_only_a_lower_token_is_stale(token: int, seen: int) -> None:
    refusal = Rule().claim("thing", token, writes=True, allow_jump=True).refusal(seen, NEVER)
    if token >= seen:
        assert refusal is None
    else:
        assert isinstance(refusal, StaleToken)
        assert (refusal.token, refusal.seen) == (token, seen)


@given(tokens, tokens, st.booleans())
def test_a_claim_is_the_interval_that_it_says(token: int, seen: int, once: bool) -> None:
    """What resources compare in their own languages is what `refusal` decides."""
    claim = Rule(jump_limit=10**6).claim("thing", token, writes=True, once=once)
    written = min(token, seen)
    fits = claim.lowest <= seen <= claim.token and written <= claim.most_written
    assert (claim.refusal(seen, written) is None) == fits


@pytest.mark.usefixtures("clock_stands")
@pytest.mark.parametrize(
    ("token", "seen", "jumps"),
    [
        (NOW + DAY, NEVER, False),
        (NOW + DAY + 1, NEVER, True),
        (NOW + DAY + 1, 7, True),
        (NOW + DAY + 1, NOW, True),
        (NOW + DAY + 1, NOW + 1, False),
        (NOW, NOW - 365 * DAY, False),  # after a year without a touch
        (2**32 + 8, 7, False),  # a counter: far below the clock, whatever it does
        (NOW, 7, False),  # from a counter to the clock: another engine
        (HIGHEST_TOKEN, NOW, True),
        (HIGHEST_TOKEN, NEVER, True),
        (HIGHEST_TOKEN, HIGHEST_TOKEN - DAY, False),
        (NOW * 1000, NOW, True),  # nanoseconds by mistake
    ],
)
def test_a_jump_is_measured_from_the_floor_or_the_clock(token: int, seen: int, jumps: bool) -> None:
    refusal = Rule().claim("thing", token, writes=True).refusal(seen, NEVER)
    assert isinstance(refusal, TokenJump) == jumps
    if isinstance(refusal, TokenJump):
        assert (refusal.token, refusal.seen, refusal.most) == (token, None if seen == NEVER else seen, DAY)
        assert "allow_jump=True" in str(refusal)
    assert Rule().claim("thing", token, writes=True, allow_jump=True).refusal(seen, NEVER) is None


def test_a_jump_does_not_hide_that_a_token_is_stale() -> None:
    assert isinstance(Rule().claim("thing", 2**62, writes=True).refusal(2**62 + 1, NEVER), StaleToken)


@pytest.mark.parametrize("limit", [0, -1, True, 1.5, None, "5", 2**63])
def test_a_limit_must_be_one(limit: Any) -> None:
    with pytest.raises(Misuse, match="jump_limit"):
        Rule(jump_limit=limit)


@pytest.mark.parametrize(
    "token", [-1, 2**63, True, 1.0, "5", b"5", None, Carrier("5"), Carrier(None), Carrier(-1)], ids=repr
)
def test_a_wrong_token_is_refused(token: Any) -> None:
    with pytest.raises(InvalidToken):
        Rule().claim("thing", token, writes=True)


def test_a_token_may_come_with_what_carries_it() -> None:
    assert token_of(Carrier(34)) == token_of(34) == 34


@pytest.mark.parametrize("resource", ["", " ", "a\nb", "a\0b", "x" * 256, b"thing", None, 5, "e\u0301"], ids=ascii)
def test_a_wrong_resource_is_refused(resource: Any) -> None:
    with pytest.raises(InvalidName, match="resource"):
        Rule().claim(resource, 1, writes=True)


anything = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.lists(st.integers()), tokens
)


@given(anything, st.one_of(anything, anything.map(Carrier)))
def test_whatever_comes_is_a_claim_or_one_clear_line(resource: Any, token: Any) -> None:
    try:
        claim = Rule().claim(resource, token, writes=True)
    except Misuse as error:
        message = str(error)
    else:
        assert claim.resource == resource
        assert 0 <= claim.token <= HIGHEST_TOKEN
        return
    assert "\n" not in message
    assert len(message) < 900  # 64 characters of what came, each escaped with up to 10


@pytest.mark.parametrize("module", [rule, signed, sql_plain, sqlite], ids=lambda module: module.__name__)
def test_the_examples_in_the_source_are_true(module: ModuleType) -> None:
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0
