"""The check as first statement of the caller's own transaction, by every way to every SQL database."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from tests.fences import scenarios
from tests.fences.guards import Guard
from tests.fences.scenarios import Scenario, failing
from tests.fences.sql_guards import SqlGuard
from tests.fences.test_model import LIMIT, Call, Model, answer, calls

from leasehold.fences import SqlFence
from leasehold.fences.sql_rule import MySql, Portable

Fresh = Callable[[], Guard]

# Wrong statements are found


MUTANTS = {
    "equal is refused": ("AND :token AND", "AND :token - 1 AND", scenarios.an_equal_token_is_accepted),
    "lower is accepted": (
        "token BETWEEN :lowest AND :token",
        "token >= :lowest",
        scenarios.a_fenced_read_raises_the_floor,
    ),
    "the floor stays where it is": (
        "SET token = :token,",
        "SET",
        scenarios.a_higher_token_is_accepted_and_raises_the_floor,
    ),
    "once is ignored": ("AND written <= :most_written", "", scenarios.once_means_one_write_per_token),
    "an announcement uses up the token": (
        "CASE WHEN written < :mark THEN :mark ELSE written END",
        ":token",
        scenarios.once_means_one_write_per_token,
    ),
}


@pytest.mark.parametrize("way", ["psycopg postgresql"])
@pytest.mark.parametrize(("right", "wrong", "finder"), MUTANTS.values(), ids=MUTANTS)
def test_a_wrong_statement_is_found(
    right: str,
    wrong: str,
    finder: Scenario,
    way: str,
    fresh_of: Callable[[str], Fresh],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = Portable._raise
    assert text.count(right) == 1
    monkeypatch.setattr(Portable, "_raise", text.replace(right, wrong))
    assert finder in failing(fresh_of(way))


MYSQL_MUTANTS = {
    "equal is refused": ("token <= :token", "token < :token", scenarios.an_equal_token_is_accepted),
    "lower is accepted": ("token <= :token AND", "", scenarios.a_fenced_read_raises_the_floor),
    "once is ignored": ("AND written <= :most_written", "", scenarios.once_means_one_write_per_token),
    "an announcement uses up the token": (
        "GREATEST(written, :mark)",
        ":token",
        scenarios.once_means_one_write_per_token,
    ),
    "nobody is told apart": ("asked = IF(", "asked = IF(0 AND ", scenarios.an_equal_token_is_accepted),
}


@pytest.mark.parametrize(("right", "wrong", "finder"), MYSQL_MUTANTS.values(), ids=MYSQL_MUTANTS)
def test_a_wrong_statement_of_mysql_is_found(
    right: str, wrong: str, finder: Scenario, fresh_of: Callable[[str], Fresh], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = MySql._claim
    assert right in text
    monkeypatch.setattr(MySql, "_claim", text.replace(right, wrong))
    assert finder in failing(fresh_of("pymysql mysql"))


# Any sequence of calls gets the answers that the rule gives


@pytest.mark.parametrize("way", ["psycopg postgresql", "pymysql mysql"])
def test_the_database_answers_as_the_rule_does(way: str, sql_url_of: Callable[[str], str]) -> None:
    client, engine = way.split()
    guard = SqlGuard(f"{client} {sql_url_of(engine)}", "none")
    fence, numbers, run = SqlFence(guard.given, jump_limit=LIMIT), itertools.count(), secrets.token_hex(8)

    @given(calls)
    @settings(max_examples=60, deadline=None)
    def compare(asked: list[Call]) -> None:
        model, unique = Model(), next(numbers)

        def subject(call: Call) -> int | None:
            resource = f"{call.resource}:{run}:{unique}"
            if call.writes:
                with fence.writing(resource, call.token, once=call.once, allow_jump=call.allow_jump):
                    pass
            else:
                fence.announce(resource, call.token, allow_jump=call.allow_jump)
            return fence.floor(resource)

        for call in asked:
            assert answer(subject, call) == answer(model, call)

    compare()
    guard.close()
