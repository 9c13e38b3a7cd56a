"""Any sequence of calls gets from SQL and from Lua the answers that the rule gives in plain Python."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Callable
from typing import NamedTuple, Protocol

import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st

from leasehold.errors import LeaseholdError
from leasehold.fences import RedisFence, SqliteFence
from leasehold.fences.rule import NEVER, Rule
from leasehold.names import HIGHEST_TOKEN

LIMIT = 1_000  # small, so that jumps happen; tokens below the clock never jump
_numbers = itertools.count()


class Call(NamedTuple):
    resource: str
    token: int
    writes: bool
    once: bool
    allow_jump: bool


class Subject(Protocol):
    def __call__(self, call: Call, /) -> int | None:
        """Make the call, and return the floor after it."""


class Model:
    """A resource that applies the rule in Python."""

    def __init__(self) -> None:
        self._marks: dict[str, tuple[int, int]] = {}

    def __call__(self, call: Call) -> int | None:
        once = call.once and call.writes
        rule = Rule(LIMIT)
        claim = rule.claim(call.resource, call.token, writes=call.writes, once=once, allow_jump=call.allow_jump)
        seen, written = self._marks.get(call.resource, (NEVER, NEVER))
        refusal = claim.refusal(seen, written)
        if refusal is not None:
            raise refusal
        self._marks[call.resource] = (claim.token, max(written, claim.mark))
        return claim.token


def sqlite_subject(database: sqlite3.Connection) -> Subject:
    fence = SqliteFence(database, jump_limit=LIMIT)
    fence.create()

    def make(call: Call) -> int | None:
        if call.writes:
            with fence.writing(call.resource, call.token, once=call.once, allow_jump=call.allow_jump):
                pass
        else:
            fence.announce(call.resource, call.token, allow_jump=call.allow_jump)
        return fence.floor(call.resource)

    return make


def redis_subject(client: redis.Redis) -> Subject:
    fence, unique = RedisFence(client, jump_limit=LIMIT), next(_numbers)

    def make(call: Call) -> int | None:
        resource = f"{call.resource}:{unique}"
        if call.writes:
            fence.set(resource, call.token, "x", once=call.once, allow_jump=call.allow_jump)
        else:
            fence.announce(resource, call.token, allow_jump=call.allow_jump)
        return fence.floor(resource)

    return make


def answer(subject: Subject, call: Call) -> object:
    """The floor, or the kind of refusal with the numbers that it carries."""
    try:
        return subject(call)
    except LeaseholdError as refusal:
        return type(refusal), refusal.token, getattr(refusal, "seen", None)


edges = [0, 9, 10, 99, 100, 2**32, 2**53, 10**18, 2**62, HIGHEST_TOKEN]
tokens = st.builds(
    lambda edge, step: min(max(edge + step, 0), HIGHEST_TOKEN), st.sampled_from(edges), st.integers(-3, 3)
) | st.integers(0, HIGHEST_TOKEN)


def calls_with(few: list[int]) -> st.SearchStrategy[list[Call]]:
    flag = st.booleans()
    return st.lists(st.builds(Call, st.sampled_from(["a", "b"]), st.sampled_from(few), flag, flag, flag), max_size=12)


# Few tokens in each example, so that the same ones meet again.
calls = st.lists(tokens, min_size=1, max_size=4).flatmap(calls_with)


@given(calls)
@settings(max_examples=300)
def test_sqlite_answers_as_the_rule_does(asked: list[Call]) -> None:
    database = sqlite3.connect(":memory:")
    model, subject = Model(), sqlite_subject(database)
    for call in asked:
        assert answer(subject, call) == answer(model, call)
    database.close()


@pytest.mark.parametrize("engine", ["redis", "valkey"])
def test_redis_answers_as_the_rule_does(engine: str, url_of: Callable[[str], str]) -> None:
    with redis.Redis.from_url(url_of(engine)) as client:

        @given(calls)
        @settings(max_examples=100, deadline=None)
        def compare(asked: list[Call]) -> None:
            model, subject = Model(), redis_subject(client)
            for call in asked:
                assert answer(subject, call) == answer(model, call)

        compare()
