"""What a Redis server may say: replies, error replies, and which of our errors each of them is."""

from __future__ import annotations

import os
import re
from typing import Any, Final

import hiredis

from leasehold.errors import EngineError, EngineUnavailable, OutcomeUnknown, quoted

Push: Final = hiredis.PushNotification
MISSING: Final = object()
"""What a reader says while a reply is not complete."""
LARGEST_REPLY: Final = 64 * 2**20


class ErrorReply(Exception):
    """An error that the server answered with. It is a value here: the operation decides what it means."""

    @property
    def words(self) -> str:
        """What the server said."""
        return str(self.args[0]) if self.args else ""

    @property
    def code(self) -> str:
        """Its first word. Errors inside a script do not always bring theirs to the front."""
        inner = re.search(r"^ERR Error running script.*: -([A-Z]+) ", self.words)
        if inner:
            return inner[1]
        if re.match(r"ERR (The user executing the script can't|ACL failure in script)", self.words):
            return "NOPERM"
        return self.words.partition(" ")[0]


class Redirected(EngineError):
    """Another node of the cluster serves this lock, or will: nothing was carried out. A cluster's client goes there."""

    to = ""
    """Host and port as the node wrote them; the host may be missing."""
    once = False
    """Whether only this request is to go there (ASK), since the slot has not moved yet."""


def new_reader() -> hiredis.Reader:
    """A parser for one connection; every reply stays bytes."""
    return hiredis.Reader(replyError=ErrorReply, notEnoughData=MISSING)


def bulk(value: bytes) -> bytes:
    """One argument of a command, in the protocol's form."""
    return b"$%d\r\n%b\r\n" % (len(value), value)


def command(*parts: str | bytes | int) -> bytes:
    """A whole command, in the protocol's form."""
    packed: bytes = hiredis.pack_command(parts)  # type: ignore[arg-type]
    return packed


_NOT_CARRIED_OUT: Final = {
    "LOADING": "it is still loading its data and will be ready soon",
    "READONLY": "it is a replica; leases live on the primary: connect to that, or through Sentinel",
    "MASTERDOWN": "it is a replica that lost its primary",
    "CLUSTERDOWN": "its cluster is down; look at CLUSTER INFO",
    "TRYAGAIN": "its cluster is moving this lock's keys",
    "BUSY": "it is busy with a script of somebody else; SCRIPT KILL ends that",
    "NOREPLICAS": "it has fewer replicas than min-replicas-to-write asks for",
    "MISCONF": "it cannot save its data to disk and refuses writes; look at its log",
    "OOM": "it has no memory left; raise maxmemory or make room",
    "NOAUTH": "it wants a password: redis://user:password@host",
    "WRONGPASS": "it does not accept this user and password",
    "DENIED": "it is in protected mode and lets only its own machine in; set a password there, or bind it",
}
"""Error codes that say: nothing was written."""

NEEDED_RIGHTS: Final = "+@read +@write +@scripting +@pubsub +@connection +time +info ~lh:* &lh:*"
"""What a user must be allowed, in the words of ACL SETUSER."""

_REFUSED: Final = {
    "NOPERM": f"this user lacks a permission; ACL SETUSER <name> {NEEDED_RIGHTS}",
    "MOVED": "this lock's keys live on another node of the cluster; for all of it write redis+cluster://host:port",
    "ASK": "this lock's keys are being moved to another node of the cluster",
    "CROSSSLOT": "its keys are not in one slot; is there a proxy in between?",
    "WRONGTYPE": "a key that starts with lh: holds something else; use another database or namespace",
    "LEASEHOLD": "a key that starts with lh: holds something else, or its numbers have run out",
}


def error_from(reply: ErrorReply, address: str) -> EngineError:
    """Our error for the server's, with its own words."""
    code, words = reply.code, quoted(reply.words)
    if code in _NOT_CARRIED_OUT:
        return EngineUnavailable(f"{address} refused the request: {_NOT_CARRIED_OUT[code]} (it said {words})")
    if code in _REFUSED:
        refused = Redirected if code in {"MOVED", "ASK"} else EngineError
        error = refused(f"{address} refused the request: {_REFUSED[code]} (it said {words})")
        if isinstance(error, Redirected):
            error.to, error.once = reply.words.rpartition(" ")[2], code == "ASK"
        return error
    return EngineError(f"{address} answered with an error: {words}")


def error_at_entry(reply: ErrorReply, address: str) -> EngineError:
    """Our error for one that came before we were let in. An old server repeats the password, so its words stay here."""
    code = reply.code
    if code in {"ERR", "NOPROTO"}:
        return EngineError(
            f"{address} does not speak RESP3, or knows no such database; Redis 6.2 or newer, or any Valkey, is needed, "
            "with no proxy in between that knows less"
        )
    if code in _NOT_CARRIED_OUT:
        return EngineUnavailable(f"{address} does not let us in: {_NOT_CARRIED_OUT[code]}")
    if code in _REFUSED:
        return EngineError(f"{address} does not let us in: {_REFUSED[code]}")
    return EngineError(f"{address} does not let us in")


def nonsense(reply: Any, address: str) -> EngineError:
    """Our error for a reply that no such server gives."""
    return EngineError(f"{address} gave an answer that makes no sense: {quoted(reply)}")


def unanswered(address: str) -> OutcomeUnknown:
    """Our error for a request that was sent and not answered in time."""
    return OutcomeUnknown(f"{address} did not answer in time; the request may or may not have been carried out")


def cut_off(address: str) -> OutcomeUnknown:
    """Our error for a connection that ended while a request was under way."""
    return OutcomeUnknown(f"the connection to {address} broke; the request may or may not have been carried out")


def unreachable(address: str, why: BaseException | str) -> EngineUnavailable:
    """Our error for a server that could not be reached at all: nothing was sent."""
    reason = _reason(why) if isinstance(why, BaseException) else why
    return EngineUnavailable(f"{address} cannot be reached: {reason}; is the server running, and the address right?")


def _reason(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    certificate = getattr(error, "verify_message", None)
    if certificate:
        return f"its certificate is not accepted ({certificate}); give the authority's file as ca=…"
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0 and not hasattr(error, "reason"):
        return os.strerror(error.errno)  # asyncio's own text names the address once more
    return getattr(error, "strerror", None) or type(error).__name__


def no_protocol(address: str, error: Exception) -> EngineError:
    """Our error for bytes that are no reply; hostile ones make the parser raise TypeError and MemoryError, too."""
    return EngineError(f"{address} does not speak the Redis protocol ({type(error).__name__})")


def parts_of_wake_up(message: bytes) -> tuple[str, bytes]:
    """Who is woken, and the token that it was handed, if any."""
    holder, _, token = message.partition(b" ")
    return holder.decode("ascii", "replace"), token


def is_confirmation(push: Any) -> bool:
    """Whether a push is the answer to SUBSCRIBE or SSUBSCRIBE rather than a message."""
    return bool(push[:1] == [b"subscribe"] or push[:1] == [b"ssubscribe"])
