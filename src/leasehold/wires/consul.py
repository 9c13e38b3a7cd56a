"""Our path to Consul: six of the endpoints of its HTTP API, for blocking code and for asyncio.

Nothing is sent twice. Every question is asked in Consul's mode "consistent": a leader that was replaced without
knowing it does not answer it.
"""

from __future__ import annotations

import binascii
import functools
import json
import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import quote

from leasehold.core.worlds import World
from leasehold.errors import EngineError, EngineUnavailable, OutcomeUnknown, quoted
from leasehold.wires.consul_address import Address
from leasehold.wires.consul_errors import PERMISSION, SessionGone, nonsense, refused
from leasehold.wires.consul_line import Dialling, Line
from leasehold.wires.http import Answer
from leasehold.wires.sockets import BlockingSockets, Sockets
from leasehold.wires.sql_pool import Pool

T = TypeVar("T")
Operation = str
"""In JSON: written by hand, for every lease comes by here twice."""
_in_json: Final = json.JSONEncoder(separators=(",", ":")).encode
_from_json: Final = json.JSONDecoder().decode
_KNOWN: Final = 1024
"""How many operations are remembered of each kind: keys are used again, and so is the text of what is done to them."""
MOST_OPERATIONS: Final = 64
"""In one transaction."""
MOST_WATCHES: Final = 32
"""How many connections wait for news at once. An agent allows 200 for each client address, by default."""
LATE: Final = 0.05
"""How much later than it was asked to an answer to one who waits may come, in seconds."""
HIGHEST_INDEX: Final = 2**53


class Entry(NamedTuple):
    """A key as it is stored."""

    key: bytes
    created: int
    """The index at which it was created."""
    modified: int
    lease: str
    """The session that it hangs on; empty for one whose session has ended."""
    value: bytes


class Refused(NamedTuple):
    """A transaction that was not carried out: why, by the number of the operation."""

    why: dict[int, str]

    @property
    def for_delay(self) -> bool:
        """Whether a lock-delay is in the way."""
        return any("due to lock delay" in words for words in self.why.values())


class Terms(NamedTuple):
    """What a session is to be like."""

    ttl: float
    delay: float = 0.0
    """How long its keys cannot be locked after it has ended; such keys stay, without it. Others are deleted."""


class News(NamedTuple):
    """What a watch has found: the keys that are there, as of an index."""

    entries: list[Entry]
    as_of: int


def locking(key: bytes, session: str, value: bytes) -> Operation:
    """Hang a key on a session, unless it hangs on another one."""
    return _with_value(_on_session("lock", key, session), value)


def unlocking(key: bytes, session: str, value: bytes) -> Operation:
    """Let a key hang on no session any more; refused unless it hangs on this one."""
    return _with_value(_on_session("unlock", key, session), value)


def if_on(key: bytes, session: str) -> Operation:
    """Refuse everything unless the key hangs on this session."""
    return _on_session("check-session", key, session)


def setting(key: bytes) -> Operation:
    """Write a key that hangs on nothing."""
    return _operation("set", key, Value="")


def getting(key: bytes) -> Operation:
    """Read a key; refused when it is not there."""
    return _operation("get", key)


@functools.lru_cache(_KNOWN)
def getting_all(start: bytes) -> Operation:
    """Read all keys that begin so."""
    return _operation("get-tree", start)


@functools.lru_cache(_KNOWN)
def deleting(key: bytes) -> Operation:
    """Delete a key, if it is there."""
    return _operation("delete", key)


def deleting_as_seen(entry: Entry) -> Operation:
    """Delete a key, if it is there; refused when it was changed since it was read."""
    return _operation("delete-cas", entry.key, Index=entry.modified)


def _operation(verb: str, key: bytes, **more: str | int) -> Operation:
    fields = f'"Verb":"{verb}","Key":{_in_json(key.decode())}'
    for name, value in more.items():
        fields += f',"{name}":{_in_json(value)}'
    return f'{{"KV":{{{fields}}}}}'


@functools.lru_cache(_KNOWN)
def _on_session(verb: str, key: bytes, session: str) -> Operation:
    return _operation(verb, key, Session=session)


def _with_value(operation: Operation, value: bytes) -> Operation:
    packed = binascii.b2a_base64(value, newline=False).decode()
    return f'{operation.removesuffix("}}")},"Value":"{packed}"}}}}'


class ConsulWire:
    """Requests to the agent, in one of the worlds."""

    def __init__(self, address: Address, sockets: Sockets) -> None:
        self.world: World = sockets.world
        self.bell = sockets.bell
        self._address, self._dialling = (
            f"consul at {', '.join(map(str, address.endpoints))}",
            Dialling(address, sockets),
        )
        self._pool: Pool[Line] = Pool(sockets, self._dialling.connect, self._address)
        # A line that an interrupted caller has dropped is not counted any more.
        self._watching: weakref.WeakSet[Line] = weakref.WeakSet()
        self._idle_watches: list[Line] = []

    async def _ask(
        self, method: str, target: str, request: str | None, until: float, read: Callable[[Answer], T], *, changes: bool
    ) -> T:
        """Send one request, in JSON, and read its answer."""
        if until <= self.world.now():
            raise EngineUnavailable(f"there was no time left to ask {self._address}")
        body = b"" if request is None else request.encode()
        line = self._pool.lend_idle() or await self._pool.lend(until)
        try:
            answer = await line.ask(method, f"/v1/{target}", body, until, changes=changes)
        except BaseException as error:
            self._pool.drop(line)
            if isinstance(error, EngineError):
                self._leave(line)
            raise
        self._pool.give_back(line)
        return self._read(line, answer, read, changes=changes)

    def _read(self, line: Line, answer: Answer, read: Callable[[Answer], T], *, changes: bool) -> T:
        try:
            if answer.status in {200, 404, 409}:
                return read(answer)
        except _STRANGE as error:
            what = f"{type(error).__name__} in {quoted(answer.body[:200])}"
            raise nonsense(f"consul at {line.endpoint}", what) from None
        except _NoSuchThing:
            pass
        failure = refused(f"consul at {line.endpoint}", answer.status, answer.body, changes=changes)
        if isinstance(failure, EngineUnavailable | OutcomeUnknown):
            self._leave(line)
        raise failure

    def _leave(self, line: Line) -> None:
        """The agent failed: go to another one, if there is one."""
        before = self._dialling.current
        self._dialling.move_on(line.endpoint)
        if self._dialling.current != before:
            self._pool.drop_idle()

    async def get(self, path: str, until: float) -> Any:
        """What an agent says of itself or of its cluster; only looked at, nothing is changed."""
        return await self._ask("GET", path, None, until, _json, changes=False)

    # Sessions

    async def create_session(self, terms: Terms, name: str, until: float) -> str:
        """Make a session, which nothing but its TTL ends: the health of its node does not matter."""
        request: dict[str, object] = {
            "Name": name,
            "TTL": _duration(terms.ttl),
            "LockDelay": _duration(terms.delay),
            "Behavior": "release" if terms.delay else "delete",
            "Checks": [],
            "NodeChecks": [],
        }
        return await self._ask("PUT", "session/create", _in_json(request), until, _session_in, changes=True)

    async def renew_session(self, session: str, until: float) -> bool:
        """Let a session last for another TTL; False when it has ended."""

        def read(answer: Answer) -> bool:
            if answer.status == 404:
                return False
            if _json(answer)[0]["ID"] != session:
                raise ValueError("another session")
            return True

        return await self._ask("PUT", f"session/renew/{session}", None, until, read, changes=True)

    async def destroy_session(self, session: str, until: float) -> None:
        """End a session."""
        await self._ask("PUT", f"session/destroy/{session}", None, until, _json, changes=True)

    # Keys

    async def txn(
        self, operations: Sequence[Operation], until: float, *, changes: bool = True, unread: int = 0
    ) -> list[Entry] | Refused:
        """Carry out all operations in one step, or none; returns what they read or wrote. Raises `SessionGone`.

        `unread`: so many of these, from the first, nobody wants to see.
        """
        target = "txn" if changes else "txn?consistent"
        request = f"[{','.join(operations)}]"

        def read(answer: Answer) -> list[Entry] | Refused:
            return _outcome_in(answer, unread)

        outcome = await self._ask("PUT", target, request, until, read, changes=changes)
        if isinstance(outcome, Refused):
            words = " ".join(outcome.why.values())
            if PERMISSION in words:
                raise refused(self._address, 403, words.encode(), changes=False)
            if "invalid session" in words:
                raise SessionGone(f"{self._address} does not know the session any more")
        return outcome

    async def entries(self, start: bytes, until: float) -> News:
        """All keys that begin so."""
        target = f"kv/{_path(start)}?recurse&consistent"
        return await self._ask("GET", target, None, until, _news_in, changes=False)

    async def folders(self, start: bytes, until: float) -> list[bytes]:
        """What keys that begin so have up to the next slash, each once, in order."""
        target = f"kv/{_path(start)}?keys&separator=/&consistent"
        return sorted(await self._ask("GET", target, None, until, _keys_in, changes=False))

    # Waiting

    async def watch(self, key: bytes, index: int, until: float) -> News | None:
        """Wait for something to happen to a key, or to those that begin with it if it ends with a slash, after `index`.

        Returns what is there then, or at `until` at the latest. None: all connections for waiting are in use.
        """
        if until <= self.world.now():
            return None
        line = await self._watch_line(until + LATE)
        if line is None:
            return None
        # Consul adds up to a sixteenth to the time that it is asked to wait.
        seconds = max((until - self.world.now()) * 16 / 17, 0.001)
        target = f"/v1/kv/{_path(key)}?consistent&index={index}&wait={_duration(seconds)}"
        if key.endswith(b"/"):
            target += "&recurse"
        try:
            answer = await line.ask("GET", target, b"", until + LATE, changes=False, soon=False)
            news = self._read(line, answer, _news_in, changes=False)
        except BaseException as error:
            self._watching.discard(line)
            line.close()
            if isinstance(error, EngineError):
                self._leave(line)
            raise
        self._idle_watches.append(line)
        return news

    async def _watch_line(self, until: float) -> Line | None:
        while self._idle_watches:
            line = self._idle_watches.pop()
            if line.is_usable():
                return line
            self._watching.discard(line)
            line.close()
        if len(self._watching) >= MOST_WATCHES:
            return None
        line = await self._dialling.connect(until)
        self._watching.add(line)
        return line

    # The end

    def close(self) -> None:
        """Close connections. Who needs one later gets one for a single step."""
        self._pool.close()
        while self._idle_watches:
            line = self._idle_watches.pop()
            self._watching.discard(line)
            line.close()

    def forked(self) -> None:
        """In a forked child: let go of every inherited connection."""
        self._pool.forked()
        for line in list(self._watching):
            line.let_go()
        self._watching, self._idle_watches = weakref.WeakSet(), []


_STRANGE: Final = (ValueError, KeyError, TypeError, IndexError, RecursionError)


class _NoSuchThing(Exception):
    """An answer of 404 or 409 where none makes sense."""


def _duration(seconds: float) -> str:
    return f"{math.ceil(round(seconds * 1000, 3))}ms"


def _path(key: bytes) -> str:
    return quote(key, safe="/")


def _json(answer: Answer) -> Any:
    if answer.status != 200:
        raise _NoSuchThing
    return _from_json(answer.body.decode())


def _session_in(answer: Answer) -> str:
    session = _json(answer)["ID"]
    if type(session) is not str or not session.isascii() or not session.replace("-", "").isalnum():
        raise ValueError("not a session")
    return session


def _outcome_in(answer: Answer, unread: int) -> list[Entry] | Refused:
    if answer.status == 404:
        raise _NoSuchThing
    outcome = _from_json(answer.body.decode())
    if answer.status == 409:
        return Refused({int(one["OpIndex"]): str(one["What"]) for one in outcome["Errors"]})
    return [_entry(one["KV"]) for one in (outcome["Results"] or ())[unread:]]


def _news_in(answer: Answer) -> News:
    found = [] if answer.status == 404 else [_entry(one) for one in _json(answer)]
    return News(found, _positive(int(answer.headers["x-consul-index"])))


def _keys_in(answer: Answer) -> list[bytes]:
    return [] if answer.status == 404 else [one.encode() for one in _json(answer)]


def _entry(stored: dict[str, Any]) -> Entry:
    packed = stored["Value"]
    value = binascii.a2b_base64(packed, strict_mode=True) if packed else b""
    created, modified = _positive(stored["CreateIndex"]), _positive(stored["ModifyIndex"])
    if created > modified:
        raise ValueError("changed before it was created")
    if created == modified:
        modified = created  # one number for both: thousands who wait keep them
    return Entry(stored["Key"].encode(), created, modified, str(stored.get("Session") or ""), value)


def _positive(index: int) -> int:
    if type(index) is not int or not 0 < index < HIGHEST_INDEX:
        raise ValueError("not an index")
    return index


def blocking_wire(address: Address) -> ConsulWire:
    """For threads."""
    return ConsulWire(address, BlockingSockets())


def asyncio_wire(address: Address) -> ConsulWire:
    """For the tasks of an event loop."""
    from leasehold.wires.sockets_asyncio import AsyncSockets

    return ConsulWire(address, AsyncSockets())
