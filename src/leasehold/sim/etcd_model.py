"""What etcd does with the requests of the etcd engine: keys with revisions, leases, transactions and watches.

Messages come and go as the very bytes of its API. A real etcd is driven with the same bytes by a test, and has to give
the same answers. Time is passed in, so that the simulator's scheduler decides when a lease is over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from leasehold.wires import etcd_messages as messages
from leasehold.wires.etcd_messages import Message, _blob, _number

LEAST_TTL: Final = 2
"""No lease is shorter than an election and a half."""
_EQUAL, _GREATER, _LESS = 0, 1, 2
_CREATED, _MODIFIED, _VALUE = 1, 2, 3
_NEWEST_FIRST: Final = 2


class Refusal(Exception):
    """A request that etcd refuses: gRPC's code, and its own words."""

    def __init__(self, code: str, details: str) -> None:
        super().__init__(details)
        self.code, self.details = code, details


def _no_lease() -> Refusal:
    return Refusal("NOT_FOUND", "etcdserver: requested lease not found")


@dataclass(slots=True)
class Stored:
    """A key."""

    key: bytes
    created: int
    modified: int
    version: int
    value: bytes
    lease: int

    def encoded(self, *, keys_only: bool) -> bytes:
        """As the API shows it."""
        return (
            _blob(1, self.key)
            + _number(2, self.created)
            + _number(3, self.modified)
            + _number(4, self.version)
            + (b"" if keys_only or not self.value else _blob(5, self.value))
            + (_number(6, self.lease) if self.lease else b"")
        )


@dataclass(slots=True)
class Lease:
    """What the engine calls a session."""

    ttl: int
    expires: float
    keys: dict[bytes, None] = field(default_factory=dict)


class Chosen(NamedTuple):
    """What is to be done of a transaction, with the transactions that are operations of it."""

    holds: bool
    operations: list[tuple[Message, Chosen | None]]


class Etcd:
    """One cluster, which is never of two minds: what its majority has agreed on."""

    def __init__(self, *, least_ttl: int = LEAST_TTL, revision: int = 1) -> None:
        self.revision = revision
        self.keys: dict[bytes, Stored] = {}
        self.leases: dict[int, Lease] = {}
        self.deleted: Callable[[bytes], object] = lambda _key: None
        """Told of each key that goes, after the revision at which it went is known."""
        self._least_ttl = least_ttl
        self._gone: list[bytes] = []

    def ask(self, method: str, request: bytes, now: float) -> bytes:
        """Carry out a request; raises `Refusal`."""
        message = Message(request)
        if method == messages.TXN:
            answer = self._txn(message)
        elif method == messages.RANGE:
            answer = self._header() + self._range(message)
        elif method == messages.DELETE:
            answer = self._written(lambda: self._delete(message))
        else:
            answer = self._about_lease(method, message, now)
        self._tell()
        return answer

    def _header(self) -> bytes:
        return _blob(1, _number(3, self.revision))

    def _tell(self) -> None:
        gone, self._gone = self._gone, []
        for key in gone:
            self.deleted(key)

    # Keys

    def _in(self, key: bytes, end: bytes) -> list[Stored]:
        if not end:
            return [self.keys[key]] if key in self.keys else []
        return [one for name, one in sorted(self.keys.items()) if key <= name < end]

    def _range(self, message: Message) -> bytes:
        found, limit, latest = self._in(message.blob(1), message.blob(2)), message.number(3), message.number(13)
        total = len(found)
        found = [one for one in found if not latest or one.created <= latest]
        if message.number(5):
            found.sort(key=lambda one: one.created, reverse=message.number(5) == _NEWEST_FIRST)
        shown = found[:limit] if limit else found
        more = _number(3, 1) if len(shown) < len(found) else b""
        keys_only = message.number(8) == 1
        return b"".join(_blob(2, one.encoded(keys_only=keys_only)) for one in shown) + more + _number(4, total)

    def _put(self, message: Message) -> bytes:
        key, lease = message.blob(1), message.number(3)
        before = self.keys.get(key)
        if message.number(5) and before is None:
            raise Refusal("INVALID_ARGUMENT", "etcdserver: key not found")
        if lease and lease not in self.leases:
            raise _no_lease()
        value = before.value if message.number(5) and before is not None else message.blob(2)
        if before is None:
            self.keys[key] = Stored(key, self.revision, self.revision, 1, value, lease)
        else:
            self._let_go(before)
            before.modified, before.version = self.revision, before.version + 1
            before.value, before.lease = value, lease
        if lease:
            self.leases[lease].keys[key] = None
        return b""

    def _let_go(self, stored: Stored) -> None:
        lease = self.leases.get(stored.lease)
        if lease is not None:
            lease.keys.pop(stored.key, None)

    def _delete(self, message: Message) -> bytes:
        found = self._in(message.blob(1), message.blob(2))
        for one in found:
            self._let_go(one)
            del self.keys[one.key]
            self._gone.append(one.key)
        return _number(2, len(found)) if found else b""

    def _written(self, write: Callable[[], bytes]) -> bytes:
        """Do something at the next revision; if it changes nothing, there is no next revision."""
        self.revision += 1
        before = len(self._gone)
        body = write()
        if len(self._gone) == before:
            self.revision -= 1
        return self._header() + body

    def _txn(self, message: Message) -> bytes:
        chosen = self._chosen(message)
        self.revision += 1
        changed, body = self._carried_out(chosen)
        if not changed:
            self.revision -= 1
        return self._header() + body

    def _chosen(self, message: Message) -> Chosen:
        """Which operations are to be carried out: all conditions are looked at before the first of them is."""
        holds = all(self._holds(Message(one)) for one in message.blobs(1))
        operations = [Message(one) for one in message.blobs(2 if holds else 3)]
        for one in operations:
            if one.has(2):
                self._check_put(Message(one.blob(2)))
        nested = [self._chosen(Message(one.blob(4))) if one.has(4) else None for one in operations]
        return Chosen(holds, list(zip(operations, nested, strict=True)))

    def _carried_out(self, chosen: Chosen) -> tuple[bool, bytes]:
        """Whether anything changed, and the answer without its header."""
        changed, answers = False, b""
        for one, nested in chosen.operations:
            if nested is not None:
                its_change, its_body = self._carried_out(nested)
                answers += _blob(3, _blob(4, self._header() + its_body))
                changed = changed or its_change
            elif one.has(1):
                answers += _blob(3, _blob(1, self._range(Message(one.blob(1)))))
            elif one.has(2):
                answers += _blob(3, _blob(2, self._put(Message(one.blob(2)))))
                changed = True
            else:
                outcome = self._delete(Message(one.blob(3)))
                answers += _blob(3, _blob(3, outcome))
                changed = changed or bool(outcome)
        return changed, (_number(2, 1) if chosen.holds else b"") + answers

    def _check_put(self, put: Message) -> None:
        """A transaction is refused as a whole, before anything of it is done."""
        if put.number(5) and put.blob(1) not in self.keys:
            raise Refusal("INVALID_ARGUMENT", "etcdserver: key not found")
        if put.number(3) and put.number(3) not in self.leases:
            raise _no_lease()

    def _holds(self, condition: Message) -> bool:
        """Whether a condition holds for every key of its range; without any, for one that was never created."""
        result, target = condition.number(1), condition.number(2)
        found = self._in(condition.blob(3), condition.blob(64))
        if target == _VALUE:
            return bool(found) and all(_compare(one.value, condition.blob(7), result) for one in found)
        if target == _MODIFIED:
            return all(_compare(one, condition.number(6), result) for one in [one.modified for one in found] or [0])
        if target != _CREATED:
            raise Refusal("UNIMPLEMENTED", f"the model does not compare by {target}")
        return all(_compare(one, condition.number(5), result) for one in [one.created for one in found] or [0])

    # Leases

    def _about_lease(self, method: str, message: Message, now: float) -> bytes:
        if method == messages.GRANT:
            return self._grant(message.number(2), message.number(1), now)
        lease = message.number(1)
        known = self.leases.get(lease)
        if method == messages.KEEP_ALIVE:
            if known is not None and known.expires <= now:
                self.revoke(lease)  # it is not revived; whoever asks waits until it is gone
                known = None
            if known is not None:
                known.expires = now + known.ttl
            return self._header() + _number(2, lease) + (_number(3, known.ttl) if known is not None else b"")
        if method == messages.REVOKE:
            if known is None:
                raise _no_lease()
            self.revoke(lease)
            return self._header()
        if method == messages.TIME_TO_LIVE:
            if known is None:
                return self._header() + _number(2, lease) + _number(3, (1 << 64) - 1)
            left = _number(3, max(int(known.expires - now), 0))
            return self._header() + _number(2, lease) + left + _number(4, known.ttl)
        raise Refusal("UNIMPLEMENTED", f"the model does not know {method}")

    def _grant(self, lease: int, ttl: int, now: float) -> bytes:
        if lease in self.leases:
            raise Refusal("FAILED_PRECONDITION", "etcdserver: lease already exists")
        ttl = max(ttl, self._least_ttl)
        self.leases[lease] = Lease(ttl, now + ttl)
        return self._header() + _number(2, lease) + _number(3, ttl)

    def revoke(self, lease: int) -> None:
        """End a lease, and delete all that hangs on it at one revision."""
        keys = list(self.leases.pop(lease).keys)
        if keys:
            self.revision += 1
            for key in keys:
                del self.keys[key]
            self._gone += keys
        self._tell()

    def new_leader(self, now: float) -> None:
        """A leader that was just elected starts the clock of every lease anew."""
        for lease in self.leases.values():
            lease.expires = now + lease.ttl

    def overdue(self, now: float) -> Iterator[int]:
        """Leases whose time is over, and which etcd is about to end."""
        return iter([number for number, lease in self.leases.items() if lease.expires <= now])


def _compare(one: int | bytes, other: int | bytes, result: int) -> bool:
    if result == _EQUAL:
        return one == other
    below = one < other  # type: ignore[operator]
    return below if result == _LESS else not below and one != other


class Watched:
    """The watches of one stream."""

    def __init__(self, etcd: Etcd, tell: Callable[[bytes], object]) -> None:
        self._etcd, self._send = etcd, tell
        self._ranges: dict[int, tuple[bytes, bytes]] = {}

    def ask(self, request: bytes) -> None:
        """Begin a watch, or end one."""
        message = Message(request)
        if message.has(1):
            create = Message(message.blob(1))
            number = create.number(7)
            self._ranges[number] = create.blob(1), create.blob(2)
            self._answer(number, _number(3, 1))
        else:
            number = Message(message.blob(2)).number(1)
            if self._ranges.pop(number, None) is not None:
                self._answer(number, _number(4, 1))

    def deleted(self, key: bytes) -> None:
        """A key is gone: tell those who watch it."""
        for number, (start, end) in self._ranges.items():
            if key == start or (end and start <= key < end):
                event = _number(1, 1) + _blob(2, _blob(1, key) + _number(3, self._etcd.revision))
                self._answer(number, _blob(11, event))

    def _answer(self, number: int, body: bytes) -> None:
        self._send(_blob(1, _number(3, self._etcd.revision)) + _number(2, number) + body)
