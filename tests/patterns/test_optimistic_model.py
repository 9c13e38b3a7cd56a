"""Transfers between accounts in every interleaving of small cases; and planted bugs lose money, which is found."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from tests.patterns.interleave import Database, Task, Violation, explore, finished, turn

from leasehold.errors import OutcomeUnknown, VersionConflict
from leasehold.patterns import databases, optimistic, versions
from leasehold.patterns.optimistic import Versioned, Versions, retry_on_conflict

OPENING = 10
ACCOUNTS = ("a", "b", "c")


class Bank(Database):
    """The database, and what the clerks have read: what they do next depends on it."""

    def __init__(self) -> None:
        super().__init__()
        self.connection, self.read = self._raw, dict[str, list[Versioned]]()

    def dump(self) -> str:
        return f"{super().dump()}{self.read}"


class TransferCase:
    """Two clerks who each move 1 to the same account, from two others; whoever comes first opens an account."""

    def __init__(self, *, opened: bool = True) -> None:
        self.database: Any = Bank()
        self._store = Versions(self.database.connection, table="keys")
        self._store.create()
        for account in ACCOUNTS if opened else ():
            self._store.write(account, OPENING, 0)
        self.moved, self.told = list[str](), dict[str, str]()
        self.tasks = [Task(self._clerk("one", "a")), Task(self._clerk("two", "c"))]

    async def _clerk(self, name: str, source: str) -> None:
        @retry_on_conflict(attempts=4, within=1000)
        async def transfer() -> None:
            self.database.read[name] = []
            for account in (source, "b"):
                await turn()
                self.database.read[name].append(self._store.read(account))
            how = await turn()
            if how == "dropped":
                raise OutcomeUnknown("the request was lost")
            mine, target = self.database.read[name]
            self._store.write_all(
                {
                    source: Versioned(_balance(mine) - 1, mine.version),
                    "b": Versioned(_balance(target) + 1, target.version),
                }
            )
            self.moved.append(name)
            if how == "lost":
                raise OutcomeUnknown("the answer was lost")

        try:
            await transfer()
            self.told[name] = "done"
        except OutcomeUnknown:
            self.told[name] = "unknown"

    def choices(self) -> list[str]:
        return []

    def happen(self, choice: str) -> None:
        raise AssertionError(choice)

    def check(self) -> None:
        a, b, c = (_balance(self._store.read(account)) for account in ACCOUNTS)
        if a + b + c != 3 * OPENING:
            raise Violation(f"the sum is {a + b + c}")
        if b - OPENING != len(self.moved):
            raise Violation(f"{len(self.moved)} transfers were made, and {b - OPENING} arrived")
        for name, told in self.told.items():
            if self.moved.count(name) > 1 or (told == "done" and name not in self.moved):
                raise Violation(f"{name} was told {told}, and has moved {self.moved.count(name)}")

    def settle(self) -> None:
        """Whoever crashes keeps nobody from going on."""
        before = len(self.moved)
        finished(self._clerk("three", "a"))
        if len(self.moved) != before + 1:
            raise Violation("nobody can move anything any more")


def _balance(account: Versioned) -> int:
    return OPENING if account.version == 0 else int(account.value)


@pytest.fixture(autouse=True)
def _pauses_are_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    async def pause(_seconds: float) -> None:
        await turn()

    monkeypatch.setattr(optimistic, "asyncio", SimpleNamespace(sleep=pause))


@pytest.mark.parametrize("opened", [True, False])
def test_every_interleaving_keeps_the_sum_and_loses_no_transfer(opened: bool) -> None:
    assert explore(lambda: TransferCase(opened=opened)) > 20


def test_also_when_answers_are_lost() -> None:
    assert explore(TransferCase, lost=1) > 50


# Bugs, each in the place where somebody could make it


def _statement(name: str, right: str, wrong: str) -> Callable[[pytest.MonkeyPatch], None]:
    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        original = versions._Sql.__init__

        def mutated(self: Any, dialect: str, table: str) -> None:
            original(self, dialect, table)
            assert right in getattr(self, name)
            setattr(self, name, getattr(self, name).replace(right, wrong))

        monkeypatch.setattr(versions._Sql, "__init__", mutated)

    return plant


def _only_the_first_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    original = versions._Sql.write_all

    def mutated(self: Any, changes: Any) -> Any:
        names = sorted(changes)
        yield from original(self, {names[0]: changes[names[0]]})
        for name in names[1:]:
            with contextlib.suppress(VersionConflict):
                yield from original(self, {name: changes[name]})

    monkeypatch.setattr(versions._Sql, "write_all", mutated)


def _each_row_stands_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(databases._Sqlite, "transaction", lambda _self: contextlib.nullcontext())


def _everything_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimistic.Retry, "__init__", _with(optimistic.Retry.__init__, lambda _error: True))


def _a_conflict_is_taken_for_success(monkeypatch: pytest.MonkeyPatch) -> None:
    def mutated(self: Any, changes: Any) -> None:
        with contextlib.suppress(VersionConflict):
            original(self, changes)

    original = Versions.write_all
    monkeypatch.setattr(Versions, "write_all", mutated)


def _with(original: Any, is_conflict: Any) -> Any:
    return lambda self, **settings: original(self, **{**settings, "is_conflict": is_conflict})


MUTATIONS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "a write without a look at the version": _statement("_update", " AND version = :version", ""),
    "a version that stays as it was": _statement("_update", "version = version + 1", "version = version"),
    "an insert that overwrites": _statement("_insert", "INSERT OR IGNORE", "INSERT OR REPLACE"),
    "only the first of several conditions counts": _only_the_first_is_checked,
    "several rows without a transaction": _each_row_stands_alone,
    "an outcome that is unknown is tried again": _everything_is_tried_again,
    "a conflict is taken for success": _a_conflict_is_taken_for_success,
}


@pytest.mark.parametrize("bug", MUTATIONS)
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTATIONS[bug](monkeypatch)
    with pytest.raises(Violation):
        explore(lambda: TransferCase(opened="insert" not in bug), lost=int("unknown" in bug))
