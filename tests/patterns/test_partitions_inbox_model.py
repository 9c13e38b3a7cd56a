"""Messages that are put again when an answer was lost, in every interleaving of small cases; planted bugs are found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from tests.patterns.interleave import Database, Task, Violation, explore, finished, turn

from leasehold.errors import OutcomeUnknown
from leasehold.fences.sql_rule import Ask
from leasehold.patterns.partitions import inbox_sql
from leasehold.patterns.partitions.inbox import key_of
from leasehold.patterns.partitions.inbox_sql import _Sql

PLACE = {"team": "orders", "place": 0}


class Messages(Database):
    """The tables of the inbox, and what was handled: who comes next depends on both."""

    def __init__(self) -> None:
        super().__init__()
        self.handled: list[tuple[int, str]] = []
        self.told: dict[str, str] = {}

    def dump(self) -> str:
        tables = [self._raw.execute(f"SELECT * FROM keys{name}").fetchall() for name in ("", "_place")]
        known = self._raw.execute("SELECT name, seq FROM keys_key").fetchall()
        return f"{tables}{known}{self.handled}{self.told}"


class PutCase:
    """Two submitters, each of whom puts one message until it knows that it is there; and an owner."""

    def __init__(self) -> None:
        self.database: Any = Messages()
        self._sql = _Sql("sqlite", "keys", "channel")
        for statement in self._sql.create:
            self.database.ask(Ask(statement, {}))
        self.tasks = [Task(self._submit("one")), Task(self._submit("two")), Task(self._own(2))]

    async def _submit(self, name: str) -> None:
        """As a careful submitter does it: with a key, and again when nobody knows what came of it."""
        values = {**PLACE, "entity": "a", "payload": name, "most": 5}
        for _ in range(3):
            how = await turn()
            try:
                if how == "dropped":
                    raise OutcomeUnknown("the request was lost")
                put = self.database.drive(self._sql.put(values, key_of(f"key-{name}", "a", name)))
                if how == "lost":
                    raise OutcomeUnknown("the answer was lost")
            except OutcomeUnknown:
                continue
            if not put.seq:
                raise Violation(f"{name} found no room")
            self.database.told[name] = str(put.seq)
            return

    async def _own(self, rounds: int) -> None:
        for _ in range(rounds):
            await turn()
            for seq, _entity, payload, _tries in self.database.drive(self._sql.take({**PLACE, "most": 1})):
                self.database.handled.append((int(seq), str(payload)))
                await turn()
                self.database.drive(self._sql.acknowledge({**PLACE, "seq": seq}))

    def choices(self) -> list[str]:
        return []

    def happen(self, choice: str) -> None:
        raise AssertionError(choice)

    def check(self) -> None:
        waiting = {(int(seq), str(text)) for seq, _, text, _ in self._taken(10)}
        messages = waiting | set(self.database.handled)
        twice = [name for name, count in Counter(name for _, name in messages).items() if count > 1]
        if twice:
            raise Violation(f"what {twice[0]} put once is two messages")
        for name, seq in self.database.told.items():
            if (int(seq), name) not in messages:
                raise Violation(f"{name} was told that it is number {seq}, and it is not there")
        order = [seq for seq, _ in self.database.handled]
        if order != sorted(order):
            raise Violation(f"they were handled in the order {order}")

    def settle(self) -> None:
        """Another owner, and nothing is left; what was told is done."""
        finished(self._own(6))
        if self._taken(1) or self.database.drive(self._sql.waiting("orders")):
            raise Violation("something is left that nobody handles")
        missing = set(self.database.told) - {name for _, name in self.database.handled}
        if missing:
            raise Violation(f"{min(missing)} was lost")

    def _taken(self, most: int) -> list[Any]:
        rows: list[Any] = self.database.drive(self._sql.take({**PLACE, "most": most}))
        return rows


def test_every_interleaving_makes_one_message_of_each_key() -> None:
    assert explore(PutCase) > 20


def test_also_when_requests_and_answers_are_lost() -> None:
    assert explore(PutCase, lost=1) > 100


# Bugs, each in the place where somebody could make it


def _nobody_knows_the_key(_monkeypatch: pytest.MonkeyPatch) -> Any:
    def plant(sql: Any) -> None:
        sql._known = "SELECT 1, '' WHERE 1 = 0"
        sql._add_key = sql._add_key.replace("INSERT OR IGNORE", "INSERT OR REPLACE")

    return plant


def _the_key_goes_with_the_message(monkeypatch: pytest.MonkeyPatch) -> Any:
    def mutated(self: Any, values: dict[str, object]) -> Any:
        yield from original(self, values)
        yield Ask("DELETE FROM keys_key WHERE team = :team AND seq = :seq", values)

    original = _Sql.acknowledge
    monkeypatch.setattr(_Sql, "acknowledge", mutated)
    return lambda _sql: None


def _the_key_comes_first(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The key is kept, and the message that it stands for is left to a second step, which a crash can prevent."""

    def mutated(self: Any, values: Any, key: Any) -> Any:
        rows = (yield Ask(self._known, {**values, **key._asdict()})).rows
        if rows:
            return inbox_sql._Put(rows[0][0], rows[0][1])
        yield Ask(self._add_key, {**values, **key._asdict(), "seq": 1})
        return inbox_sql._Put(1, key.fingerprint)

    monkeypatch.setattr(_Sql, "put", mutated)
    return lambda _sql: None


def _nobody_counts_down(_monkeypatch: pytest.MonkeyPatch) -> Any:
    return lambda sql: setattr(sql, "_count_down", "SELECT 1 WHERE :team = :place")


MUTATIONS: dict[str, Callable[[pytest.MonkeyPatch], Any]] = {
    "a key that nobody knows": _nobody_knows_the_key,
    "a key that is forgotten with its message": _the_key_goes_with_the_message,
    "a key without its message": _the_key_comes_first,
    "messages that are counted for ever": _nobody_counts_down,
}


@pytest.mark.parametrize("bug", MUTATIONS)
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, original = MUTATIONS[bug](monkeypatch), _Sql.__init__

    def mutated(self: Any, *words: str) -> None:
        original(self, *words)
        plant(self)

    monkeypatch.setattr(_Sql, "__init__", mutated)
    with pytest.raises(Violation):
        explore(PutCase, lost=1)
