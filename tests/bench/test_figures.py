"""The arithmetic of the benchmark, against values worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.bench.contended import Contention, TwoHolders, analyse
from leasehold.bench.figures import in_turn, jain, quantile, spread

POSITIVE = st.floats(min_value=1e-3, max_value=1e6)


def test_quantiles_are_interpolated_between_neighbours() -> None:
    values = [40.0, 10.0, 30.0, 20.0]
    assert quantile(values, 0.0) == 10.0
    assert quantile(values, 0.5) == 25.0
    assert quantile(values, 1.0) == 40.0
    assert quantile(values, 0.9) == pytest.approx(37.0)
    assert quantile([7.0], 0.99) == 7.0


def test_a_quantile_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no values"):
        quantile([], 0.5)


@given(st.lists(POSITIVE, min_size=1))
def test_a_spread_is_ordered_and_lies_within_its_values(values: list[float]) -> None:
    median, low, high = spread(values)
    assert min(values) <= low <= median <= high <= max(values) or len(set(values)) == 1


@given(st.lists(POSITIVE, min_size=1), POSITIVE)
def test_fairness_lies_between_one_taker_and_all_alike_and_knows_no_unit(shares: list[float], unit: float) -> None:
    index = jain(shares)
    assert 1 / len(shares) - 1e-9 <= index <= 1 + 1e-9
    assert index == pytest.approx(jain([share * unit for share in shares]))


def test_fairness_of_known_shares() -> None:
    assert jain([3, 3, 3]) == 1.0
    assert jain([1, 0, 0, 0]) == 0.25
    assert jain([2, 1]) == pytest.approx(0.9)
    assert jain([0, 0]) == 0.0  # nobody got anything: not fair, but nothing


def test_contestants_take_turns_and_each_round_starts_with_another_one() -> None:
    turns = list(in_turn(["a", "b", "c"], 4))
    assert [who for _, who in turns[:9]] == ["a", "b", "c", "b", "c", "a", "c", "a", "b"]
    for number in range(4):
        assert sorted(who for turn, who in turns if turn == number) == ["a", "b", "c"]


# Rounds of contention, told by (asked, acquired, releasing) for each process


def test_a_round_is_judged_by_changes_waits_and_hand_offs() -> None:
    first = [(0.0, 0.1, 0.2), (0.2, 0.5, 0.6)]
    second = [(0.0, 0.3, 0.4), (0.4, 0.7, 0.8)]
    found = analyse([first, second], begins=0.0, seconds=1.0, processor=0.6)
    assert found.changes_a_second == 3
    assert found.effort == pytest.approx(0.2)
    assert found.fairness == 1.0
    assert found.longest_wait == pytest.approx(0.3)
    assert found.fair_share == pytest.approx(2 * 1.0 / 4)
    assert found.hand_offs == pytest.approx([0.1, 0.1, 0.1])


def test_taking_it_again_oneself_is_no_change() -> None:
    found = analyse([[(0.0, 0.1, 0.2), (0.2, 0.3, 0.4)], []], begins=0.0, seconds=1.0)
    assert (found.changes_a_second, found.hand_offs) == (0, [])
    assert found.fairness == 0.5


def test_what_was_acquired_after_the_round_counts_only_as_a_wait() -> None:
    found = analyse([[(0.0, 0.1, 0.9)], [(0.2, 1.5, 1.6)]], begins=0.0, seconds=1.0)
    assert found.changes_a_second == 0
    assert found.longest_wait == pytest.approx(0.8), "the starved one waited until the end of the round"
    assert found.fairness == 0.5


def test_a_round_without_a_single_hold_waited_all_along() -> None:
    found: Contention = analyse([[], []], begins=5.0, seconds=1.0)
    assert (found.changes_a_second, found.longest_wait, found.fairness) == (0, 1.0, 0.0)


def test_two_holders_at_once_are_not_measured_but_reported() -> None:
    with pytest.raises(TwoHolders, match="process 1 held the name before process 0 had let go"):
        analyse([[(0.0, 0.1, 0.5)], [(0.0, 0.4, 0.6)]], begins=0.0, seconds=1.0)
