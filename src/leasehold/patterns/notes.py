# ruff: noqa: S608 - what is put into the statements is a table's name that was checked, and our own words
"""Notes: small texts that many instances change, each time on the condition that nobody else has since.

They are kept where the idempotency keys are, in the same table or on the same server, and never expire.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator
from typing import Final, NamedTuple, Protocol, TypeVar

from leasehold.fences.sql_rule import Answer, Ask
from leasehold.patterns.dialects import INSERT, LOCKING, UNLESS_THERE, NewRow

T = TypeVar("T")
Steps = Generator[Ask, Answer, T]

_NEVER: Final = 9_000_000_000_000_000_000


class Note(NamedTuple):
    """What is noted under a name, and when it was read by the store's own clock."""

    version: int
    """How often it was written; 0: never."""
    text: str
    now: float


class Notes(Protocol):
    """Where notes are kept. In the blocking world its coroutines never suspend."""

    async def note(self, name: str) -> Note:
        """What is noted now."""
        ...

    async def set_note(self, name: str, version: int, text: str) -> bool:
        """Write it if its version is still this one; False, and nothing is done, if it is not."""
        ...

    async def pause(self, seconds: float) -> None:
        """Sleep in this world."""
        ...


def note_id(name: str) -> str:
    """One text of a fixed form for any name; no idempotency key has it."""
    return hashlib.sha256(f"note:{name}".encode()).hexdigest()


class NoteSql:
    """The statements, in the words of one kind of database."""

    def __init__(self, dialect: str, table: str, clock: str) -> None:
        """`clock` is an expression: the database's time in microseconds since 1970."""
        self._read = f"SELECT {clock}, token, data FROM {table} WHERE id = :id"
        self._locked = self._read + LOCKING[dialect]
        self._clock = f"SELECT {clock}"
        self._insert = (
            f"{INSERT[dialect]} INTO {table} (id, scope, name, fingerprint, state, run, token, expires, keep_until, "
            f"point, data, result) VALUES (:id, 'note', :name, '', 'note', '', 1, 0, {_NEVER}, '', :text, '')"
            f"{UNLESS_THERE[dialect]}"
        )
        self._update = f"UPDATE {table} SET data = :text, token = token + 1 WHERE id = :id AND token = :version"

    def note(self, name: str, *, locked: bool = False) -> Steps[Note]:
        """Read it; `locked`: until the end of the transaction, so that it cannot change meanwhile."""
        answer = yield Ask(self._locked if locked else self._read, {"id": note_id(name)})
        if not answer.rows:
            answer = yield Ask(self._clock, {})
            return Note(0, "", int(answer.rows[0][0]) / 1e6)
        [(now, version, text)] = answer.rows
        return Note(int(version), text, int(now) / 1e6)

    def set_note(self, name: str, version: int, text: str, *, again: bool = False) -> Steps[bool]:
        """One statement, with its condition; `again`: an attempt whose answer was lost may have written it already."""
        values: dict[str, object] = {"id": note_id(name), "text": text}
        if version:
            answer = yield Ask(self._update, {**values, "version": version})
        else:
            answer = yield NewRow(self._insert, {**values, "name": name})
        if again and answer.touched != 1:
            now = yield from self.note(name)
            return (now.version, now.text) == (version + 1, text)
        return answer.touched == 1
