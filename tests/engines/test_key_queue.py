"""Keys that never meet, and the rule of who comes before whom."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from leasehold.core.engine import Mode
from leasehold.engines import key_queue as layout
from leasehold.engines.line import Line
from leasehold.wires.etcd_messages import Key

NASTY = "aA/%0.~*{}[]\\?!\"'`$&;:|<>#+-_=@^, éß日"
MODES: tuple[Mode, ...] = ("exclusive", "shared", "permit")


def test_no_two_pairs_share_a_key_and_no_range_sees_another_name() -> None:
    texts = ["".join(two) for two in itertools.product(NASTY, repeat=2)]
    texts += list(NASTY)
    bases: dict[bytes, str] = {}
    for text in texts:
        start, end = layout.keys_of("space", text).all
        key = layout.keys_of("space", text).slot("exclusive", "7f.0")
        assert start <= key < end
        assert layout.name_in(key, "space") == text
        assert bases.setdefault(start, text) == text
    keys = sorted((layout.keys_of("space", text).slot("shared", "7f.0"), text) for text in texts)
    for (_, before), (_, after) in itertools.pairwise(keys):
        start, end = layout.keys_of("space", before).all
        assert not start <= layout.keys_of("space", after).slot("shared", "7f.0") < end


names = st.text(alphabet=NASTY, min_size=1, max_size=4)


@given(names, names, names, names)
def test_namespace_and_name_cannot_run_into_each_other(space: str, name: str, other_space: str, other: str) -> None:
    if (space, name) != (other_space, other):
        key = layout.keys_of(other_space, other).slot("exclusive", "0.0")
        start, end = layout.keys_of(space, name).all
        assert not start <= key < end
        assert layout.name_in(key, space) == (other if space == other_space else None)


def test_the_default_namespace_is_one_of_its_own() -> None:
    start, end = layout.namespace_range("")
    assert start <= layout.keys_of("", "a").slot("exclusive", "0.0") < end
    assert not start <= layout.keys_of("a", "a").slot("exclusive", "0.0") < end


def test_a_shared_lease_looks_at_all_but_shared_ones() -> None:
    keys = layout.keys_of("", "a")
    start, end = keys.in_the_way_of("shared")
    assert [start <= keys.slot(mode, "0.0") < end for mode in MODES] == [True, False, True]


def _keys(modes: list[Mode]) -> list[Key]:
    name = layout.keys_of("", "a")
    return [Key(name.slot(mode, f"{number}.0"), number + 1, 7, b"") for number, mode in enumerate(modes)]


@given(st.lists(st.sampled_from(MODES), max_size=6), st.sampled_from(MODES), st.integers(1, 3))
def test_the_rule_of_the_queue(modes: list[Mode], mode: Mode, limit: int) -> None:
    """Told in other words: two may stand side by side if both are shared, or both are permits and few enough."""
    before = _keys(modes)
    in_the_way = [key.key for key, other in zip(before, modes, strict=True) if mode == "exclusive" or other != mode]
    waits = bool(in_the_way) or (mode == "permit" and len(before) >= limit)
    blockade = layout.blockade(mode, limit, before)
    assert (blockade is not None) == waits
    if blockade is not None:
        # When as many are gone as are waited for, it may go on, or waits for others; never sooner.
        assert blockade.keys <= {key.key for key in before}
        assert len(blockade.keys) > blockade.may_stay
        if in_the_way:
            assert set(in_the_way) >= blockade.keys
            assert in_the_way[-1] in blockade.keys


def test_foreign_keys_below_a_name_block_it_and_are_not_shown() -> None:
    foreign = Key(b"leasehold//a/z/odd", 1, 0, b"")
    ours = Key(layout.keys_of("", "a").slot("exclusive", "7.0"), 2, 7, b"{}")
    assert layout.standing([foreign, ours]) == ([], [ours])


@given(st.lists(st.tuples(st.sampled_from([*MODES, None]), st.integers(1, 3)), max_size=12))
def test_who_looks_at_a_queue_sees_what_those_in_it_go_by(queue: list[tuple[Mode | None, int]]) -> None:
    line, before = Line(), list[Key]()
    for number, (mode, limit) in enumerate(queue):
        key = b"leasehold//a/x/0" if mode is None else layout.keys_of("", "a").slot(mode, f"{number}.0")
        holds = mode is not None and layout.blockade(mode, limit, before) is None
        assert line.lets_in(mode, limit) == holds
        before.append(Key(key, number + 1, 7, b""))


def test_a_queue_of_ten_thousand_is_told_in_one_pass() -> None:
    holding, waiting = layout.standing(_keys(["exclusive"] * 10_000))
    assert (len(holding), len(waiting)) == (1, 9_999)
