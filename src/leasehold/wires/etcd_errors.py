"""What went wrong on the way to etcd, or there: from gRPC's codes and etcd's words to our errors."""

from __future__ import annotations

import re
from typing import Final

from leasehold.errors import EngineError, EngineUnavailable, OutcomeUnknown, quoted


class LeaseGone(EngineError):
    """The lease that a key was to hang on does not exist; nothing was carried out."""


class LeaseExists(EngineError):
    """A lease with this id exists already."""


class LoggedOut(EngineError):
    """The request was refused for want of a valid log-in; nothing was carried out."""


_REFUSALS: Final[tuple[tuple[str, type[EngineError], str], ...]] = (
    ("lease not found", LeaseGone, "does not know the session any more"),
    ("lease already exists", LeaseExists, "has this session already"),
    ("invalid auth token", LoggedOut, "does not accept the log-in; write etcd://user:password@host:port"),
    ("auth store is old", LoggedOut, "wants a new log-in, since its users have changed"),
    (
        "permission denied",
        EngineError,
        "denies permission; its user needs: etcdctl role grant-permission ROLE readwrite --prefix=true leasehold/",
    ),
    ("user name is empty", EngineError, "wants a log-in; write etcd://user:password@host:port"),
    ("authentication failed", EngineError, "does not accept the user or the password of the URL"),
    (
        "authentication is not enabled",
        EngineError,
        "has no users; leave user and password out of the URL, or enable authentication there",
    ),
    ("space exceeded", EngineError, "is full and takes no writes; compact, defragment, then: etcdctl alarm disarm"),
    ("no leader", EngineUnavailable, "has no leader: a majority of the cluster must be up and connected"),
    ("too many requests", EngineUnavailable, "is overloaded and took nothing on"),
)
"""What etcd says, and what that means. In none of these cases was anything carried out."""

_NOT_SENT: Final = ("failed to connect", "errors resolving", "DNS resolution failed")
_REFUSING: Final = frozenset({"UNIMPLEMENTED", "INVALID_ARGUMENT", "OUT_OF_RANGE", "FAILED_PRECONDITION", "NOT_FOUND"})


def failure_from(code: str, details: str, where: str) -> EngineError:
    """What to raise for a failed call, given gRPC's code and the words that came with it."""
    if details.startswith(_NOT_SENT):
        reason = _reason(details)
        advice = "" if "certificate" in reason else "; is the server running, and the address right?"
        return EngineUnavailable(f"{where} cannot be reached: {reason}{advice}")
    for words, kind, meaning in _REFUSALS:
        if words in details:
            return kind(f"{where} {meaning}")
    if code in _REFUSING:
        return EngineError(f"{where} refuses the request; is it etcd 3.4 or newer? It says {quoted(details)}")
    if code == "DEADLINE_EXCEEDED":
        return OutcomeUnknown(f"{where} did not answer in time")
    return OutcomeUnknown(f"{where} did not answer: {_reason(details)}")


def _reason(details: str) -> str:
    """The telling part of gRPC's long sentences."""
    if "CERTIFICATE_VERIFY_FAILED" in details:
        return "its certificate is not signed by an authority that we trust; name that with ca=FILE in the URL"
    if "ostname" in details and "erification" in details:
        return "its certificate is for another host name"
    last = details.partition("last error: ")[2] or details
    return quoted(re.sub(r"^(?:[A-Z_]+: |ipv[46]:\S+: )*", "", last))
