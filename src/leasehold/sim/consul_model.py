"""What Consul does with the requests of its engine: keys with indexes, sessions, lock-delays and transactions.

Requests and answers are those of its HTTP API. A real agent is driven with the same requests by a test, and has to give
the same answers. Time is passed in, so that the simulator's scheduler decides when a session is over.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

ENDED_AFTER: Final = 2.0
"""A session that is not renewed is ended after this many of its TTLs."""


class Answer(NamedTuple):
    """A status, what it says, and as of which index."""

    status: int
    body: object
    as_of: int = 0


class Refused(Exception):
    """Why an operation of a transaction is not carried out."""


@dataclass(slots=True)
class Stored:
    """A key."""

    key: str
    created: int
    modified: int
    locked: int
    session: str
    value: str | None

    def shown(self, *, with_value: bool = True) -> dict[str, Any]:
        """As the API shows it."""
        shown: dict[str, Any] = {
            "LockIndex": self.locked,
            "Key": self.key,
            "Flags": 0,
            "Value": self.value if with_value else None,
            "CreateIndex": self.created,
            "ModifyIndex": self.modified,
        }
        return shown | ({"Session": self.session} if self.session else {})


@dataclass(slots=True)
class Session:
    """A client, as the leader knows it."""

    ttl: float
    delay: float
    deletes: bool
    expires: float
    keys: dict[str, None] = field(default_factory=dict)


class Consul:
    """One datacenter, which is never of two minds."""

    def __init__(self, *, index: int = 10) -> None:
        self.index = index
        self.keys: dict[str, Stored] = {}
        self.sessions: dict[str, Session] = {}
        self.closed: dict[str, float] = {}
        """Until when a lock-delay keeps a key from being locked."""
        self._deleted: dict[str, int] = {}
        """When keys that are gone went."""
        self._latest = index
        """When a key was last changed at all."""
        self._made = 0

    def ask(self, method: str, target: str, body: bytes, now: float) -> Answer:
        """Carry out a request that does not wait."""
        path, _, query = target.partition("?")
        if method == "GET" and path.startswith("/v1/kv/"):
            return self.look(unquote(path.removeprefix("/v1/kv/")), recurse="recurse" in query.split("&"))
        if path == "/v1/txn":
            return self._txn(json.loads(body), now)
        if path == "/v1/session/create":
            return self._create(json.loads(body), now)
        kind, _, session = path.removeprefix("/v1/session/").partition("/")
        if kind == "renew":
            return self._renew(session, now)
        if kind == "destroy":
            if session in self.sessions:
                self.end(session, now)
            return Answer(200, True)
        return Answer(404, "no such thing in the model")

    # Sessions

    def _create(self, wanted: dict[str, Any], now: float) -> Answer:
        self.index += 1
        self._made += 1
        number = f"{self._made:08x}-0000-0000-0000-000000000000"
        ttl = _seconds(wanted["TTL"])
        deletes = wanted["Behavior"] == "delete"
        self.sessions[number] = Session(ttl, _seconds(wanted["LockDelay"]), deletes, now + ttl * ENDED_AFTER)
        return Answer(200, {"ID": number})

    def _renew(self, number: str, now: float) -> Answer:
        session = self.sessions.get(number)
        if session is None:
            return Answer(404, f"Session id '{number}' not found")
        session.expires = now + session.ttl * ENDED_AFTER
        return Answer(200, [{"ID": number}])

    def end(self, number: str, now: float) -> None:
        """End a session: its keys go, or stay without it; and its lock-delay begins."""
        session = self.sessions.pop(number)
        self.index += 1
        for key in list(session.keys):
            stored = self.keys[key]
            if session.delay:
                self.closed[key] = now + session.delay
            if session.deletes:
                self._delete(key)
            else:
                stored.session, stored.modified = "", self.index
                self._latest = self.index

    def new_leader(self, now: float) -> None:
        """A leader that was just elected starts the clock of every session anew."""
        for session in self.sessions.values():
            session.expires = now + session.ttl * ENDED_AFTER

    def overdue(self, now: float) -> Iterator[str]:
        """Sessions whose time is over."""
        return iter([number for number, session in self.sessions.items() if session.expires <= now])

    # Keys

    def look(self, key: str, *, recurse: bool) -> Answer:
        """A key, or all that begin so; with the index to wait for news after."""
        found = [one for name, one in sorted(self.keys.items()) if (name.startswith(key) if recurse else name == key)]
        if recurse:
            gone = [index for name, index in self._deleted.items() if name.startswith(key)]
            index = max([one.modified for one in found] + gone, default=self._latest)
        else:
            index = found[0].modified if found else self._latest
        return Answer(200 if found else 404, [one.shown() for one in found] if found else "", index)

    def _delete(self, key: str) -> None:
        stored = self.keys.pop(key, None)
        if stored is not None:
            self._let_go(stored)
            self._deleted[key] = self._latest = self.index

    def _let_go(self, stored: Stored) -> None:
        session = self.sessions.get(stored.session)
        if session is not None:
            session.keys.pop(stored.key, None)

    def _txn(self, operations: list[dict[str, Any]], now: float) -> Answer:
        """Carry out all operations, or none. The leader looks at lock-delays before anything else."""
        delayed = [
            {"OpIndex": number, "What": f'failed to lock key "{one["KV"]["Key"]}" due to lock delay'}
            for number, one in enumerate(operations)
            if one["KV"]["Verb"] == "lock" and self.closed.get(one["KV"]["Key"], now) > now
        ]
        if delayed:
            return Answer(409, {"Results": None, "Errors": delayed})
        kept = {key: Stored(one.key, one.created, one.modified, one.locked, one.session, one.value)
                for key, one in self.keys.items()}  # fmt: skip
        on = {number: dict(session.keys) for number, session in self.sessions.items()}
        deleted, latest = dict(self._deleted), self._latest
        if any(one["KV"]["Verb"] not in ("get", "get-tree") for one in operations):
            self.index += 1  # also what is refused has its index
        results: list[dict[str, Any]] = []
        errors: list[dict[str, Any]] = []
        for number, operation in enumerate(operations):
            try:
                results += [{"KV": shown} for shown in self._carry_out(operation["KV"])]
            except Refused as refused:
                errors.append({"OpIndex": number, "What": str(refused)})
        if not errors:
            return Answer(200, {"Results": results, "Errors": None})
        self.keys, self._deleted, self._latest = kept, deleted, latest
        for session, keys in on.items():
            self.sessions[session].keys = keys
        return Answer(409, {"Results": None, "Errors": errors})

    def _carry_out(self, asked: dict[str, Any]) -> list[dict[str, Any]]:
        verb, key = asked["Verb"], asked["Key"]
        stored = self.keys.get(key)
        if verb == "delete-cas" and stored is not None and stored.modified != asked["Index"]:
            raise Refused(f'failed to delete key "{key}", index is stale')
        if verb in ("delete", "delete-cas"):
            self._delete(key)
            return []
        if verb in ("get", "get-tree"):
            if verb == "get" and stored is None:
                raise Refused(f'key "{key}" doesn\'t exist')
            found = [one for name, one in sorted(self.keys.items()) if name.startswith(key)]
            return [one.shown() for one in (found if stored is None or verb == "get-tree" else [stored])]
        if verb == "lock":
            stored = self._lock(key, stored, asked)
        elif verb == "set":
            stored = self._put(key, asked["Value"], stored.session if stored is not None else "")
        elif stored is None or not stored.session or stored.session != asked["Session"]:
            raise Refused(f'failed to {verb} key "{key}": it isn\'t held, or is held by another session')
        elif verb == "unlock":
            self._let_go(stored)
            self._put(key, asked["Value"], "")
        return [stored.shown(with_value=False)]

    def _lock(self, key: str, stored: Stored | None, asked: dict[str, Any]) -> Stored:
        session = asked["Session"]
        if session not in self.sessions:
            raise Refused("failed to acquire lock: invalid session")
        if stored is not None and stored.session not in ("", session):
            raise Refused(f'failed to lock key "{key}", lock is already held')
        fresh = stored is None or not stored.session
        stored = self._put(key, asked["Value"], session)
        stored.locked += fresh
        self.sessions[session].keys[key] = None
        return stored

    def _put(self, key: str, value: str, session: str) -> Stored:
        """Write a key; what is there just so already is not written again, and keeps its index."""
        stored = self.keys.get(key)
        if stored is None:
            stored = self.keys[key] = Stored(key, self.index, self.index, 0, "", None)
        elif (stored.value, stored.session) == (value or None, session):
            return stored
        stored.modified, stored.value, stored.session = self.index, value or None, session
        self._latest = self.index
        return stored


def _seconds(duration: str) -> float:
    return float(duration.removesuffix("ms")) / 1000
