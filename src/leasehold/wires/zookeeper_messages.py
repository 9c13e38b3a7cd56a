"""The few messages of ZooKeeper's protocol that are needed, written and read as bytes. Nothing here touches a socket.

Numbers are big-endian; a text or a buffer stands behind its length in four bytes; so does a whole message.

>>> request = create("/a", b"", OPEN, EPHEMERAL | SEQUENTIAL)
>>> request.kind, len(request.body)
(15, 41)
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

# What is asked for
_CREATE, _CREATE2, _DELETE, _EXISTS, _GET_DATA, _SET_DATA, _SYNC = 1, 15, 2, 3, 4, 5, 9
_PING, _GET_CHILDREN2, _CHECK, _MULTI, _CREATE_CONTAINER, _AUTH, _CLOSE = 11, 12, 13, 14, 19, 100, -11
_SASL = 102

# What a reply's number says that it is
EVENT: Final = -1
PONG: Final = -2
LET_IN: Final = -4

# What went wrong
OK: Final = 0
NO_NODE: Final = -101
BAD_VERSION: Final = -103
NODE_EXISTS: Final = -110
NOT_EMPTY: Final = -111

_ROLLED_BACK: Final = -2

EPHEMERAL: Final = 1
SEQUENTIAL: Final = 2
_CONTAINER: Final = 4
ANY_VERSION: Final = -1
_EVERYTHING_ALLOWED: Final = 31

_INT = struct.Struct(">i")
_HEAD = struct.Struct(">iii")
_REQUEST, _REPLY, _PART = struct.Struct(">ii"), struct.Struct(">iqi"), struct.Struct(">i?i")
_STAT = struct.Struct(">qqqqiiiqiiq")
_EVENT = struct.Struct(">ii")
_NO_PASSWORD: Final = bytes(16)


class Malformed(Exception):
    """Bytes that are no message."""


def _text(text: str) -> bytes:
    encoded = text.encode()
    return _INT.pack(len(encoded)) + encoded


def _buffer(content: bytes) -> bytes:
    return _INT.pack(len(content)) + content


def _permissions(scheme: str, who: str) -> bytes:
    """Everything is allowed to these, and nothing to others."""
    return _REQUEST.pack(1, _EVERYTHING_ALLOWED) + _text(scheme) + _text(who)


OPEN: Final = _permissions("world", "anyone")
CREATOR_ONLY: Final = _permissions("auth", "")
"""Whoever the connection is logged in as."""


class Request(NamedTuple):
    """One request, without its number."""

    kind: int
    body: bytes
    changes: bool = False
    """Whether it changes something: then not knowing its outcome matters."""
    by_leader: bool = False
    """Whether the answer proves that the leader was reached; other questions are answered by any server alone."""


class Stat(NamedTuple):
    """What ZooKeeper knows of a node."""

    created: int
    """The transaction that created it."""
    changed: int
    """The transaction that last set what it keeps."""
    owner: int
    """The session that it hangs on."""
    version: int
    """How often what it keeps was set."""
    children: int
    turnover: int = 0
    """How often a child was created or deleted."""


class Reply(NamedTuple):
    """The answer to one request."""

    error: int
    zxid: int
    """The latest transaction that the server had carried out; after a change, that change's own."""
    body: bytes


# Requests


def create(path: str, data: bytes, permissions: bytes, flags: int) -> Request:
    """Create a node, and have its name and its `Stat` answered."""
    body = _text(path) + _buffer(data) + permissions + _INT.pack(flags)
    return Request(_CREATE2, body, changes=True, by_leader=True)


def create_container(path: str, permissions: bytes) -> Request:
    """Create a node that ZooKeeper deletes some time after its last child is gone."""
    body = _text(path) + _buffer(b"") + permissions + _INT.pack(_CONTAINER)
    return Request(_CREATE_CONTAINER, body, changes=True, by_leader=True)


def delete(path: str, version: int = ANY_VERSION) -> Request:
    """Delete a node that has no children; given a version, only if it was not set since."""
    return Request(_DELETE, _text(path) + _INT.pack(version), changes=True, by_leader=True)


def set_data(path: str, data: bytes, version: int = ANY_VERSION) -> Request:
    """Replace what a node keeps; given a version, only if it was not set since."""
    return Request(_SET_DATA, _text(path) + _buffer(data) + _INT.pack(version), changes=True, by_leader=True)


def sync(path: str) -> Request:
    """Have what follows be answered no earlier than with what the leader knows now. Nothing is written for it."""
    return Request(_SYNC, _text(path), by_leader=True)


def exists(path: str) -> Request:
    """Look at a node's `Stat`."""
    return Request(_EXISTS, _text(path) + b"\0")


def get_data(path: str, *, watch: bool = False) -> Request:
    """Look at what a node keeps; with `watch`, have its deletion told. A node that is not there is not watched."""
    return Request(_GET_DATA, _text(path) + bytes([watch]))


def get_children(path: str) -> Request:
    """List the names of a node's children."""
    return Request(_GET_CHILDREN2, _text(path) + b"\0")


def check(path: str, version: int) -> Request:
    """As a part of a `multi`: refuse all of it if the node was set since."""
    return Request(_CHECK, _text(path) + _INT.pack(version))


def multi(parts: Sequence[Request]) -> Request:
    """Carry out all of these, or none."""
    body = b"".join(_PART.pack(part.kind, False, -1) + part.body for part in parts)
    return Request(_MULTI, body + _PART.pack(-1, True, -1), changes=True, by_leader=True)


CLOSE: Final = Request(_CLOSE, b"", changes=True, by_leader=True)
"""End the session, and delete all that hangs on it."""


def framed(number: int, request: Request) -> bytes:
    """A request with its number, as it is sent."""
    return _HEAD.pack(8 + len(request.body), number, request.kind) + request.body


def ping() -> bytes:
    """Keep the session alive."""
    return framed(PONG, Request(_PING, b""))


def log_in(scheme: str, secret: bytes) -> bytes:
    """Say who one is."""
    return framed(LET_IN, Request(_AUTH, _INT.pack(0) + _text(scheme) + _buffer(secret)))


def sasl(token: bytes) -> bytes:
    """Say who one is, one step of it; the answer brings the server's next word."""
    return framed(LET_IN, Request(_SASL, _buffer(token)))


def connect(*, seen: int, timeout: float, session: int, password: bytes) -> bytes:
    """Begin a session (0), or go on with one; `seen` is the latest transaction that this client knows of."""
    body = struct.pack(">iqiq", 0, seen, round(timeout * 1000), session) + _buffer(password or _NO_PASSWORD) + b"\0"
    return _buffer(body)


# Answers


class Connected(NamedTuple):
    """What a server answers to `connect`; a timeout of 0: the session is over."""

    timeout: float
    session: int
    password: bytes


class _Reader:
    """Takes a message apart, from its beginning."""

    __slots__ = ("_at", "_bytes")

    def __init__(self, content: bytes) -> None:
        self._bytes, self._at = content, 0

    def unpack(self, form: struct.Struct) -> tuple[int, ...]:
        try:
            values = form.unpack_from(self._bytes, self._at)
        except struct.error:
            raise Malformed("it ends too soon") from None
        self._at += form.size
        return values

    def buffer(self) -> bytes:
        (length,) = self.unpack(_INT)
        content = self._bytes[self._at : self._at + max(length, 0)]
        if len(content) != max(length, 0):
            raise Malformed("it ends too soon")
        self._at += len(content)
        return content

    def text(self) -> str:
        try:
            return self.buffer().decode()
        except UnicodeDecodeError:
            raise Malformed("a text in it is not UTF-8") from None

    def stat(self) -> Stat:
        created, changed, _, _, version, turnover, _, owner, _, children, _ = self.unpack(_STAT)
        return Stat(created, changed, owner, version, children, turnover)


def frame_in(received: bytearray, most: int) -> bytes | None:
    """Take the first whole message from what was received; None when it is not whole yet."""
    if len(received) < _INT.size:
        return None
    (length,) = _INT.unpack_from(received)
    if not 0 <= length <= most:
        raise Malformed("it has an impossible length")
    if len(received) < _INT.size + length:
        return None
    message = bytes(received[_INT.size : _INT.size + length])
    del received[: _INT.size + length]
    return message


def connected_in(message: bytes) -> Connected:
    """Read the answer to `connect`."""
    reader = _Reader(message)
    _, timeout, session = reader.unpack(struct.Struct(">iiq"))
    return Connected(timeout / 1000, session, reader.buffer())


def reply_in(message: bytes) -> tuple[int, Reply]:
    """Read a reply, and the number of what it answers."""
    if len(message) < _REPLY.size:
        raise Malformed("it ends too soon")
    number, zxid, error = _REPLY.unpack_from(message)
    return number, Reply(error, zxid, message[_REPLY.size :])


def sasl_in(body: bytes) -> bytes:
    """The answer to `sasl`."""
    return _Reader(body).buffer()


def event_in(body: bytes) -> tuple[int, str]:
    """What happened to a watched node, and its path."""
    reader = _Reader(body)
    kind, _ = reader.unpack(_EVENT)
    return kind, reader.text()


def created_in(body: bytes) -> tuple[str, Stat]:
    """The path and the `Stat` of a node that was created."""
    reader = _Reader(body)
    return reader.text(), reader.stat()


def stat_in(body: bytes) -> Stat:
    """The answer to `exists`."""
    return _Reader(body).stat()


def data_in(body: bytes) -> tuple[bytes, Stat]:
    """The answer to `get_data`."""
    reader = _Reader(body)
    return reader.buffer(), reader.stat()


def children_in(body: bytes) -> tuple[list[str], Stat]:
    """The answer to `get_children`: their names, and what their parent is."""
    reader = _Reader(body)
    return [reader.text() for _ in range(_how_many(reader, body))], reader.stat()


def parent_in(body: bytes) -> Stat:
    """The answer to `get_children`: only what their parent is."""
    reader = _Reader(body)
    for _ in range(_how_many(reader, body)):
        reader.buffer()
    return reader.stat()


def _how_many(reader: _Reader, body: bytes) -> int:
    (number,) = reader.unpack(_INT)
    if number > len(body):
        raise Malformed("it claims to have more names than bytes")
    return number


def changed_in_multi(body: bytes) -> Stat:
    """The `Stat` of the node that the first part of a `multi` has set.

    Nodes that a `multi` creates are answered without theirs, even where that was asked for.
    """
    return _set_in_multi(_Reader(body))


def created_in_multi(body: bytes) -> tuple[str, Stat]:
    """The path of the node that the second part of a `multi` created, and the `Stat` that the first part left."""
    reader = _Reader(body)
    stat = _set_in_multi(reader)
    kind, _, _ = reader.unpack(_PART)
    if kind not in (_CREATE, _CREATE2):
        raise Malformed("it does not go on with what was created")
    return reader.text(), stat


def _set_in_multi(reader: _Reader) -> Stat:
    kind, _, _ = reader.unpack(_PART)
    if kind != _SET_DATA:
        raise Malformed("it does not begin with what was set")
    return reader.stat()


def error_of(request: Request, reply: Reply) -> int:
    """Why a request was not carried out; `OK` if it was."""
    return error_of_multi(reply) if request.kind == _MULTI else reply.error


def error_of_multi(reply: Reply) -> int:
    """Why a `multi` was not carried out; `OK` if it was. Its own number may be `OK` although a part was refused."""
    return refused_part(reply)[1]


def refused_part(reply: Reply) -> tuple[int, int]:
    """Which part of a `multi` was refused, counted from 0, and why; the reason is `OK` if none was."""
    reader, refused, number = _Reader(reply.body), reply.error, -1
    while refused == OK:
        kind, done, _ = reader.unpack(_PART)
        if done or kind != -1:
            break
        (error,) = reader.unpack(_INT)
        refused, number = OK if error == _ROLLED_BACK else error, number + 1
    return max(number, 0), refused
