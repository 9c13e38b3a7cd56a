"""What a caller can ask of a lock, checked once, before anything is sent."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from typing import Literal, NamedTuple, TypedDict

from leasehold.core.engine import Capability, Facts, Mode, Purpose, Want
from leasehold.errors import LeaseLost, Misuse, NotSupported, quoted
from leasehold.names import check_name, check_ttl, check_wait

DEFAULT_TTL = 30.0
DEFAULT_WAIT = 10.0
DEFAULT_REQUEST_TIMEOUT = 2.0
MOST_WAITERS = 10_000

OnLost = Callable[[LeaseLost], object] | None
AsyncOnLost = Callable[[LeaseLost], object] | Literal["cancel"] | None


class CommonTerms(TypedDict, total=False):
    """What can be said of any lock; `Terms` has the defaults. Durations are in seconds."""

    ttl: float
    """How long the lease lasts without a renewal."""
    wait: float
    """How long `acquire` and ``with`` are patient; 0: try once."""
    renew: bool
    """Whether a keeper renews it in the background, at a third of its TTL."""
    longest_hold: float | None
    """End it after so long, renewed or not."""
    purpose: Purpose
    """What the lock is for: an efficiency lock saves work, a correctness lock protects state."""


class SeveralTerms(CommonTerms, total=False):
    """What can be said of several names at once."""

    on_lost: OnLost


class AsyncSeveralTerms(CommonTerms, total=False):
    """What can be said of several names at once, in async code."""

    on_lost: AsyncOnLost


class LockTerms(SeveralTerms, total=False):
    """What can be said of one lock."""

    lock_delay: float
    """For how long the name stays closed after a lease on it was lost rather than released."""


class AsyncLockTerms(AsyncSeveralTerms, total=False):
    """What can be said of one lock, in async code."""

    lock_delay: float


class Terms(NamedTuple):
    """All settings of a lock, with their defaults."""

    name: str
    ttl: float = DEFAULT_TTL
    wait: float = DEFAULT_WAIT
    renew: bool = True
    longest_hold: float | None = None
    lock_delay: float = 0.0
    purpose: Purpose = "efficiency"
    mode: Mode = "exclusive"
    limit: int = 1
    reentrant: bool = False
    on_lost: AsyncOnLost = None

    def checked(self, facts: Facts) -> Terms:
        """Return these terms, or raise a `Misuse` that names the argument and says what is allowed."""
        name, ttl, wait, _, longest_hold, lock_delay, _, mode, *_ = self
        check_name(name)
        check_ttl(ttl, least=facts.least_ttl)
        check_wait(wait)
        if longest_hold is not None:
            check_ttl(longest_hold, what="longest_hold")
        if type(lock_delay) not in (int, float) or lock_delay != 0:
            check_ttl(lock_delay, what="lock_delay")
        self._check_choices()
        if lock_delay or mode != "exclusive":
            self._check_capabilities(facts)
        return self

    def _check_choices(self) -> None:
        _, _, _, renew, _, _, purpose, mode, limit, reentrant, on_lost = self
        if purpose not in ("efficiency", "correctness"):
            raise Misuse(f"purpose is 'efficiency' or 'correctness', not {quoted(purpose)}")
        if type(renew) is not bool:
            raise Misuse(f"renew is True or False, not {quoted(renew)}")
        if type(reentrant) is not bool:
            raise Misuse(f"reentrant is True or False, not {quoted(reentrant)}")
        if type(limit) is not int or not 1 <= limit <= 1_000_000:
            raise Misuse(f"the number of permits is an int from 1 to 1000000, not {quoted(limit)}")
        if not (on_lost is None or callable(on_lost) or on_lost == "cancel"):
            raise Misuse(f"on_lost is a callable (or 'cancel' in async code), not {quoted(on_lost)}")
        if reentrant and mode != "exclusive":
            raise Misuse("only an exclusive lock can be reentrant")

    def _check_capabilities(self, facts: Facts) -> None:
        needed = {"shared": Capability.SHARED, "permit": Capability.PERMITS}.get(self.mode)
        if self.lock_delay and Capability.LOCK_DELAY not in facts.capabilities:
            needed = Capability.LOCK_DELAY
        if needed is not None and needed not in facts.capabilities:
            raise NotSupported(f"the {facts.engine} engine cannot do this: {needed.value}")

    def want(self, holder: str, about: str) -> Want:
        """One attempt under these terms."""
        return Want(self.name, holder, self.ttl, self.mode, self.limit, self.lock_delay, about)


def check_request_timeout(seconds: object) -> float:
    """How long one request may take when the caller's wait does not say."""
    if type(seconds) not in (int, float) or not math.isfinite(seconds) or not 0.01 <= seconds <= 60:  # type: ignore[arg-type,operator]
        raise Misuse(f"request_timeout is a number of seconds from 0.01 to 60, not {quoted(seconds)}")
    return float(seconds)  # type: ignore[arg-type]


def check_label(label: object) -> str:
    """Who asks, for people; the program's name when none is given."""
    if label is None:
        path = sys.argv[0] if sys.argv else ""
        program = "".join(c for c in path.rpartition(os.sep)[2] if c.isalnum() or c in "._-")[:32]
        return program or "python"
    text = check_name(label, what="label")
    if len(text.encode()) > 64 or "|" in text:
        raise Misuse(f"label {quoted(text)} must have at most 64 bytes and no '|'")
    return text


def host_name() -> str:
    """This host, as shown to people in ``label@host:pid``."""
    import socket

    return "".join(c for c in socket.gethostname() if c.isalnum() or c in ".-")[:64] or "host"
