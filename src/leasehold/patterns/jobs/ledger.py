"""One job in a store of notes: reads its book, changes it on the condition that nobody else has, and tries again."""

from __future__ import annotations

import json
import os
import random
import secrets
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from leasehold import watching
from leasehold.errors import EngineUnavailable, OutcomeUnknown, StaleToken, quoted
from leasehold.keeping import log
from leasehold.patterns.jobs import book as books
from leasehold.patterns.jobs.book import Book, Missed, Open, Step, Terms
from leasehold.patterns.jobs.schedules import Schedule
from leasehold.patterns.notes import Note, Notes
from leasehold.settings import host_name

FIRST_PAUSE, LONGEST_PAUSE = 0.002, 0.1
MOST_TRIES: Final = 200
MOST_TEXT: Final = 500
"""Characters of an error's text that are kept."""
AHEAD: Final = 60.0
"""A cursor that is so many seconds ahead of the store's clock tells that the clock was set back."""


class Begun(NamedTuple):
    """A run that this instance is to do."""

    run: str
    token: int
    open: Open


class Ledger:
    """The book of one job, and how one instance of it reads and writes there."""

    def __init__(self, notes: Notes, name: str, *, namespace: str, schedule: Schedule, terms: Terms) -> None:
        self.notes, self.name, self._schedule, self.terms = notes, name, schedule, terms
        self._namespace, self._key, self._scope = namespace, book_key(namespace, name), f"job/{name}"

    async def begin(self) -> tuple[Step, Begun | None]:
        """Begin what is due, if something is."""
        run, by = secrets.token_hex(16), f"{host_name()}:{os.getpid()}"

        def asks(book: Book, now: float) -> tuple[Book, Step]:
            mine = book.open
            if mine is not None and mine.run == run:  # the answer to an earlier try was lost
                return book, Step(book, "ran", mine.tick, mine)
            step = books.Asking(book, self._schedule, self.terms, now).decide(run, by)
            return step.book, step

        step = await self._change(asks)
        for missed in step.reported:
            self._tell(missed)
        if step.state == "done before":
            watching.keyed(self._scope, step.about, "replayed")
        elif step.state == "under way":
            watching.keyed(self._scope, step.about, "in progress")
        return step, None if step.begun is None else Begun(run, step.book.token, step.begun)

    async def finish(self, begun: Begun, result: str, *, on: Any = None) -> None:
        """The run has ended well; `StaleToken` when its tick is not its any more."""

        def ends(book: Book, now: float) -> tuple[Book, bool]:
            after = books.finish(book, begun.run, now, result=result, schedule=self._schedule, terms=self.terms)
            return after or book, after is not None or books.has_ended(book, begun.run)

        if not await self._change(ends, on=on):
            raise await self._refused(begun, on)
        watching.keyed(self._scope, begun.open.tick, "ran")

    def is_open_on(self, on: Any) -> bool:
        """Whether a transaction is open on the caller's own connection now."""
        return self.notes.is_open_on(on)  # type: ignore[attr-defined, no-any-return]

    async def fail(self, begun: Begun, error: str) -> None:
        """The run has failed. Whether its tick was still its own is of no interest: its own error is."""

        def ends(book: Book, now: float) -> tuple[Book, Missed | None]:
            after = books.fail(book, begun.run, now, error[:MOST_TEXT], self.terms)
            return after or (book, None)

        missed = await self._change(ends)
        watching.keyed(self._scope, begun.open.tick, "failed")
        if missed is not None:
            self._tell(missed)

    async def hear(self, begun: Begun, reached: tuple[str, str] | None = None) -> None:
        """A sign of life; `StaleToken` when the run was taken for crashed and its tick is not its any more."""

        def lives(book: Book, now: float) -> tuple[Book, bool]:
            after = books.hear(book, begun.run, now, self.terms, reached)
            return after or book, after is not None

        if not await self._change(lives):
            raise await self._refused(begun, None)

    async def take_from(self, holder_of_lease: str) -> None:
        """A run that is under way is taken for crashed, on the word of who holds the lease that every run needs."""

        def ends(book: Book, now: float) -> tuple[Book, None]:
            return books.disbelieve(book, now, holder_of_lease), None

        await self._change(ends)

    async def _refused(self, begun: Begun, on: Any) -> StaleToken:
        book = books.from_text((await self._read(on)).text)
        seen = max(book.token, begun.token + 1)
        return watching.refused(StaleToken(f"job {self.name}", token=begun.token, seen=seen))

    async def _change(self, change: Callable[[Book, float], tuple[Book, Any]], *, on: Any = None) -> Any:
        """Change the book in one atomic step, however many write at once; returns what `change` says besides."""
        pause = FIRST_PAUSE
        for _ in range(MOST_TRIES):
            note = await self._read(on)
            before = books.from_text(note.text)
            after, said = change(before, note.now)
            if after == before:
                self._look_ahead(before, note.now)
                return said
            if not note.version:
                await register(self.notes, self._namespace, self.name)
            try:
                if await self._write(on, note.version, books.as_text(after)):
                    return said
            except OutcomeUnknown as unknown:
                log().debug("job %s: %s; asking again", ascii(self.name), unknown)
            await self.notes.pause(random.random() * pause)
            pause = min(pause * 2, LONGEST_PAUSE)
        raise EngineUnavailable(f"the book of job {quoted(self.name)} was written by others all the time; nothing done")

    async def _read(self, on: Any) -> Note:
        return await (self.notes.note(self._key) if on is None else self.notes.note_on(on, self._key))  # type: ignore[attr-defined]

    async def _write(self, on: Any, version: int, text: str) -> bool:
        if on is None:
            return await self.notes.set_note(self._key, version, text)
        return await self.notes.set_note_on(on, self._key, version, text)  # type: ignore[attr-defined, no-any-return]

    def _tell(self, missed: Missed) -> None:
        text = f"job {self.name!a}: {told(missed)}"
        watching.missed(self._scope, text, first=missed.first, last=missed.last, count=missed.count, why=missed.why)

    def _look_ahead(self, book: Book, now: float) -> None:
        if book.cursor and books.tick_of(book.cursor).timestamp() > now + AHEAD:
            log().warning(
                "job %s is settled up to %s, which is yet to come: the store's clock was set back; nothing runs before "
                "then unless its book is forgotten",
                ascii(self.name),
                book.cursor,
            )


def told(missed: Missed) -> str:
    """A report for people."""
    if missed.count == 1:
        return f"tick {missed.first} is missed ({missed.why})"
    more = " or more" if missed.count >= books.MOST_COUNTED else ""
    return f"{missed.count}{more} ticks from {missed.first} to {missed.last} are missed ({missed.why})"


# All jobs of a store


def book_key(namespace: str, name: str) -> str:
    """The name of the note that is a job's book."""
    return f"job:{len(namespace)}:{namespace}:{name}"


def _register_key(namespace: str) -> str:
    return f"jobs:{namespace}"


async def register(notes: Notes, namespace: str, name: str) -> None:
    """Let the job be found by those who list all."""
    for _ in range(MOST_TRIES):
        note = await notes.note(_register_key(namespace))
        names: list[str] = json.loads(note.text or "[]")
        if name in names:
            return
        if await notes.set_note(_register_key(namespace), note.version, json.dumps(sorted({*names, name}))):
            return
        await notes.pause(random.random() * LONGEST_PAUSE)
    raise EngineUnavailable("the list of jobs was written by others all the time")


async def all_books(notes: Notes, namespace: str) -> tuple[float, dict[str, Book]]:
    """The store's clock, and the book of every job that was ever asked for."""
    now, names = await registered(notes, namespace)
    found = {name: await book_of(notes, namespace, name) for name in names}
    return now, {name: book for name, book in found.items() if book is not None}


async def registered(notes: Notes, namespace: str) -> tuple[float, list[str]]:
    """The store's clock, and the names of all jobs that were ever asked for."""
    note = await notes.note(_register_key(namespace))
    names: list[str] = json.loads(note.text or "[]")
    return note.now, names


async def book_of(notes: Notes, namespace: str, name: str) -> Book | None:
    """The book of one job; None when it is empty."""
    book = books.from_text((await notes.note(book_key(namespace, name))).text)
    return None if book == Book() else book


async def forget(notes: Notes, namespace: str, name: str, because: str) -> bool:
    """Begin a new book for a job, as an operator: it starts with the tick of that moment. False when there is none."""
    key = book_key(namespace, name)
    for _ in range(MOST_TRIES):
        note = await notes.note(key)
        book = books.from_text(note.text)
        if book == Book():
            return False
        if await notes.set_note(key, note.version, books.as_text(Book(token=book.token, schedule=book.schedule))):
            log().warning("the book of job %s is forgotten because %s", ascii(name), ascii(because))
            return True
        await notes.pause(random.random() * LONGEST_PAUSE)
    raise EngineUnavailable(f"the book of job {quoted(name)} was written by others all the time; nothing was done")
