"""What happened in a run: events of all processes, on one clock.

Every process of a run writes its own file, one JSON object a line, flushed line by line so that kill -9 loses at most
the line that was being written. They are on one host, so `CLOCK_MONOTONIC` is the same for all of them, and the files
are merged by it.

An operation is two events: one when it begins, one when its outcome is known. They share a worker and an `op` number.
An operation whose second event is missing (its process died), or is `unknown`, may or may not have taken effect:
checkers have to allow for both. An `op` is never used twice by one worker, not even after it was restarted.

What checkers read in `detail` (all times are seconds since the run began, like `at`):

=============  =======================================================================================================
ask            mode ("exclusive", "shared", "permit"), permits (how many there are), wait, ttl; again (True: the caller
               holds the name already and asks again, as reentrant locks allow)
granted        mode, permits, again as asked; believed
lost           told (True: the library said so; False: the worker found out by asking)
read, write    resource ("plain" or "fenced"), kind (of the resource: "register", "counter", "set", "bank", "queue",
               "partition", "payment", "job"), key (which one, the name of the lock unless it is said); lease (the op
               of the grant under which it is done; 0 when under none)
got            value (what was read); for a whole resource read at the end by the run: final=True; for payments: result
               (what a caller was given who asked for one, whoever carried it out)
write          value (what is written, unique in the run where it can be), after (the value that was read before, on
               which it builds)
wrote          value, as above; for payments: result (what the caller was answered)
=============  =======================================================================================================

At the end, when all is quiet, the run itself reads every resource: `got` by "run" with final=True and value, which is
for a register or counter its last value, for a set, queue, bank or partition the list of all values that arrived, in
order; for payments and jobs the list of [key, effect] pairs, one for each time that the effect took place.

>>> grant = Event(1.5, "w1", "granted", name="orders", op=3, token=17)
>>> Event.read(grant.line()) == grant
True
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Final, Literal, get_args

Kind = Literal[
    # A worker and the lock. "ask" begins, one of the next four ends it.
    "ask",
    "granted",  # with the token, where there is one; detail: mode, believed (the moment until which it may believe)
    "busy",  # not granted within the wait
    "unknown",  # an error after which nobody knows; detail: error. Ends reads, writes and releases, too
    "failed",  # an error that says that it was not done; detail: error. Ends reads, writes and releases, too
    "release",
    "released",
    "lost",  # the holder was told, or found out: from here on it knows; op is that of its grant
    "believed until",  # the holder's own clock ended its belief earlier than detail["believed"] said
    # A worker and the resource; detail: resource ("plain" or "fenced"), and what was read or written.
    "read",
    "got",
    "write",
    "wrote",
    "refused",  # by the fence: the token was stale; detail: seen
    # The resource itself; worker is "resource", op the place in its log. See `RESOURCE`.
    "accepted",
    "rejected",
    # The run itself; worker is "run".
    # It is about to strike; detail: fault, robs (it may stop a holder, or take its lease), loses (answers get lost).
    # Op pairs all three.
    "fault",
    "struck",  # it has; detail: at (what it struck, None: nothing). Without it, it may have struck anything
    "fault over",
    "settled",  # the faults are over for good: from here on everything must work again
    "begin",
    "end",
]
KINDS: Final = frozenset(get_args(Kind))
RUN: Final = "run"
"""Who records the events of the run itself."""
RESOURCE: Final = "resource"
"""Who records what came of each request to the resource, in the very transaction that decided it.

Its log is the truth about the resource: `op` counts its entries without a gap, in the order of their transactions, and
the entry of a write is there exactly if the write took effect, also when its worker was killed before it could say so.
The log has every write, and every fenced read, since that raises the fence's floor to its token. An entry has the
`name`, the `token` and the details (resource, kind, key, value, after) that the worker recorded for the same request,
and also by (the worker), by_op (the worker's `op`), and reads=True if it was a read. An accepted write whose `after` is
not what was there has overwritten somebody else's: that update is lost.
"""


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened."""

    at: float
    """Seconds since the run began, on the clock that all its processes share."""
    worker: str
    kind: Kind
    name: str = ""
    """The name of the lock, where it is about one."""
    op: int = 0
    """Pairs the two events of an operation of this worker; those of a lease share the number of its "ask"."""
    token: int | None = None
    detail: dict[str, Any] = field(default_factory=dict)

    def line(self) -> str:
        """As one line of a file."""
        return json.dumps({name: value for name, value in asdict(self).items() if value not in ("", None, {}, 0)})

    @classmethod
    def read(cls, line: str) -> Event:
        """What `line` wrote."""
        given = json.loads(line)
        unknown = given.keys() - {each.name for each in fields(cls)}
        if unknown or given.get("kind") not in KINDS:
            raise ValueError(f"no event of a history: {line[:200]!r}")
        return cls(**{"at": 0.0, **given})


class Recorder:
    """Writes the events of one process. Threads may share it."""

    def __init__(self, path: Path, worker: str, began: float) -> None:
        """Write to this file; `began` is what `time.monotonic()` was when the run began."""
        self._file = path.open("a", buffering=1, encoding="utf-8")
        self._worker, self._began = worker, began
        self._lock = threading.Lock()

    def now(self) -> float:
        """Seconds since the run began."""
        return self.moment(time.monotonic())

    def moment(self, monotonic: float) -> float:
        """A moment of `time.monotonic()` in seconds since the run began."""
        return monotonic - self._began

    def __call__(
        self,
        kind: Kind,
        *,
        name: str = "",
        op: int = 0,
        token: int | None = None,
        at: float | None = None,
        **detail: Any,
    ) -> Event:
        """Record that something happened: now, unless it is said when."""
        return self.event(kind, name=name, op=op, token=token, at=at, detail=detail)

    def event(
        self, kind: Kind, *, name: str, op: int, token: int | None, at: float | None = None, detail: dict[str, Any]
    ) -> Event:
        """The same, for details that are called like something else here."""
        with self._lock:
            event = Event(self.now() if at is None else at, self._worker, kind, name, op, token, detail)
            self._file.write(event.line() + "\n")
        return event

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def merged(paths: Iterable[Path]) -> list[Event]:
    """The events of all processes in the order in which they happened."""
    return sorted((event for path in paths for event in _events(path)), key=lambda event: event.at)


def _events(path: Path) -> Iterator[Event]:
    lines = path.read_text(encoding="utf-8").split("\n")
    # Whoever was killed while writing left half a line, as the last one.
    for number, line in enumerate(lines):
        if line:
            try:
                yield Event.read(line)
            except ValueError:
                if number < len(lines) - 1:
                    raise
