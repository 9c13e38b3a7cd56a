"""What went wrong on the way to Consul, or there: from HTTP's codes and Consul's words to our errors."""

from __future__ import annotations

import os
from typing import Final

from leasehold.errors import EngineError, EngineUnavailable, OutcomeUnknown, quoted


class SessionGone(EngineError):
    """Consul does not know the session that a key was to hang on; nothing was carried out."""


class Denied(EngineError):
    """Consul refuses the request for a reason that does not go away by itself; nothing was carried out."""


PERMISSION: Final = "Permission denied"
_NEEDED: Final = 'its token needs: key_prefix "leasehold/" { policy = "write" } session_prefix "" { policy = "write" }'
_NOT_CARRIED_OUT: Final = {
    "No cluster leader": "it has no leader; a majority of its servers must be up and connected",
    "No known Consul servers": "this agent knows no server; has it joined the cluster?",
    "not the leader": "its leader has just changed",
    "No path to datacenter": "its datacenter cannot be reached from here",
    "rate limit": "it is asked more often than its limits allow",
    "429": "it is asked too often, or has too many connections",
}
"""What Consul says, in words or by its code, when a request was not carried out, and what that means."""
_REFUSALS: Final = {
    "ACL not found": "does not know the token of the URL; write consul://host:port/?token=…",
    PERMISSION: f"denies permission; {_NEEDED}",
    "403": f"denies permission; {_NEEDED}",
    "Invalid Session TTL": "allows no session of this TTL; give its session_ttl_min as ?least_ttl=…",
}
"""The same, for what does not change by itself."""


def unreachable(address: str, why: BaseException | str) -> EngineUnavailable:
    """Our error for an agent that could not be reached at all: nothing was sent."""
    reason = _reason(why) if isinstance(why, BaseException) else why
    return EngineUnavailable(f"{address} cannot be reached: {reason}; is the agent running, and the address right?")


def _reason(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    certificate = getattr(error, "verify_message", None)
    if certificate:
        return f"its certificate is not accepted ({certificate}); give the authority's file as ca=…"
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0 and not hasattr(error, "reason"):
        return os.strerror(error.errno)
    return getattr(error, "strerror", None) or type(error).__name__


def unanswered(address: str, *, changes: bool, broke: bool) -> EngineError:
    """Our error for a request that was sent and got no answer."""
    what = f"the connection to {address} broke" if broke else f"{address} did not answer in time"
    if not changes:  # a question leaves nothing behind
        return EngineUnavailable(what)
    return OutcomeUnknown(f"{what}; the request may or may not have been carried out")


def nonsense(address: str, what: str) -> EngineError:
    """Our error for an answer that Consul would not give."""
    return EngineError(f"{address} gave an answer that makes no sense: {what}")


def refused(address: str, status: int, body: bytes, *, changes: bool) -> EngineError:
    """Our error for an answer that is none, by its code and its words."""
    words = body[:300].decode("utf-8", "replace").strip()
    said = f"(it said {status}: {quoted(words)})"
    for pattern, meaning in _NOT_CARRIED_OUT.items():
        if pattern in words or pattern == str(status):
            return EngineUnavailable(f"{address} took nothing on: {meaning} {said}")
    for pattern, meaning in _REFUSALS.items():
        if pattern in words or pattern == str(status):
            return Denied(f"{address} {meaning} {said}")
    if status >= 500 and changes:
        return OutcomeUnknown(f"{address} failed; the request may or may not have been carried out {said}")
    return (EngineUnavailable if status >= 500 else Denied)(f"{address} answered with an error {said}")
