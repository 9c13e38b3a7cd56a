"""The scenarios find a fence that is wrong: each mutant breaks one thing, and the scenario about it goes red."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.fences import scenarios
from tests.fences.guards import Guard, RedisGuard, SqliteGuard
from tests.fences.scenarios import Scenario, failing

from leasehold.fences import redis as redis_fence
from leasehold.fences import sqlite as sqlite_fence
from leasehold.fences.redis import floor_key

Fresh = Callable[[], Guard]
FreshOf = Callable[[str], Fresh]
Between = Callable[[], object] | None


def plant(patch: pytest.MonkeyPatch, module: Any, constant: str, right: str, wrong: str) -> None:
    """Replace a piece of the real text, so that a mutant cannot outlive what it was made from."""
    text = getattr(module, constant)
    assert text.count(right) == 1
    patch.setattr(module, constant, text.replace(right, wrong))


SQL_MUTANTS = {
    "equal is refused": ("_RAISE", "AND :token AND", "AND :token - 1 AND", scenarios.an_equal_token_is_accepted),
    "lower is accepted": (
        "_RAISE",
        "token BETWEEN :lowest AND :token",
        "token >= :lowest",
        scenarios.a_fenced_read_raises_the_floor,  # below a *write*, the mark of writers refuses it as well
    ),
    "tokens are compared as texts": (
        "_RAISE",
        "token BETWEEN :lowest AND :token",
        "CAST(token AS TEXT) <= CAST(:token AS TEXT)",
        scenarios.a_higher_token_is_accepted_and_raises_the_floor,
    ),
    "reads do not raise the floor": (
        "_RAISE",
        "SET token = :token",
        "SET token = max(token, :mark)",
        scenarios.a_fenced_read_raises_the_floor,
    ),
    "the floor stays where it is": (
        "_RAISE",
        "SET token = :token,",
        "SET",
        scenarios.a_higher_token_is_accepted_and_raises_the_floor,
    ),
    "once is ignored": ("_RAISE", "AND written <= :most_written", "", scenarios.once_means_one_write_per_token),
    "an announcement uses up the token": (
        "_RAISE",
        "max(written, :mark)",
        ":token",
        scenarios.once_means_one_write_per_token,
    ),
}


@pytest.mark.parametrize(("constant", "right", "wrong", "finder"), SQL_MUTANTS.values(), ids=SQL_MUTANTS)
def test_a_wrong_statement_is_found(
    constant: str, right: str, wrong: str, finder: Scenario, fresh_of: FreshOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, sqlite_fence, constant, right, wrong)
    assert finder in failing(fresh_of("sqlite"))


LUA_MUTANTS = {
    "equal is refused": ("below(token, seen)", "not below(seen, token)", scenarios.an_equal_token_is_accepted),
    "lower is accepted": ("below(token, seen)", "false", scenarios.a_fenced_read_raises_the_floor),
    "tokens are compared as texts": (
        "#a < #b or (#a == #b and a < b)",
        "a < b",
        scenarios.a_higher_token_is_accepted_and_raises_the_floor,
    ),
    "tokens are compared as doubles": (
        "#a < #b or (#a == #b and a < b)",
        "(tonumber(a) or -1) < (tonumber(b) or -1)",
        scenarios.neighbours_above_two_to_the_53_are_told_apart,
    ),
    "reads do not raise the floor": (
        "if seen ~= token then",
        "if mark ~= '' then",
        scenarios.a_fenced_read_raises_the_floor,
    ),
    "the floor stays where it is": (
        "if seen ~= token then",
        "if seen == '' then",
        scenarios.a_higher_token_is_accepted_and_raises_the_floor,
    ),
    "once is ignored": ("or below(most_written, written)", "", scenarios.once_means_one_write_per_token),
    "an announcement uses up the token": (
        "'HSET', floor, 'token', token)",
        "'HSET', floor, 'token', token, 'written', token)",
        scenarios.once_means_one_write_per_token,
    ),
}


@pytest.mark.parametrize("kind", ["redis", "valkey", "redis asyncio"])
@pytest.mark.parametrize(("right", "wrong", "finder"), LUA_MUTANTS.values(), ids=LUA_MUTANTS)
def test_a_wrong_script_is_found(
    right: str, wrong: str, finder: Scenario, kind: str, fresh_of: FreshOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, redis_fence, "_CHECK", right, wrong)
    assert finder in failing(fresh_of(kind))


class SqliteCheckOutside(SqliteGuard):
    """Checks in one transaction and writes in the next."""

    def write(self, token: int, value: str, *, once: bool = False, between: Between = None) -> None:
        with self.fence.writing(self.resource, token, once=once):
            pass
        if between is not None:
            between()
        self.put(value)


class SqliteFloorInTheRow(SqliteGuard):
    """Keeps the floor with what it protects, so that both go together."""

    def delete(self, token: int) -> None:
        super().delete(token)
        self.database.execute("DELETE FROM leasehold_fence WHERE resource = ?", (self.resource,))


class SqliteFloorLowered(SqliteGuard):
    """Sets the floor where it should only ever raise it."""

    def raise_floor(self, token: int) -> None:
        self.database.execute("UPDATE leasehold_fence SET token = ? WHERE resource = ?", (token, self.resource))


class SqliteDeletePastTheFence(SqliteGuard):
    """Takes clean-up for something that needs no check."""

    def delete(self, token: int) -> None:
        self.database.execute("DELETE FROM thing WHERE resource = ?", (self.resource,))


class RedisCheckOutside(RedisGuard):
    """Checks in one script and writes with the next command."""

    def write(self, token: int, value: str, *, once: bool = False, between: Between = None) -> None:
        self.fence.run(self.resource, token, "return false", once=once)
        if between is not None:
            between()
        self.client.set(self.resource, value)


class RedisFloorInTheRow(RedisGuard):
    """Keeps the floor with what it protects, so that both go together."""

    def delete(self, token: int) -> None:
        super().delete(token)
        self.client.delete(floor_key(self.resource))


class RedisFloorLowered(RedisGuard):
    """Sets the floor where it should only ever raise it."""

    def raise_floor(self, token: int) -> None:
        self.client.hset(floor_key(self.resource), "token", token)


class RedisDeletePastTheFence(RedisGuard):
    """Takes clean-up for something that needs no check."""

    def delete(self, token: int) -> None:
        self.client.delete(self.resource)


FINDERS = {
    "CheckOutside": scenarios.a_stale_write_never_lands_after_a_later_one,
    "FloorInTheRow": scenarios.the_floor_outlives_what_it_protects,
    "FloorLowered": scenarios.the_floor_never_falls,
    "DeletePastTheFence": scenarios.a_delete_is_a_write,
}


MISUSES: list[type[Guard]] = [
    SqliteCheckOutside,
    SqliteFloorInTheRow,
    SqliteFloorLowered,
    SqliteDeletePastTheFence,
    RedisCheckOutside,
    RedisFloorInTheRow,
    RedisFloorLowered,
    RedisDeletePastTheFence,
]


@pytest.mark.parametrize("mutant", MISUSES)
def test_a_wrong_use_is_found(mutant: type[Guard], fresh_of: FreshOf) -> None:
    def fresh() -> Guard:
        right = fresh_of("sqlite" if issubclass(mutant, SqliteGuard) else "redis")()
        right.close()
        return mutant(right.folder if isinstance(right, SqliteGuard) else right.url, right.resource)  # type: ignore[attr-defined,call-arg]

    assert FINDERS[mutant.__name__.removeprefix("Sqlite").removeprefix("Redis")] in failing(fresh)
