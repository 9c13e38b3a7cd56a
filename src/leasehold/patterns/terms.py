"""A leader's time in office: its token, whether it is to end, and the hard way out when it does not."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from leasehold import watching
from leasehold.errors import Misuse, quoted
from leasehold.keeping import log
from leasehold.names import check_name, check_wait

if TYPE_CHECKING:
    from leasehold.lease import LeaseView

EXIT_CODE: Final = 77
"""With which a process ends whose work has not stopped when its lease ran out."""
LOOK_EVERY: Final = 0.05
"""How often a leader looks for a reason to stop, in seconds; asking costs nothing."""


class Leader(NamedTuple):
    """Who leads, as others see it. It may have changed since."""

    token: int
    holder: str
    """Who that is, for people: ``label@host:pid``."""


class AnyTerm:
    """What the terms of both worlds have in common."""

    __slots__ = ("_favourite", "_lease", "_listeners", "_resigning", "_stop", "_told_at", "why")

    def __init__(self, lease: LeaseView) -> None:
        self._lease = lease
        self._stop = threading.Event()
        self._resigning = threading.RLock()  # a handler of signals may resign in the middle of it
        self._listeners: list[Callable[[Any], object]] = []
        self._favourite: str | None = None
        self._told_at: float | None = None
        self.why: str | None = None
        """Why it is to stop; None as long as it is not."""
        watching.elected(lease.name, lease.token)

    @property
    def token(self) -> int:
        """The fencing token: greater than that of every earlier term."""
        return self._lease.token

    @property
    def remaining(self) -> float:
        """Seconds until the lease runs out unless it is renewed."""
        return self._lease.remaining

    @property
    def stopping(self) -> bool:
        """Whether the work is to end, and soon."""
        return self._stop.is_set()

    def check(self) -> None:
        """Raise `LeaseLost` unless this is still the leader, as far as its own clock can tell."""
        self._lease.check()

    def resign(self, why: str = "it resigned", *, in_favour_of: str | None = None) -> None:
        """Ask the work to end. The lease is given back when it has: to the candidate of that name, if it stands."""
        favourite = None if in_favour_of is None else check_name(in_favour_of, what="in_favour_of")
        with self._resigning:  # any thread may find a reason
            if self._stop.is_set():
                return
            self._favourite = favourite
            self.why, self._told_at = why, time.monotonic()
            self._stop.set()
            listeners, self._listeners = self._listeners, []
        for listener in listeners:
            self._tell(listener)
        watching.resigned(self._lease.name, self.token, why)

    def on_stopping(self, callback: Callable[[Self], object]) -> None:
        """Have `callback` called with this term, once and in its own thread, when its work is to end, or has ended.

        At once if it is to end already. ``term.why`` says why.
        """
        if not callable(callback):
            raise Misuse(f"on_stopping takes a function that is called with the term, not {quoted(callback)}")
        with self._resigning:
            if not self._stop.is_set():
                self._listeners.append(callback)
                return
        self._tell(callback)

    def _tell(self, callback: Callable[[Any], object]) -> None:
        def tell() -> None:
            try:
                callback(self)
            except Exception:  # noqa: BLE001 -- it is logged, and has nothing to do with the term
                log().exception("%r: a callback of on_stopping failed", self)

        threading.Thread(target=tell, name="leasehold-on-stopping", daemon=True).start()

    def __repr__(self) -> str:
        state = f"stopping: {self.why}" if self.stopping else f"{self.remaining:.3g} s left"
        return f"<{type(self).__name__} {quoted(self._lease.name)} token={self.token} {state}>"


class Term(AnyTerm):
    """One leader's time in office. Its token fences what the leader writes."""

    __slots__ = ()

    def wait(self, seconds: float) -> bool:
        """Pause the work, but not beyond the moment when it is to end; returns whether it is."""
        return self._stop.wait(check_wait(seconds, what="seconds"))


class AsyncTerm(AnyTerm):
    """One leader's time in office, in async code; see `Term`."""

    __slots__ = ()

    async def wait(self, seconds: float) -> bool:
        """Pause the work, but not beyond the moment when it is to end; returns whether it is."""
        import asyncio

        ends = time.monotonic() + check_wait(seconds, what="seconds")
        while not self.stopping and (left := ends - time.monotonic()) > 0:  # noqa: ASYNC110 - any thread may resign
            await asyncio.sleep(min(LOOK_EVERY, left))
        return self.stopping


def end_process(term: AnyTerm) -> None:
    """The hard way out: work that goes on without its lease is worse than no work. Nothing is cleaned up."""
    log().critical("%r: its work has not stopped, so this process ends now", term)
    os._exit(EXIT_CODE)
