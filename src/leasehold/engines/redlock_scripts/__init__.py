"""The scripts of a quorum's server, and our requests in the protocol's form.

A request lacks its last two arguments: they belong to the connection that it goes by, which adds them.
"""

from __future__ import annotations

import hashlib
import math
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from leasehold.core.quorum import (
    LAST_ROUND,
    AskConfirm,
    AskGrant,
    AskRelease,
    Barred,
    Confirmed,
    Granted,
    NotYours,
    Occupied,
    Reply,
    Request,
    Returned,
)
from leasehold.engines.redis_keys import keys_of, name_in, pattern_of
from leasehold.engines.redis_scripts import argument
from leasehold.errors import EngineError
from leasehold.wires.redis_replies import ErrorReply, error_from, nonsense

PREFIX: Final = "lh:q:"
MARKER: Final = PREFIX + "marker"
KEYS: Final = 5
FROM_CONNECTION: Final = 2
HIGHEST_TOKEN: Final = 2**53 - 1


class Script(NamedTuple):
    """One operation."""

    text: str
    start: str
    """A request up to its keys, in the protocol's form."""


def _script(*parts: str, arguments: int, needs_time: bool = False) -> Script:
    folder = Path(__file__).parent
    texts = [(folder / f"{part}.lua").read_text(encoding="utf-8") for part in parts]
    text = "\n".join([f"local needs_time = {str(needs_time).lower()}", *texts])
    digest = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    start = f"*{3 + KEYS + arguments + FROM_CONNECTION}\r\n"
    return Script(text, start + argument("EVALSHA") + argument(digest) + argument(str(KEYS)))


GRANT: Final = _script("begin", "grant", arguments=6, needs_time=True)
CONFIRM: Final = _script("begin", "confirm", arguments=3)
RELEASE: Final = _script("begin", "release", arguments=3)
STATUS: Final = _script("status", arguments=0)
INITIALISE: Final = _script("initialise", arguments=0)
TEXTS: Final = tuple(script.text for script in (GRANT, CONFIRM, RELEASE, STATUS, INITIALISE))


@lru_cache(maxsize=4096)
def _with_keys(script: Script, namespace: str, name: str) -> str:
    letters = (keys_of(namespace, name)[0][3:-1] + letter for letter in "lfqp")
    return script.start + "".join(argument(PREFIX + key) for key in letters) + argument(MARKER)


@lru_cache(maxsize=1024)
def _duration(ttl: float) -> str:
    return argument(str(math.ceil(ttl * 1000)))


_about = lru_cache(maxsize=1024)(argument)
_LAST: Final = argument(str(LAST_ROUND))
_YES, _NO, _FORCE = argument("1"), argument("0"), argument("force")


def _number(number: int) -> str:
    text = str(number)
    return f"${len(text)}\r\n{text}\r\n"


def request_for(request: Request, namespace: str) -> bytes:
    """A request in the protocol's form, up to what its connection adds."""
    if isinstance(request, AskGrant):
        return _grant_request(request, namespace).encode()
    if isinstance(request, AskRelease):
        rounds = _LAST if request.round == LAST_ROUND else _number(request.round)
        start = _with_keys(RELEASE, namespace, request.name)
        return f"{start}{argument(request.holder)}{rounds}{_YES if request.leave else _NO}".encode()
    start = _with_keys(CONFIRM, namespace, request.name)
    return f"{start}{argument(request.holder)}{_number(request.token)}{_duration(request.ttl)}".encode()


def _grant_request(ask: AskGrant, namespace: str) -> str:
    place = _FORCE
    if not ask.force:
        place = argument("" if ask.patience is None else f"{math.ceil(ask.patience * 1e6)} {ask.since}")
    start = f"{_with_keys(GRANT, namespace, ask.name)}{argument(ask.holder)}{_number(ask.round)}{_duration(ask.ttl)}"
    return f"{start}{_number(ask.floor)}{_about(ask.about)}{place}"


def status_request(name: str, namespace: str) -> bytes:
    """The request for all that a server keeps for a name."""
    return _with_keys(STATUS, namespace, name).encode()


def initialise_request() -> bytes:
    """The request for a server to take part at once."""
    return _with_keys(INITIALISE, "", "").encode()


def names_pattern(namespace: str) -> str:
    """The pattern that finds the lease of every name in a namespace."""
    return PREFIX + pattern_of(namespace)[3:]


def queues_pattern(namespace: str) -> str:
    """The pattern that finds the queue of every name in a namespace."""
    return names_pattern(namespace)[:-1] + "q"


def name_of(key: Any, namespace: str) -> str | None:
    """The name whose lease or queue this key is."""
    return name_in(b"lh:" + key[len(PREFIX) : -1] + b"l", namespace) if isinstance(key, bytes) else None


def reply_from(request: Request, reply: Any, address: str) -> Reply | EngineError:
    """What a server said. A grant names its holder and round, a confirmation its token: none is taken for another."""
    found: Reply | None = None
    if type(reply) is ErrorReply:
        return error_from(reply, address)
    if type(reply) is list and len(reply) == 2 and reply[0] == b"barred":
        found = _barred_reply(reply[1])
    elif isinstance(request, AskGrant):
        found = _granted(request, reply) if type(reply) is bytes else _occupied(reply)
    elif isinstance(request, AskConfirm):
        found = _confirm_reply(request, reply)
    elif type(reply) is int and 0 <= reply <= 1:
        found = Returned(reply == 1)
    return found if found is not None else nonsense(reply, address)


def _barred_reply(left: Any) -> Reply | None:
    return Barred(int(left) / 1e6) if type(left) is bytes and left.isdigit() else None


def _granted(request: AskGrant, reply: bytes) -> Reply | None:
    counter, _, rest = reply.partition(b" ")
    if not counter.isdigit() or rest != b"%b %d" % (request.holder.encode(), request.round):
        return None
    return Granted(int(counter)) if 0 < int(counter) <= HIGHEST_TOKEN else None


def _occupied(reply: Any) -> Reply | None:
    match reply:
        case [b"occupied", bytes(counter), int(left), bytes(token), bytes(about), int(rank)] if (
            counter.isdigit() and token.isdigit() and int(counter) <= HIGHEST_TOKEN and left >= 0 and rank >= 0
        ):
            return Occupied(int(counter), left / 1000, int(token), about.decode("utf-8", "replace"), rank)
    return None


def _confirm_reply(request: AskConfirm, reply: Any) -> Reply | None:
    if reply == b"%d" % request.token:
        return Confirmed(request.token)
    return NotYours() if type(reply) is int and reply == 0 else None
