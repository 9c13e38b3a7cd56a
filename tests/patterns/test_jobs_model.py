"""The book of a job in every interleaving of small cases; and the bugs that were planted in it are found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.patterns.interleave import START, Database, Task, Violation, explore, finished, turn

from leasehold.errors import OutcomeUnknown, StaleToken
from leasehold.patterns.idempotency.sql import Sql
from leasehold.patterns.jobs import Every, book, ledger
from leasehold.patterns.jobs.book import Asking, Book, Open, Terms, as_text, from_text, key_of
from leasehold.patterns.jobs.ledger import Ledger, book_key
from leasehold.patterns.notes import Note, NoteSql

PERIOD = 10.0
SCHEDULE = Every(PERIOD)
KEY = book_key("", "export")


class Notes:
    """The product's own statements on the case's database; stops before each, and hears what was written."""

    def __init__(self, database: Database, heard: Callable[[Book, Book], None]) -> None:
        self._database, self._heard = database, heard
        self._sql = Sql("sqlite", "keys").notes

    async def note(self, name: str) -> Note:
        await turn()
        return self.read(name)

    def read(self, name: str) -> Note:
        note: Note = self._database.drive(self._sql.note(name))
        return note

    async def set_note(self, name: str, version: int, text: str) -> bool:
        how = await turn()
        if how == "dropped":
            raise OutcomeUnknown("the request was lost")
        before = self.read(name)
        written: bool = self._database.drive(self._sql.set_note(name, version, text))
        if written:
            self._heard(from_text(before.text), from_text(text))
        if how == "lost":
            raise OutcomeUnknown("the answer was lost")
        return written

    async def pause(self, seconds: float) -> None:
        """Others may come in at every step anyway."""


class JobCase:
    """Some instances of a job that is two ticks behind."""

    def __init__(self, terms: Terms, instances: int = 2, moves: int = 1, fails: bool = False) -> None:
        self.database, self._terms, self._moves, self._fails = Database(), terms, moves, fails
        self.done, self.reported, self.told = list[str](), list[str](), list[tuple[str, bool]]()
        self._notes = Notes(self.database, self._heard)
        self.database.drive(_one(Sql("sqlite", "keys").create))
        first = key_of(SCHEDULE.latest(datetime.fromtimestamp(START - 2 * PERIOD, UTC)))
        self.database.drive(Sql("sqlite", "keys").notes.set_note(KEY, 0, as_text(Book(cursor=first, done=first))))
        self._start = first
        self.tasks = [Task(self._instance(number)) for number in range(instances)]

    def _ledger(self) -> Ledger:
        return Ledger(self._notes, "export", namespace="", schedule=SCHEDULE, terms=self._terms)

    async def _instance(self, number: int, rounds: int = 1) -> None:
        books = self._ledger()
        for _ in range(rounds):
            _step, begun = await books.begin()
            if begun is None:
                return
            await turn()
            if self._fails and number == 0:
                await books.fail(begun, "boom")
                continue
            try:
                await books.finish(begun, "j1")
                self.told.append((begun.run, True))
            except StaleToken:
                self.told.append((begun.run, False))

    def _heard(self, before: Book, after: Book) -> None:
        if after.cursor < before.cursor:
            raise Violation("the cursor went back")
        if after.token < before.token or (after.open and not before.open and after.token == before.token):
            raise Violation("a token was given twice")
        fresh = [run for run in after.runs if run not in before.runs]
        self.done += [run.tick for run in fresh if run.state == "done"]
        for missed in after.missed[len(before.missed) :]:
            self.reported += _ticks(missed.first, missed.last)

    def choices(self) -> list[str]:
        return ["later"] if self._moves else []

    def happen(self, choice: str) -> None:
        assert choice == "later"
        self._moves -= 1
        self.database.clock += self._terms.at_most_for + 1

    def check(self) -> None:
        twice = [tick for tick, count in Counter(self.done + self.reported).items() if count > 1]
        if twice:
            raise Violation(f"{twice[0]} was settled twice")
        now = from_text(self._notes.read(KEY).text)
        settled = set(_ticks(self._start, now.cursor)[1:])
        if not settled <= {*self.done, *self.reported}:
            raise Violation(f"{min(settled - {*self.done, *self.reported})} was neither done nor reported")
        ended = {run.run for run in now.runs if run.state == "done"}
        if any(is_done != (run in ended) for run, is_done in self.told):
            raise Violation("a run was told that it has done its tick and it has not, or the other way round")

    def settle(self) -> None:
        self._fails = False
        for _ in range(3):
            self.database.clock += self._terms.at_most_for + 1
            finished(self._instance(9, rounds=8))
        latest = key_of(SCHEDULE.latest(datetime.fromtimestamp(self.database.clock, UTC)))
        if from_text(self._notes.read(KEY).text).cursor != latest:
            raise Violation("not everything is settled in the end")


def _one(sql: str) -> Any:
    from leasehold.fences.sql_rule import Ask

    yield Ask(sql, {})


def _ticks(first: str, last: str) -> list[str]:
    found, tick = [], book.tick_of(first)
    following = SCHEDULE.after(tick)
    while key_of(tick) <= last:
        found.append(key_of(tick))
        tick = next(following)
    return found


@pytest.fixture(autouse=True)
def _numbered_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same names of runs in each replay of the same choices; which they are does not matter."""

    class Nonces:
        @staticmethod
        def token_hex(_bytes: int) -> str:
            Nonces.number += 1
            return f"{Nonces.number:032x}"

        number = 0

    original = JobCase.__init__

    def begin_anew(self: JobCase, *args: Any, **settings: Any) -> None:
        Nonces.number = 0
        original(self, *args, **settings)

    monkeypatch.setattr(ledger, "secrets", Nonces)
    monkeypatch.setattr(JobCase, "__init__", begin_anew)


ALL = Terms(catch_up="all", at_most_for=5, backoff=0, attempts=3)
CASES: dict[str, Callable[[], JobCase]] = {
    "all": lambda: JobCase(ALL),
    "all, one fails": lambda: JobCase(replace(ALL, attempts=2), fails=True),
    "latest": lambda: JobCase(replace(ALL, catch_up="latest"), moves=2),
    "skip": lambda: JobCase(replace(ALL, catch_up="skip", grace=8)),
    "left out": lambda: JobCase(replace(ALL, at_most_for=9, overlap="skip")),
    "replaced": lambda: JobCase(replace(ALL, at_most_for=9, overlap="replace", catch_up="latest")),
}


@pytest.mark.parametrize("case", CASES)
def test_every_interleaving_settles_every_tick_once(case: str) -> None:
    assert explore(CASES[case]) > 50


def test_answers_may_be_lost() -> None:
    assert explore(lambda: JobCase(ALL, moves=0), lost=1) > 200


# Bugs, each in the place where somebody could make it


def _ends_for_anybody(state: Book, run: str, *args: Any, **settings: Any) -> Book | None:
    return FINISH(state, state.open.run if state.open else run, *args, **settings)


def _cursor_moves_at_begin(self: Asking, one: Open, run: str, by: str) -> Any:
    step = BEGIN(self, one, run, by)
    return replace(step, book=replace(step.book, cursor=one.tick))


def _begins_with_the_latest(self: Asking) -> Any:
    latest: Any = Open(self._latest, 0)
    return latest if self._latest > self._book.cursor else NEXT(self)


def _gives_up_in_silence(self: Asking, _one: Open, _why: str) -> None:
    self._book = replace(self._book, cursor=self._book.settled(), open=None, passed="")


def _writes_in_any_case(self: NoteSql, name: str, version: int, text: str) -> Any:
    now = yield from self.note(name)
    return (yield from SET(self, name, now.version, text))


def _forgets_what_was_left_out(state: Book) -> str:
    return max(state.open.tick if state.open else "", state.cursor)


FINISH, BEGIN, NEXT, SET = book.finish, Asking._begin, Asking._next_tick, NoteSql.set_note
MUTATIONS: dict[str, tuple[str, Any, str, Any]] = {
    "a run ends a tick that is not its any more": ("all", book, "finish", _ends_for_anybody),
    "the cursor moves before the run has ended": ("all", Asking, "_begin", _cursor_moves_at_begin),
    "older ticks are passed by in silence": ("all", Asking, "_next_tick", _begins_with_the_latest),
    "what is given up is not reported": ("all, one fails", Asking, "_give_up", _gives_up_in_silence),
    "the book is written whoever wrote since": ("all", NoteSql, "set_note", _writes_in_any_case),
    "what was left out is asked for again": ("left out", Book, "settled", _forgets_what_was_left_out),
    "a lost answer counts as a refusal": ("all", book, "has_ended", lambda *_: False),
}


@pytest.mark.parametrize("bug", MUTATIONS)
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case, place, name, mutant = MUTATIONS[bug]
    monkeypatch.setattr(place, name, mutant)
    with pytest.raises(Violation):
        explore(CASES[case], lost=int("lost" in bug))
