"""What went wrong on the way to ZooKeeper, or there: from its numbers to our errors."""

from __future__ import annotations

from typing import Final

from leasehold.errors import EngineError, EngineUnavailable, OutcomeUnknown, quoted


class SessionOver(EngineError):
    """The server has ended the session, and with it all that hung on it; nothing was carried out."""


class NotSent(EngineUnavailable):
    """The connection was not usable any more; nothing was sent, so another one may be tried."""


SESSION_EXPIRED: Final = -112
SESSION_MOVED: Final = -118
_REFUSALS: Final[dict[int, tuple[type[EngineError], str]]] = {
    -6: (EngineError, "does not know this kind of request; ZooKeeper 3.5 or later is needed"),
    -7: (OutcomeUnknown, "gave up on a request that took too long there"),
    -102: (
        EngineError,
        "denies permission; log in as a user who may read, write, create and delete there: zookeeper://user:password@host",
    ),
    -115: (EngineError, "does not accept the log-in"),
    -124: (EngineError, "does not accept the log-in by SASL, without which it lets nobody in"),
    SESSION_EXPIRED: (SessionOver, "has ended the session"),
    SESSION_MOVED: (EngineUnavailable, "was asked over a connection that another one had replaced"),
    -119: (EngineUnavailable, "takes no writes: it is cut off from the majority of the ensemble"),
    -125: (EngineError, "refuses: the quota of its path is used up; raise it with setquota"),
    -127: (EngineUnavailable, "is overloaded and took nothing on"),
}
"""What ZooKeeper says, and what that means."""


def refusal(code: int, address: str, asking: str) -> EngineError:
    """The error for a number that a server sent."""
    kind, words = _REFUSALS.get(code, (EngineError, f"answered with error {code}"))
    return kind(f"ZooKeeper at {address} {words} ({asking})")


def unreachable(address: str, why: OSError | str) -> EngineUnavailable:
    """Nothing was sent."""
    if isinstance(why, TimeoutError):
        words = "no answer in time"
    elif isinstance(why, OSError):
        words = (why.strerror or type(why).__name__).lower()
    else:
        words = why
    return EngineUnavailable(
        f"ZooKeeper at {address} cannot be reached: {words}; check that it runs, that a majority of its ensemble does, "
        "and that it is reachable from here"
    )


def unanswered(address: str, why: str, *, changes: bool) -> EngineError:
    """Something was sent, and no answer came. A mere question leaves nothing behind."""
    return (OutcomeUnknown if changes else EngineUnavailable)(f"ZooKeeper at {address} did not answer: {why}")


def nonsense(address: str, what: object) -> EngineError:
    """An answer that cannot be read."""
    return EngineError(f"ZooKeeper at {address} sent an answer that cannot be read: {quoted(str(what))}")
