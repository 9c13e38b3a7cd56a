"""Claims, takeovers and results of one key in every interleaving of small cases; and planted bugs are found."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest
from tests.patterns.interleave import Database, Task, Violation, explore, finished, turn

from leasehold.fences.sql_rule import Answer, Ask
from leasehold.patterns.idempotency.records import Change, Claim
from leasehold.patterns.idempotency.sql import Sql

LEASE, KEEP = 5.0, 1000.0


class KeyCase:
    """Two runs of the same operation: each claims the key, works, and stores its result; or the first one fails."""

    def __init__(self, moves: int = 1, *, fails: bool = False) -> None:
        self.database, self._moves, self._fails = Database(), moves, fails
        self._sql = Sql("sqlite", "keys")
        self.database.ask(Ask(self._sql.create, {}))
        self.tokens, self.results, self.given = dict[str, int](), list[str](), list[str]()
        self.tasks = [Task(self._run(name)) for name in ("one", "two")]

    async def _run(self, name: str) -> None:
        claim = Claim("scope", "key", "", name, LEASE, KEEP)
        record = await self._turns(self._sql.claim(claim))
        if record.state == "done":
            self.given.append(record.result)
        if record.state != "running" or record.run != name:
            return
        if record.token <= max(self.tokens.values(), default=0):
            raise Violation("a token is not above that of every earlier run")
        self.tokens[name] = record.token
        await turn()
        if self._fails and name == "one":
            if await self._turns(self._sql.change(claim, record.token, Change("released"))) and record.token < max(
                self.tokens.values()
            ):
                raise Violation("a run that failed has given the key of another one away")
            return
        if await self._turns(self._sql.change(claim, record.token, Change("done", result=name))):
            if record.token < max(self.tokens.values()):
                raise Violation("the result of a run was taken after another one had taken over")
            self.results.append(name)

    async def _turns(self, steps: Generator[Ask, Answer, Any]) -> Any:
        """One statement at a time, and anybody may come in before each."""
        try:
            ask = next(steps)
            while True:
                await turn()
                ask = steps.send(self.database.ask(ask))
        except StopIteration as end:
            return end.value

    def choices(self) -> list[str]:
        return ["later"] if self._moves else []

    def happen(self, choice: str) -> None:
        assert choice == "later"
        self._moves -= 1
        self.database.clock += LEASE + 1

    def check(self) -> None:
        if len(self.results) > 1:
            raise Violation("two results were stored for one key")
        if any(given not in self.results for given in self.given):
            raise Violation("somebody was given a result that was never stored")

    def settle(self) -> None:
        self.database.clock += LEASE + 1
        finished(self._run("three"))
        self.check()
        if not self.results:
            raise Violation("a crash keeps everybody from the operation for ever")
        before = len(self.given)
        finished(self._run("four"))
        if len(self.given) != before + 1:
            raise Violation("what was done is not given again")


def test_every_interleaving_stores_one_result() -> None:
    assert explore(KeyCase) > 50


def test_also_when_the_clock_moves_twice() -> None:
    assert explore(lambda: KeyCase(moves=2)) > 100


def test_also_when_the_first_one_fails() -> None:
    assert explore(lambda: KeyCase(moves=2, fails=True)) > 50


MUTATIONS = {
    "a takeover on the word of an old look": ("_take_over", " AND token = :seen AND (", " AND (1 = 1 OR "),
    "a takeover of what has ended meanwhile": (
        "_take_over",
        " OR (state = 'running' AND expires <= ",
        " OR (1 = 1 OR expires <= ",
    ),
    "a takeover that keeps the token": ("_take_over", "token = max(token + 1, ", "token = min(token, "),
    "a result without a look at the token": ("_change", " AND token = :token", ""),
}


@pytest.mark.parametrize("bug", MUTATIONS)
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    statement, right, wrong = MUTATIONS[bug]
    original = Sql.__init__

    def mutated(self: Sql, dialect: str, table: str) -> None:
        original(self, dialect, table)
        text = getattr(self, statement)
        assert right in text
        setattr(self, statement, text.replace(right, wrong))

    monkeypatch.setattr(Sql, "__init__", mutated)
    with pytest.raises(Violation):
        explore(lambda: KeyCase(moves=2))


def test_a_late_failure_that_gives_the_key_away_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Sql.change

    def mutated(self: Sql, claim: Claim, token: int, change: Change) -> Any:
        if change.state == "released":
            token = yield from self.token(claim)  # as if nobody had looked whose it is
        return (yield from original(self, claim, token, change))

    monkeypatch.setattr(Sql, "change", mutated)
    with pytest.raises(Violation, match="given the key of another one away"):
        explore(lambda: KeyCase(moves=2, fails=True))
