"""Structured logs: one event a line, with stable field names, through the standard logger ``leasehold``.

>>> import logging
>>> record = logging.makeLogRecord({"msg": "hello", "created": 0, "name": "leasehold", "levelname": "INFO"})
>>> print(JsonFormatter().format(record))
{"time": "1970-01-01T00:00:00.000Z", "level": "info", "logger": "leasehold", "event": "message", "message": "hello"}
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, Self, TextIO

from leasehold.errors import quoted
from leasehold.events import (
    Broken,
    Conflicting,
    Crowded,
    Elected,
    Event,
    Failed,
    GaveUp,
    Granted,
    Keyed,
    Lost,
    Missed,
    Refused,
    Released,
    Renewed,
    Resigned,
    Tried,
    fields,
)
from leasehold.watching import Watch, watch

LEVELS: Final[dict[type[Event], int]] = {
    Renewed: logging.DEBUG,
    Tried: logging.DEBUG,
    Granted: logging.INFO,
    Released: logging.INFO,
    GaveUp: logging.INFO,
    Keyed: logging.INFO,
    Elected: logging.INFO,
    Resigned: logging.INFO,
    Failed: logging.WARNING,
    Lost: logging.WARNING,
    Refused: logging.WARNING,
    Broken: logging.WARNING,
    Crowded: logging.WARNING,
    Conflicting: logging.WARNING,
    Missed: logging.WARNING,
}
"""How loud each event is."""
_SAID_ANYWAY: Final = (Broken, Crowded, Conflicting, Missed)
"""What the library logs by itself, with the same fields, whether anybody watches or not."""


ALIKE_A_SECOND: Final = 10
"""An engine that is away fails all leases of a process at each renewal: of errors alike, only so many are told."""


class _Alike:
    """How many errors of one kind there were in the present second."""

    __slots__ = ("left_out", "since", "told")

    def __init__(self) -> None:
        self.since, self.told, self.left_out = float("-inf"), 0, 0

    def count(self, now: float) -> int | None:
        """One more: None when it is left out, else how many were left out before it."""
        left_out = 0
        if now - self.since >= 1.0:
            left_out, self.since, self.told, self.left_out = self.left_out, now, 0, 0
        if self.told >= ALIKE_A_SECOND:
            self.left_out += 1
            return None
        self.told += 1
        return left_out


class LogWatcher:
    """Writes each event to the logger ``leasehold``, for ``leasehold.watch``.

    Of errors that are alike (engine, address, what was done, class of the error) ten are written each second; the
    next one says in its field ``left_out`` how many were not.
    """

    def __init__(self, logger: logging.Logger | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger or logging.getLogger("leasehold")
        self._clock = clock
        self._errors: dict[tuple[str, str, str, str], _Alike] = {}

    def __call__(self, event: Event) -> None:
        """Log an event, unless its level is switched off."""
        level = LEVELS[type(event)]
        if isinstance(event, _SAID_ANYWAY) or not self._logger.isEnabledFor(level):
            return
        flat = fields(event)
        if isinstance(event, Failed):
            kind = (event.about.engine, event.about.address, event.doing, event.error)
            left_out = self._errors.setdefault(kind, _Alike()).count(self._clock())
            if left_out is None:
                return
            if left_out:
                flat["left_out"] = left_out
        told = " ".join(f"{key}={_shown(value)}" for key, value in flat.items() if key != "event")
        self._logger.log(level, "%s", f"{flat['event']} {told}", extra={"leasehold": flat})


class JsonFormatter(logging.Formatter):
    """One JSON object a line, in plain ASCII: time, level, logger, event, the event's fields, message."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        event: dict[str, object] = getattr(record, "leasehold", None) or {"event": "message"}
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")[:-6] + "Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            **event,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line)


class JsonLogs:
    """A handler and a watcher at work; it ends with a ``with`` block, or when told to."""

    def __init__(self, stream: TextIO | None, level: int) -> None:
        self._logger = logging.getLogger("leasehold")
        self._handler = logging.StreamHandler(stream)
        self._handler.setFormatter(JsonFormatter())
        self._before = self._logger.level, self._logger.propagate
        self._logger.addHandler(self._handler)
        self._logger.setLevel(level)
        self._logger.propagate = False
        self._watch: Watch = watch(LogWatcher(self._logger))

    def stop(self) -> None:
        """Put the logger back as it was."""
        self._watch.stop()
        self._logger.removeHandler(self._handler)
        level, self._logger.propagate = self._before
        self._logger.setLevel(level)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_ended: object) -> None:
        self.stop()


def json_logs(stream: TextIO | None = None, *, level: int = logging.INFO) -> JsonLogs:
    """Write all that Leasehold logs to `stream` (stderr by default) as JSON, one event a line."""
    return JsonLogs(stream, level)


def _shown(value: object) -> str:
    return quoted(value) if isinstance(value, str) else f"{value:.6g}" if isinstance(value, float) else str(value)
