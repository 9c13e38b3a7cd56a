"""What both worlds share on the way to several servers: who they are, and how a connection to one of them begins."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from leasehold.core.quorum import Outcome, Request
from leasehold.errors import EngineError
from leasehold.wires.redis_replies import ErrorReply, bulk, command, error_at_entry, nonsense
from leasehold.wires.redis_setup import check_entry, entry_request
from leasehold.wires.redis_target import Target
from leasehold.wires.urls import HiddenBytes

SECTIONS = ("server", "persistence", "replication")
GRACE = 0.03
"""Once a majority has answered without a decision, how long the others are waited for."""
AFTER_FIRST_WAKE = 0.01
"""A release reaches the servers at about the same time: how long after its first news the name is asked for."""


class Quorum(NamedTuple):
    """The servers, and what a connection to each of them has to know."""

    targets: tuple[Target, ...]
    scripts: tuple[str, ...]
    quarantine: int
    """For how long a server that lost its data is kept out, in microseconds."""
    label: str
    runs: dict[str, int]
    """Which server each run id belongs to, as far as seen: two addresses of one server would be no majority."""


class Entered(NamedTuple):
    """What a connection adds to each of its requests."""

    suffix: bytes


def entry(quorum: Quorum, server: int, channel: str) -> tuple[bytes, int]:
    """What to send first, and how many replies it has."""
    request, count = entry_request(quorum.targets[server], channel, quorum.label)
    more = [command("INFO", section) for section in SECTIONS]
    more.append(command("CONFIG", "GET", "appendfsync"))
    more += [command("SCRIPT", "LOAD", text) for text in quorum.scripts]
    return HiddenBytes(request + b"".join(more)), count + len(more)


def entered(quorum: Quorum, server: int, channel: str, replies: Sequence[Any]) -> Entered:
    """Whether the server may take part, from its replies to the entry."""
    target = quorum.targets[server]
    address = target.address
    more = len(SECTIONS) + 1 + len(quorum.scripts)
    hello = check_entry(replies[:-more], target)
    if hello.is_cluster:
        raise EngineError(
            f"{address} is a node of a cluster; a quorum is made of servers that know nothing of each other"
        )
    info, fsync, scripts = (
        replies[-more:][: len(SECTIONS)],
        replies[-len(quorum.scripts) - 1],
        replies[-len(quorum.scripts) :],
    )
    for reply in (*info, *scripts):
        if isinstance(reply, ErrorReply):
            raise error_at_entry(reply, address)
    run = _field(info[0], "run_id")
    if run is None:
        raise nonsense(info[0], address)
    if quorum.runs.setdefault(run, server) != server:
        other = quorum.targets[quorum.runs[run]].address
        raise EngineError(f"{address} and {other} are the same server; each of a quorum must stand alone")
    durable = 1 if _keeps_every_write(info[1], info[2], fsync) else 0
    arguments = (f"{run} {durable}", f"{quorum.quarantine} {channel}")
    return Entered(b"".join([bulk(one.encode()) for one in arguments]))


def _keeps_every_write(persistence: Any, replication: Any, fsync: Any) -> bool:
    """Whether a restart of this server loses nothing, so that it can go on where it was.

    A server with a replica may be replaced by it, and one that was a replica may lack what its primary had.
    """
    alone = _field(replication, "connected_slaves") == "0" and not (_field(replication, "master_replid2") or "").strip(
        "0"
    )
    said = list(fsync.values()) if isinstance(fsync, dict) else fsync[1:] if isinstance(fsync, list) else []
    return alone and said == [b"always"] and _field(persistence, "aof_enabled") == "1"


def _field(info: Any, name: str) -> str | None:
    text = info.decode("utf-8", "replace") if isinstance(info, bytes) else str(info)
    match = re.search(rf"^{name}:([^\r\n]*)", text, re.MULTILINE)
    return match[1] if match and re.fullmatch(r"[!-~]{1,64}", match[1]) else None


class Message(NamedTuple):
    """One request or several, to be sent to some servers at once."""

    parts: tuple[bytes, ...]
    decode: Callable[[int, list[Any]], Any]
    """What the replies of a server mean."""
    plain: bool = False
    """Sent as it is, without what the connection adds."""


def is_a_farewell(reply: Any) -> bool:
    """Whether a reply says that this connection is of no use: scripts come with a new one, and so may a primary."""
    return type(reply) is ErrorReply and reply.code in {"NOSCRIPT", "READONLY"}


class Codec(Protocol):
    """How requests and replies look to a server."""

    def encode(self, request: Request) -> bytes:
        """A request, up to what its connection adds."""
        ...

    def decode(self, request: Request, reply: Any, server: int) -> Outcome:
        """What a server's reply means."""
        ...


def message_for(codec: Codec, request: Request) -> Message:
    """One request as a message."""
    return Message((codec.encode(request),), lambda server, replies: codec.decode(request, replies[0], server))


def message_for_all(codec: Codec, requests: Sequence[Request]) -> Message:
    """Several requests as one message; what they mean is a list."""

    def decode(server: int, replies: list[Any]) -> list[Outcome]:
        return [codec.decode(request, one, server) for request, one in zip(requests, replies, strict=True)]

    return Message(tuple([codec.encode(request) for request in requests]), decode)


def plain_message(part: bytes, *, plain: bool) -> Message:
    """A request in the protocol's own form; its reply stays as it came."""
    return Message((part,), lambda _server, replies: replies[0], plain)
