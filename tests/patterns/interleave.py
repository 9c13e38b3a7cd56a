"""Every interleaving of a small case: tasks that stop before each step at the store, and whatever may happen between.

A case is built anew for each sequence of choices, on a real SQLite database in memory whose clock the case moves. What
leads to a state that was seen before is not followed further.
"""

from __future__ import annotations

import contextvars
import sqlite3
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Protocol

from leasehold.fences.sql_rule import Answer, Ask

START = 1_800_000_003.0  # away from the edge of any period
_JULIAN_1970 = 2440587.5


class Violation(AssertionError):
    """A judge saw what must never be."""


class Crashed(BaseException):
    """The task is no more."""


@types.coroutine
def turn() -> Generator[None, str, str]:
    """Stop here until the explorer says how it goes on: ``"go"``, or how the step goes wrong."""
    return (yield)


class Database:
    """A real SQLite database in memory, whose clock stands still until it is moved."""

    def __init__(self) -> None:
        self.clock = START
        self._raw = sqlite3.connect(":memory:", isolation_level=None)
        # In place of SQLite's own function: the statements are those of the product, word for word.
        self._raw.create_function("julianday", 1, lambda _now: self.clock / 86400 + _JULIAN_1970)

    def ask(self, ask: Ask) -> Answer:
        cursor = self._raw.execute(ask.sql, dict(ask.values))
        return Answer(cursor.rowcount, cursor.fetchall())

    def drive(self, steps: Generator[Ask, Answer, Any]) -> Any:
        """All steps at once."""
        try:
            ask = next(steps)
            while True:
                ask = steps.send(self.ask(ask))
        except StopIteration as end:
            return end.value

    def dump(self) -> str:
        """All that there is, and the time."""
        return f"{self._raw.execute('SELECT * FROM keys').fetchall()}{self.clock}"

    def close(self) -> None:
        self._raw.close()


class Case(Protocol):
    """A small case."""

    database: Database
    tasks: list[Task]

    def choices(self) -> list[str]:
        """What may happen besides the steps of tasks: moves of the clock."""
        ...

    def happen(self, choice: str) -> None:
        """Let it happen."""
        ...

    def check(self) -> None:
        """Raise `Violation` if this must never be."""
        ...

    def settle(self) -> None:
        """Everybody who is at work crashes here, and others come: in the end, all must be well."""
        ...


class Task:
    """One instance, from step to step."""

    def __init__(self, coroutine: Coroutine[Any, str, None]) -> None:
        self._coroutine, self.is_over, self.taken = coroutine, False, 0
        self._context = contextvars.copy_context()
        self._send("")

    def step(self, how: str) -> None:
        self.taken += 1
        self._send(how)

    def _send(self, how: str) -> None:
        try:
            self._context.run(self._coroutine.send, how or None)  # type: ignore[arg-type]
        except StopIteration:
            self.is_over = True
        except BaseException:
            self.is_over = True
            raise

    def crash(self) -> None:
        """Nothing more of it happens, not even what it would have tidied up."""
        while not self.is_over:
            try:
                self._context.run(self._coroutine.throw, Crashed())
            except (Crashed, StopIteration):
                self.is_over = True


def finished(awaitable: Awaitable[Any]) -> Any:
    """Run something that takes its turns without stopping."""
    coroutine: Any = awaitable
    sent: str | None = None
    while True:
        try:
            coroutine.send(sent)
        except StopIteration as end:
            return end.value
        sent = "go"


def explore(build: Callable[[], Case], *, lost: int = 0, most: int = 20_000) -> int:
    """Follow every sequence of choices, with at most so many answers lost; how many states there were."""
    seen, settled = set[str](), set[str]()
    open_paths: list[tuple[str, ...]] = [()]
    while open_paths:
        path = open_paths.pop()
        case = build()
        try:
            for choice in path:
                _perform(case, choice)
            case.check()
            kept = case.database.dump()
            losses = sum(choice.endswith(("lost", "dropped")) for choice in path)
            state = f"{kept}{losses}{[(task.taken, task.is_over) for task in case.tasks]}"
            if state in seen:
                continue
            seen.add(state)
            assert len(seen) <= most, f"more than {most} states: make the case smaller"
            steps = [f"{number}:go" for number, task in enumerate(case.tasks) if not task.is_over]
            if losses < lost:
                steps += [f"{step[:-2]}{how}" for step in [*steps] for how in ("lost", "dropped")]
            open_paths += [(*path, choice) for choice in (*steps, *case.choices())]
            if kept not in settled:
                settled.add(kept)
                for task in case.tasks:
                    task.crash()
                case.settle()
                case.check()
        except Violation as violation:
            raise Violation(f"{violation} after {' '.join(path)}") from None
        finally:
            for task in case.tasks:
                task.crash()
            case.database.close()
    return len(seen)


def _perform(case: Case, choice: str) -> None:
    number, _, how = choice.partition(":")
    if number.isdigit():
        case.tasks[int(number)].step(how)
    else:
        case.happen(choice)
