"""Where an entity belongs, and how many partitions each member is to own: stable, flat, and with little movement."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold import Misuse
from leasehold.patterns.partitions import Entities
from leasehold.patterns.partitions.entities import preference, quota, to_give_up

MEMBERS = st.sets(st.text(min_size=1, max_size=4), min_size=1, max_size=12)
COUNTS = st.integers(1, 300)


def quotas(partitions: int, members: set[str]) -> dict[str, int]:
    return {member: quota(partitions, members, member) for member in members}


@given(COUNTS, MEMBERS)
def test_quotas_are_flat_and_leave_nothing_over(partitions: int, members: set[str]) -> None:
    shares = quotas(partitions, members).values()
    assert sum(shares) == partitions
    assert max(shares) - min(shares) <= 1


@given(COUNTS, MEMBERS, st.text(min_size=5, max_size=6))
def test_when_one_joins_nobody_elses_quota_grows_and_when_one_leaves_none_shrinks(
    partitions: int, members: set[str], newcomer: str
) -> None:
    """So exactly as many partitions move as the newcomer gets, or as the leaver had."""
    before, after = quotas(partitions, members), quotas(partitions, members | {newcomer})
    assert all(after[member] <= before[member] for member in members)
    assert sum(before[member] - after[member] for member in members) == after[newcomer]


def test_a_sixth_member_moves_no_more_than_its_share() -> None:
    members = {f"worker-{number}" for number in range(5)}
    before, after = quotas(1024, members), quotas(1024, {*members, "worker-5"})
    assert sum(before[member] - after[member] for member in members) == 170


def test_an_entity_has_the_same_partition_in_every_process_and_version() -> None:
    assert Entities("orders", 1024).partition_of("customer-42") == 31
    assert Entities("orders", 1024, key=b"secret").partition_of("customer-42") == 578


def test_entities_are_spread_evenly() -> None:
    entities = Entities("orders", 64)
    load = Counter(entities.partition_of(f"customer-{number}") for number in range(64_000))
    assert len(load) == 64
    assert max(load.values()) < 1200
    assert min(load.values()) > 800


@given(COUNTS, st.text(max_size=4))
def test_a_member_looks_at_every_partition(partitions: int, member: str) -> None:
    assert sorted(preference(partitions, member)) == list(range(partitions))


@given(st.sets(st.integers(0, 99)), st.integers(0, 99))
def test_only_what_is_owned_is_given_up(owned: set[int], count: int) -> None:
    given_up = to_give_up(owned, preference(100, "newcomer"), count)
    assert len(given_up) == min(count, len(owned))
    assert owned.issuperset(given_up)


def test_what_makes_no_sense_is_refused_before_anything_is_done() -> None:
    for wrong in (0, -1, 65_537, 1.5, True):
        with pytest.raises(Misuse, match="partitions is an int from 1 to 65536"):
            Entities("orders", wrong)  # type: ignore[arg-type]
    with pytest.raises(Misuse, match="group"):
        Entities("x" * 201)
    with pytest.raises(Misuse, match="key"):
        Entities("orders", key="text")  # type: ignore[arg-type]
    with pytest.raises(Misuse, match="an entity is named by a text"):
        Entities("orders").partition_of("")
    with pytest.raises(Misuse, match="at most 1024"):
        Entities("orders").partition_of("x" * 1025)
    assert "secret" not in repr(Entities("orders", key=b"secret"))
