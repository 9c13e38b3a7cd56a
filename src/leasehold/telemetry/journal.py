"""Writes down with the engine what fences refused, so that a process elsewhere can show it.

A refusal happens between a writer and its resource, and the engine hears nothing of it. A process that watches with a
`Journal` tells: `leasehold serve` then shows the stale writes of all such processes together.

>>> import pathlib, tempfile, leasehold
>>> from leasehold.events import Refused
>>> with leasehold.Leasehold(pathlib.Path(tempfile.mkdtemp()) / "leases.db") as locks:
...     with Journal(locks) as journal, leasehold.watch(journal):
...         leasehold.watching.note(Refused("invoices", 33, "stale", 34))
...     [(one.resource, one.token, one.seen) for one in read(locks).last]
[('invoices', 33, 34)]
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import random
import threading
import time
from collections import deque
from types import TracebackType
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from leasehold.core.worlds import run_blocking
from leasehold.errors import EngineUnavailable, LeaseholdError, OutcomeUnknown
from leasehold.events import Refused
from leasehold.keeping import log
from leasehold.names import check_namespace
from leasehold.patterns.jobs.shelves import Shelf, notes_with

if TYPE_CHECKING:
    from leasehold.client import AsyncLeasehold, Leasehold
    from leasehold.events import Event

_Pending = tuple[tuple[float, Refused], ...]
"""Refusals with the times at which they happened, on the monotonic clock."""
REASONS: Final = ("stale", "used", "jump")
MOST_KEPT: Final = 100
"""Refusals that the journal still has one by one; all of them are counted."""
LONGEST_TEXT: Final = 255
"""Characters of a resource's name that are kept."""
TOGETHER: Final = 1.0
"""Seconds between two writes of one process: a storm of refusals is written down in one go."""
LONGEST_PAUSE: Final = 60.0
"""Between two attempts while the engine does not answer."""
CLOSE_WITHIN: Final = 5.0
MOST_TRIES: Final = 50


class Refusal(NamedTuple):
    """One write that a fence refused."""

    at: float
    """When, by the store's clock."""
    resource: str
    token: int
    seen: int | None
    """The token that the resource had seen."""
    reason: str
    by: str
    """Who wrote: ``label@host:pid`` of the client that the journal was given."""


class Told(NamedTuple):
    """What the journal says."""

    counts: dict[str, int]
    """All that were ever written down, by reason."""
    last: tuple[Refusal, ...] = ()
    """The latest ones, the oldest first."""


class Journal:
    """A watcher that writes down refusals with the engine of a client, in a thread of its own.

    Nothing is sent before the first refusal, and whoever is refused does not wait for it. What the engine cannot take
    now is tried again; a process that is killed takes its last second with it.
    """

    def __init__(self, locks: Leasehold | AsyncLeasehold, *, namespace: str = "") -> None:
        """`NotSupported` where the engine of `locks` keeps no notes; they are where the books of jobs are."""
        self._family, self._key, self._by = locks._family, _key(namespace), locks._desk.about
        notes_with(self._family, "journal").close()  # says at once where it cannot be kept
        self._begin()
        atexit.register(self.close)

    def _begin(self) -> None:
        """Begin with nothing to write: at first, and in a forked child, whose parent writes what there was."""
        self._pid = os.getpid()
        self._change = threading.Condition()
        self._pending: deque[tuple[float, Refused]] = deque(maxlen=MOST_KEPT)
        self._counts = dict.fromkeys(REASONS, 0)
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def __call__(self, event: Event) -> None:
        """Take in an event; all but refusals are nothing to it."""
        if not isinstance(event, Refused):
            return
        if self._pid != os.getpid():
            self._begin()
        with self._change:
            if self._is_closed:
                return
            self._counts[event.reason] += 1
            self._pending.append((time.monotonic(), event))
            if self._thread is None:
                self._thread = threading.Thread(target=self._write_all, name="leasehold-journal", daemon=True)
                self._thread.start()
            self._change.notify_all()

    def close(self) -> None:
        """Write what is still to be written, within a few seconds, and end."""
        atexit.unregister(self.close)
        if self._pid != os.getpid():
            return
        with self._change:
            self._is_closed = True
            self._change.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(CLOSE_WITHIN)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write_all(self) -> None:
        """Write, wait for more, and write again, until closed."""
        pause = TOGETHER
        with contextlib.closing(notes_with(self._family, "journal")) as notes:
            while True:
                with self._change:
                    self._change.wait_for(lambda: self._is_closed or any(self._counts.values()))
                    ends = self._is_closed
                    counts, pending = self._counts, tuple(self._pending)
                    self._counts = dict.fromkeys(REASONS, 0)
                    self._pending.clear()
                if any(counts.values()):
                    pause = self._write(notes, counts, pending, pause)
                if ends:
                    return
                with self._change:
                    self._change.wait_for(lambda: self._is_closed, pause)

    def _write(self, notes: Shelf, counts: dict[str, int], pending: _Pending, pause: float) -> float:
        """Write some refusals down; returns for how long to pause then."""
        try:
            run_blocking(_add(notes, self._key, counts, pending, self._by))
        except (LeaseholdError, OSError) as error:
            level = log().warning if pause == TOGETHER else log().debug
            level("refused writes cannot be written down for others to see: %s", error)
            with self._change:
                self._counts = {reason: self._counts[reason] + counts[reason] for reason in REASONS}
                self._pending.extendleft(reversed(pending[: MOST_KEPT - len(self._pending)]))
            return min(pause * 2, LONGEST_PAUSE)
        return TOGETHER


def read(locks: Leasehold, *, namespace: str = "") -> Told | None:
    """What the journal of an engine says; None when nothing was ever written down there."""
    with contextlib.closing(notes_with(locks._family, "journal")) as notes:
        return run_blocking(told(notes, namespace))


async def told(notes: Shelf, namespace: str) -> Told | None:
    """What the journal says."""
    note = await notes.note(_key(namespace))
    return _from_text(note.text) if note.text else None


async def _add(notes: Shelf, key: str, counts: dict[str, int], pending: _Pending, by: str) -> None:
    for _ in range(MOST_TRIES):
        note = await notes.note(key)
        before = _from_text(note.text) if note.text else Told(dict.fromkeys(REASONS, 0))
        offset = note.now - time.monotonic()
        new = [
            Refusal(round(at + offset, 3), one.resource[:LONGEST_TEXT], one.token, one.seen, one.reason, by)
            for at, one in pending
        ]
        after = Told({reason: before.counts[reason] + counts[reason] for reason in REASONS}, (*before.last, *new))
        try:
            if await notes.set_note(key, note.version, _as_text(after)):
                return
        except OutcomeUnknown:
            # Told twice is better than not at all, but a look may show that it was done.
            if (await notes.note(key)).text == _as_text(after):
                return
        await notes.pause(random.random() * 0.1)
    raise EngineUnavailable("the journal was written by others all the time")


def _key(namespace: str) -> str:
    return f"refused:{check_namespace(namespace)}"


def _as_text(journal: Told) -> str:
    return json.dumps({"counts": journal.counts, "last": journal.last[-MOST_KEPT:]}, separators=(",", ":"))


def _from_text(text: str) -> Told:
    kept = json.loads(text)
    counts = {reason: int(kept["counts"].get(reason, 0)) for reason in REASONS}
    return Told(counts, tuple(Refusal(*one) for one in kept["last"]))
