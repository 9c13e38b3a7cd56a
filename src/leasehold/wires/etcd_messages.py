"""The few messages of etcd's API that are needed here, with only the fields that are used, in protobuf's encoding.

Written by hand: they are a dozen, and a generated module would tie its users to one version of the protobuf package.
Requests are functions that return bytes. Answers are read strictly; what cannot be read raises `Malformed`.

>>> put(b"k", b"v", lease=7).hex(" ")
'12 08 0a 01 6b 12 01 76 18 07'
"""

from __future__ import annotations

import functools
import re
from typing import Final, NamedTuple

TXN: Final = "/etcdserverpb.KV/Txn"
RANGE: Final = "/etcdserverpb.KV/Range"
DELETE: Final = "/etcdserverpb.KV/DeleteRange"
GRANT: Final = "/etcdserverpb.Lease/LeaseGrant"
KEEP_ALIVE: Final = "/etcdserverpb.Lease/LeaseKeepAlive"
REVOKE: Final = "/etcdserverpb.Lease/LeaseRevoke"
TIME_TO_LIVE: Final = "/etcdserverpb.Lease/LeaseTimeToLive"
AUTHENTICATE: Final = "/etcdserverpb.Auth/Authenticate"
WATCH: Final = "/etcdserverpb.Watch/Watch"
STATUS: Final = "/etcdserverpb.Maintenance/Status"
ALARMS: Final = "/etcdserverpb.Maintenance/Alarm"
MEMBERS: Final = "/etcdserverpb.Cluster/MemberList"
UNARY: Final = (
    TXN, RANGE, DELETE, GRANT, KEEP_ALIVE, REVOKE, TIME_TO_LIVE, AUTHENTICATE, STATUS, ALARMS, MEMBERS,
)  # fmt: skip
"""Methods that are called with one request for one answer. For keep-alives etcd also offers a stream of them."""

MOST_OPERATIONS: Final = 128
"""Of one transaction, unless the server was told otherwise."""


class Malformed(Exception):
    """An answer that is not what protobuf or etcd's API would make it."""


# Writing

_ONE_BYTE: Final = [bytes((number,)) for number in range(128)]


def _varint(number: int) -> bytes:
    if number < 128:
        return _ONE_BYTE[number]
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def _number(field: int, number: int) -> bytes:
    return _varint(field << 3) + _varint(number)


def _blob(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def look(
    key: bytes,
    end: bytes = b"",
    *,
    limit: int = 0,
    newest_first: bool = False,
    keys_only: bool = True,
    created_before: int = 0,
) -> bytes:
    """A range request: one key, or those from `key` up to but not including `end`, in the order of creation."""
    content = _blob(1, key)
    if end:
        content += _blob(2, end) + _number(5, 2 if newest_first else 1) + _number(6, 2)
    if limit:
        content += _number(3, limit)
    if keys_only:
        content += _number(8, 1)
    if created_before:
        content += _number(13, created_before - 1)
    return content


def list_keys(key: bytes, end: bytes, limit: int) -> bytes:
    """A range request for keys alone, in the order of their bytes."""
    return _blob(1, key) + _blob(2, end) + _number(3, limit) + _number(8, 1)


def looking(request: bytes) -> bytes:
    """A range request as an operation of a transaction."""
    return _blob(1, request)


def is_look(operation: bytes) -> bool:
    """Whether an operation of a transaction, or the answer to one, is a look."""
    return operation.startswith(b"\x0a")


@functools.lru_cache(maxsize=64)
def _on_lease(lease: int) -> bytes:
    """A long number, and the same for everything that hangs on the lease."""
    return _number(3, lease)


def put(key: bytes, value: bytes, lease: int) -> bytes:
    """The operation that writes a key and hangs it on a lease."""
    return _blob(2, _blob(1, key) + _blob(2, value) + _on_lease(lease))


def put_if_absent(key: bytes, value: bytes, lease: int) -> bytes:
    """The same, unless the key is there: an operation that does no harm when it is carried out late, or twice."""
    return _blob(4, txn([if_created(key, 0)], [put(key, value, lease)], []))


def hang(key: bytes, lease: int) -> bytes:
    """The operation that hangs a key on another lease and leaves its value and its creation alone."""
    return _blob(2, _blob(1, key) + _on_lease(lease) + _number(5, 1))


def delete(key: bytes, end: bytes = b"") -> bytes:
    """A request to delete one key, or those from `key` up to but not including `end`."""
    return _blob(1, key) + (_blob(2, end) if end else b"")


def deleting(request: bytes) -> bytes:
    """A deletion as an operation of a transaction."""
    return _blob(3, request)


def if_created(key: bytes, revision: int) -> bytes:
    """The condition that the key was created at this revision; 0: that it does not exist."""
    return _number(2, 1) + _blob(3, key) + _number(5, revision)


def if_modified(key: bytes, revision: int) -> bytes:
    """The condition that the key was last written at this revision."""
    return _number(2, 2) + _blob(3, key) + _number(6, revision)


def if_none_created_since(key: bytes, end: bytes, revision: int) -> bytes:
    """The condition that no key of the range was created after this revision; 0: that there is none at all."""
    return _number(1, 2) + _number(2, 1) + _blob(3, key) + _number(5, revision + 1) + _blob(64, end)


def if_none_created_before(key: bytes, end: bytes, revision: int) -> bytes:
    """The condition that every key of the range was created at this revision or later."""
    return _number(1, 1) + _number(2, 1) + _blob(3, key) + _number(5, revision - 1) + _blob(64, end)


def if_value_below(key: bytes, value: bytes) -> bytes:
    """The condition that the key exists and that its value comes before this one, byte by byte."""
    return _number(1, 2) + _number(2, 3) + _blob(3, key) + _blob(7, value)


def if_value_above(key: bytes, value: bytes) -> bytes:
    """The condition that the key exists and that its value comes after this one, byte by byte."""
    return _number(1, 1) + _number(2, 3) + _blob(3, key) + _blob(7, value)


def txn(conditions: list[bytes], then: list[bytes], otherwise: list[bytes]) -> bytes:
    """A transaction: carry out `then` if all conditions hold, and else `otherwise`."""
    return b"".join(
        [_blob(1, one) for one in conditions] + [_blob(2, one) for one in then] + [_blob(3, one) for one in otherwise]
    )


def lease_grant(lease: int, ttl: int) -> bytes:
    """A request for a lease with an id of our own choice, so that asking twice is harmless."""
    return _number(1, ttl) + _number(2, lease)


def lease_id(lease: int) -> bytes:
    """A request about one lease: to keep it alive, to revoke it, or to say how long it has."""
    return _number(1, lease)


def authenticate(user: str, password: str) -> bytes:
    """A request to be let in."""
    return _blob(1, user.encode()) + _blob(2, password.encode())


def watch(number: int, key: bytes, end: bytes) -> bytes:
    """A request to be told of deletions from now on, under a number of our own choice."""
    no_puts = _blob(5, b"\0")
    return _blob(1, _blob(1, key) + (_blob(2, end) if end else b"") + no_puts + _number(7, number))


def unwatch(number: int) -> bytes:
    """A request to hear no more of it."""
    return _blob(2, _number(1, number))


# Reading


class Message:
    """One message, taken apart: its numbers and its contents by field. A field that is absent is 0, or empty."""

    __slots__ = ("_contents", "_numbers")

    def __init__(self, data: bytes) -> None:
        """Take it apart, or raise `Malformed`."""
        self._numbers: dict[int, int] = {}
        self._contents: dict[int, list[bytes]] = {}
        at, end = 0, len(data)
        try:
            while at < end:
                tag, at = data[at], at + 1
                if tag > 127:
                    tag, at = _read_varint(data, at - 1)
                kind = tag & 7
                if kind not in {0, 2}:
                    at += _size_of(kind)
                    continue
                number, at = data[at], at + 1
                if number > 127:  # most are not, and every answer comes by here
                    number, at = _read_varint(data, at - 1)
                if kind == 0:
                    self._numbers[tag >> 3] = number
                else:
                    self._contents.setdefault(tag >> 3, []).append(data[at : at + number])
                    at += number
        except IndexError:
            raise Malformed("it ends where a number should be") from None
        if at != end:
            raise Malformed("it ends in the middle of a field")

    def number(self, field: int) -> int:
        """A signed number of 64 bits."""
        number = self._numbers.get(field, 0)
        return number - (1 << 64) if number >> 63 else number

    def blob(self, field: int) -> bytes:
        """The last content of a field."""
        contents = self._contents.get(field)
        return contents[-1] if contents else b""

    def blobs(self, field: int) -> list[bytes]:
        """Every content of a field."""
        return self._contents.get(field, [])

    def has(self, field: int) -> bool:
        """Whether the field has content."""
        return field in self._contents


def _size_of(kind: int) -> int:
    """How long fields of a fixed size are, which are not used here."""
    if kind not in {1, 5}:
        raise Malformed(f"a field of the unknown kind {kind}")
    return 8 if kind == 1 else 4


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The number that starts there, and where it ends."""
    number = shift = 0
    for byte in data[at : at + 10]:
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number & (1 << 64) - 1, at
        shift += 7
    raise Malformed("a number without an end")


class Key(NamedTuple):
    """A key as it is stored."""

    key: bytes
    created: int
    """The revision at which it was created."""
    lease: int
    value: bytes
    modified: int = 0
    """The revision at which it was last written."""


def _key(data: bytes) -> Key:
    message = Message(data)
    key = Key(message.blob(1), message.number(2), message.number(6), message.blob(5), message.number(3))
    if not key.key or key.created <= 0:
        raise Malformed("a key without a name or without a revision")
    return key


class Outcome(NamedTuple):
    """What a transaction did."""

    revision: int
    succeeded: bool
    found: list[list[Key]]
    """What each look found, in the order of the looks."""

    def find(self, key: bytes) -> Key | None:
        """The key, if it is among what was found."""
        return next((one for found in self.found for one in found if one.key == key), None)


_USUAL_HEADER: Final = re.compile(
    rb"\x08[\x80-\xff]*[\0-\x7f]\x10[\x80-\xff]*[\0-\x7f]\x18(?=[\x80-\xff]{0,7}[\0-\x7f])"
)
"""The ids of the cluster and of the member, long numbers that nobody asked for, and then the revision."""


def _revision(message: Message) -> int:
    header = message.blob(1)
    usual = _USUAL_HEADER.match(header)
    revision = Message(header).number(3) if usual is None else _read_varint(header, usual.end())[0]
    if revision <= 0:
        raise Malformed("an answer without a revision")
    return revision


def outcome_of(data: bytes) -> Outcome:
    """Read the answer to a transaction."""
    message = Message(data)
    found = [keys_in(Message(one).blob(1)) for one in message.blobs(3) if is_look(one)]
    return Outcome(_revision(message), message.number(2) == 1, found)


def keys_in(data: bytes) -> list[Key]:
    """Read the answer to a range request."""
    return [_key(one) for one in Message(data).blobs(2)]


def deletion_of(data: bytes) -> tuple[int, int]:
    """Read the answer to a deletion: how many keys, and the revision afterwards."""
    message = Message(data)
    return message.number(2), _revision(message)


def ttl_of_lease(data: bytes) -> int:
    """Read how many seconds a lease was granted, or kept alive for; 0 when it is gone."""
    return Message(data).number(3)


def left_of_lease(data: bytes) -> int:
    """Read how many seconds a lease has left, rounded up; 0 when it is gone."""
    message = Message(data)
    return max(min(message.number(3) + 1, message.number(4)), 0)


def auth_token_of(data: bytes) -> str:
    """Read what shows that we were let in."""
    return Message(data).blob(2).decode("ascii", "strict")


class MemberStatus(NamedTuple):
    """What one member says of itself and of its cluster."""

    version: str
    size: int
    """Of its database, in bytes."""
    leader: int
    """The id of the leader; 0 when there is none."""
    is_learner: bool
    errors: list[str]


def status_of(data: bytes) -> MemberStatus:
    """Read what a member says of itself."""
    message = Message(data)
    errors = [error.decode("utf-8", "replace") for error in message.blobs(8)]
    version = message.blob(2).decode("ascii", "replace")
    return MemberStatus(version, message.number(3), message.number(4), message.number(10) == 1, errors)


class Member(NamedTuple):
    """One member of a cluster."""

    name: str
    is_learner: bool


def members_of(data: bytes) -> list[Member]:
    """Read who the members of a cluster are."""
    members = map(Message, Message(data).blobs(2))
    return [Member(one.blob(2).decode("utf-8", "replace"), one.number(5) == 1) for one in members]


def alarms_of(data: bytes) -> list[int]:
    """Read which alarms are raised: 1 is no space left, 2 is damaged data."""
    return [Message(one).number(2) for one in Message(data).blobs(2)]


class Deletion(NamedTuple):
    """A key that is gone."""

    key: bytes
    revision: int
    """At which it went."""


class News(NamedTuple):
    """What a watch says."""

    number: int
    revision: int
    created: bool
    """It has begun, at this revision or before."""
    cancelled: bool
    deleted: list[Deletion]


def news_of(data: bytes) -> News:
    """Read what a watch says."""
    message = Message(data)
    gone = [Message(event.blob(2)) for event in map(Message, message.blobs(11)) if event.number(1) == 1]
    deleted = [Deletion(key.blob(1), key.number(3)) for key in gone]
    return News(message.number(2), _revision(message), message.number(3) == 1, message.number(4) == 1, deleted)
