"""Redis and Valkey, one primary: every operation is one script, and so one atomic step in one round trip."""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Sequence
from typing import Any, Protocol

from leasehold.core.engine import Busy, Grant, Incumbent, NameStatus, Purpose, Renewal, Suspect, Want
from leasehold.core.worlds import World
from leasehold.engines import redis_scripts as scripts
from leasehold.engines.redis_facts import check_correctness, facts_of, refuse_sentinel
from leasehold.engines.redis_keys import keys_of, name_in, pattern_of
from leasehold.engines.redis_scripts import Script
from leasehold.engines.redis_status import Unreadable, may_be_idle, status_from
from leasehold.errors import EngineError
from leasehold.wires.redis_replies import ErrorReply, bulk, command, error_from, nonsense
from leasehold.wires.redis_target import Hidden, Target, target_from_url, warn_of_transport

RETENTION_MS = 24 * 3600 * 1000
"""How long the token of an idle name is kept."""
HIGHEST_TOKEN = 2**53 - 1
LONGEST_ASK_AGAIN = 45_000_000
LARGEST_PIPELINE = 500
MOST_REMEMBERED = 1024
"""Names and settings whose form for the protocol is remembered."""
NOT_OURS = frozenset({"WRONGTYPE", "LEASEHOLD"})
"""Errors that say: another program wrote to this key, so the lease is gone."""


class Wire(Protocol):
    """Our path to the server, in one of the worlds. A reply may be an `ErrorReply`."""

    @property
    def world(self) -> World:
        """The world that it blocks or suspends in."""
        ...

    async def ask(self, request: bytes, until: float) -> Any:
        """Send one request."""
        ...

    async def ask_all(self, requests: list[bytes], until: float) -> list[Any]:
        """Send a pipeline."""
        ...

    async def ask_to_queue(self, holder: str, request: bytes, until: float) -> Any:
        """Send a request that lacks its last argument, the address for wake-ups. Refused by a list, expect one."""
        ...

    async def ask_to_leave(self, holder: str, request: bytes, until: float) -> Any:
        """Send the last request of a holder."""
        ...

    async def wait(self, holder: str, until: float) -> None:
        """Wait for a holder's wake-up."""
        ...

    async def close(self) -> None:
        """Close connections."""
        ...

    def forked(self) -> None:
        """Let go of connections without a word."""
        ...


def _microseconds(seconds: float) -> int:
    return math.ceil(seconds * 1_000_000)


class RedisEngine:
    """The operations, the same in both worlds: only the wire differs."""

    def __init__(self, family: RedisFamily, wire: Wire) -> None:
        self.facts = family.facts
        self.world = wire.world
        self._family, self._wire, self._address = family, wire, family.facts.address
        self._keys: dict[str, bytes] = {}
        self._terms: dict[tuple[object, ...], bytes] = {}

    async def take(
        self, want: Want, *, until: float, patience: float | None = None, suspect: Suspect | None = None
    ) -> Grant | Busy:
        """Take the name and mint its token, or say why not; with patience, queue."""
        holder, floor = want.holder.encode(), b"%d" % self._family.floor
        terms = self._terms.get((want.ttl, want.mode, want.limit, want.delay, want.about)) or self._pack_terms(want)
        rest = b"%b$%d\r\n%b\r\n$%d\r\n%b\r\n%b" % (
            self._keys.get(want.name) or self._pack_keys(want.name),
            len(holder),
            holder,
            len(floor),
            floor,
            terms,
        )
        if patience is None and suspect is None:
            reply = await self._wire.ask(scripts.TAKE.by_digest + rest, until)
            if type(reply) is ErrorReply:
                reply = await self._recover(scripts.TAKE, rest, reply, until)
        else:
            rest += _pack(
                "" if patience is None else _microseconds(patience),
                "" if suspect is None else suspect.token,
                "" if suspect is None else suspect.beat,
            )
            reply = await self._wire.ask_to_queue(want.holder, scripts.TAKE_OR_QUEUE.by_digest + rest, until)
            if type(reply) is ErrorReply:
                reply = await self._recover(scripts.TAKE_OR_QUEUE, rest, reply, until, queue=want.holder)
        return Grant(self._token(reply)) if type(reply) is bytes else self._busy(reply)

    async def wait(self, want: Want, until: float) -> None:
        """Return when the queued asker is woken, or at `until`."""
        await self._wire.wait(want.holder, until)

    async def renew(self, leases: Sequence[Renewal], *, until: float) -> list[bool]:
        """Prolong each lease that is still held, in pipelines."""
        kept: list[bool] = []
        for start in range(0, len(leases), LARGEST_PIPELINE):
            kept += await self._renew_some(leases[start : start + LARGEST_PIPELINE], until)
        return kept

    async def _renew_some(self, leases: Sequence[Renewal], until: float) -> list[bool]:
        requests = [
            (self._keys.get(lease.name) or self._pack_keys(lease.name))
            + _pack(lease.holder, lease.token, _microseconds(lease.ttl))
            for lease in leases
        ]
        replies = await self._wire.ask_all([scripts.RENEW.by_digest + request for request in requests], until)
        unknown = [index for index, reply in enumerate(replies) if _says(reply, "NOSCRIPT")]
        if unknown:
            # The first brings the script along, and the others find it there.
            again = [scripts.RENEW.by_digest + requests[index] for index in unknown]
            again[0] = scripts.RENEW.by_text + requests[unknown[0]]
            for index, reply in zip(unknown, await self._wire.ask_all(again, until), strict=True):
                replies[index] = reply
        return [await self._yes_or_no(reply) for reply in replies]

    async def release(self, name: str, holder: str, *, until: float) -> bool:
        """Give the name back, and leave its queue."""
        text = holder.encode()
        rest = b"%b$%d\r\n%b\r\n" % (self._keys.get(name) or self._pack_keys(name), len(text), text)
        reply = await self._wire.ask_to_leave(holder, scripts.RELEASE.by_digest + rest, until)
        if type(reply) is ErrorReply:
            reply = await self._recover(scripts.RELEASE, rest, reply, until)
        return await self._yes_or_no(reply)

    async def status(self, name: str, *, until: float) -> NameStatus | None:
        """Who holds and who waits."""
        reply = await self._run(scripts.STATUS, self._pack_keys(name), until)
        try:
            return status_from(name, reply)
        except (Unreadable, ValueError):
            raise nonsense(reply, self._address) from None

    async def names(self, *, after: str | None, limit: int, until: float) -> list[str]:
        """Names that are held or waited for, in the order of their text. Looks through all keys of the database."""
        namespace = self._family.namespace
        heads: set[str] = set()
        cursor = b"0"
        while True:
            reply = await self._wire.ask(command("SCAN", cursor, "MATCH", pattern_of(namespace), "COUNT", 1000), until)
            match reply:
                case [bytes() as cursor, list(keys)]:
                    found = (name_in(key, namespace) for key in keys if isinstance(key, bytes))
                    heads.update(name for name in found if name is not None and (after is None or name > after))
                case _:
                    raise await self._failure(reply)
            if cursor == b"0":
                break
        return await self._busy_names(sorted(heads), limit, until)

    async def _busy_names(self, names: list[str], limit: int, until: float) -> list[str]:
        """The first of these names that are held or waited for."""
        busy: list[str] = []
        for start in range(0, len(names), LARGEST_PIPELINE):
            some = names[start : start + LARGEST_PIPELINE]
            requests = [command("GET", keys_of(self._family.namespace, name)[0]) for name in some]
            for name, head in zip(some, await self._wire.ask_all(requests, until), strict=True):
                if head is None or (isinstance(head, bytes) and may_be_idle(head)):
                    continue
                status = await self.status(name, until=until)
                if status is not None and (status.holders or status.waiters):
                    busy.append(name)
                    if len(busy) >= limit:
                        return busy
        return busy

    async def force_release(self, name: str, *, until: float) -> int:
        """End every lease on the name and mint a token above theirs."""
        rest = self._pack_keys(name) + _pack(self._family.floor)
        return self._token(await self._run(scripts.FORCE_RELEASE, rest, until))

    async def check_purpose(self, purpose: Purpose, *, until: float) -> None:
        """Refuse correctness where replicas may be promoted; warn where data may be lost."""
        if purpose != "correctness":
            return
        if self._family.target.service is not None:
            refuse_sentinel(self._address)
        sections = ("replication", "memory", "persistence")
        answers = await self._wire.ask_all([command("INFO", section) for section in sections], until)
        check_correctness(self._address, *answers)

    async def close(self) -> None:
        """Give back connections."""
        await self._wire.close()

    def forked(self) -> None:
        """Let go of every connection of the family: the keeper's, too, has no thread in a child."""
        self._family.forked()

    async def _run(self, script: Script, rest: bytes, until: float) -> Any:
        reply = await self._wire.ask(script.by_digest + rest, until)
        return await self._recover(script, rest, reply, until) if type(reply) is ErrorReply else reply

    async def _recover(
        self, script: Script, rest: bytes, error: ErrorReply, until: float, *, queue: str | None = None
    ) -> Any:
        """Bring the script along where the server does not know it, for then nothing was carried out; else raise."""
        if not _says(error, "NOSCRIPT"):
            raise await self._failure(error)
        if queue is None:
            reply = await self._wire.ask(script.by_text + rest, until)
        else:
            reply = await self._wire.ask_to_queue(queue, script.by_text + rest, until)
        if type(reply) is ErrorReply:
            raise await self._failure(reply)
        return reply

    async def _failure(self, reply: Any) -> EngineError:
        """The error to raise for a reply that is not an answer."""
        if type(reply) is not ErrorReply:
            return nonsense(reply, self._address)
        if _says(reply, "READONLY"):
            # The primary has become a replica: the next request must find the new one.
            await self._wire.close()
        return error_from(reply, self._address)

    async def _yes_or_no(self, reply: Any) -> bool:
        if type(reply) is int and reply in {0, 1}:
            return reply == 1
        if type(reply) is ErrorReply and reply.code in NOT_OURS:
            return False
        raise await self._failure(reply)

    def _token(self, reply: Any) -> int:
        if type(reply) is not bytes or not reply.isdigit() or not 0 < (token := int(reply[:17])) <= HIGHEST_TOKEN:
            raise nonsense(reply, self._address)
        if token > self._family.floor:
            self._family.raise_floor(token)
        return token

    def _busy(self, reply: Any) -> Busy:
        match reply:
            case [int(ask_again)] if 0 < ask_again <= LONGEST_ASK_AGAIN:
                return Busy(ask_again / 1e6, None)
            case [int(ask_again), bytes(token), int(beat), int(lasts), bytes(about)] if (
                0 < ask_again <= LONGEST_ASK_AGAIN and token.isdigit() and beat >= 0 and lasts >= 0
            ):
                incumbent = Incumbent(int(token[:17]), beat, lasts / 1e6, about.decode("utf-8", "replace"))
                return Busy(ask_again / 1e6, incumbent)
        raise nonsense(reply, self._address)

    def _pack_keys(self, name: str) -> bytes:
        if len(self._keys) >= MOST_REMEMBERED:
            self._keys.clear()
        packed = self._keys[name] = b"".join(map(bulk, keys_of(self._family.namespace, name)))
        return packed

    def _pack_terms(self, want: Want) -> bytes:
        if len(self._terms) >= MOST_REMEMBERED:
            self._terms.clear()
        packed = self._terms[want.ttl, want.mode, want.limit, want.delay, want.about] = _pack(
            want.mode,
            _microseconds(want.ttl),
            want.limit,
            _microseconds(want.delay),
            want.about,
            math.ceil((want.ttl + want.delay) * 1000) + RETENTION_MS,
        )
        return packed


def _pack(*arguments: str | int) -> bytes:
    return b"".join([bulk(str(argument).encode()) for argument in arguments])


def _says(reply: Any, code: str) -> bool:
    return type(reply) is ErrorReply and reply.code == code


class RedisFamily:
    """One server, or one primary behind Sentinels, and how to reach it in each world."""

    def __init__(self, target: Target, namespace: str, label: str) -> None:
        self.facts = facts_of(target)
        self.target, self.namespace = target, namespace
        self.floor = 0
        """The highest token seen from this server: what it mints for us must be above, even if it lost its data."""
        self._raising = threading.Lock()
        self._label = label
        self._wires: weakref.WeakSet[Wire] = weakref.WeakSet()

    def __repr__(self) -> str:
        return f"<RedisFamily {self.facts.address}>"

    def blocking(self) -> RedisEngine:
        """An engine whose operations block. Threads may share it."""
        from leasehold.wires.redis_blocking import BlockingWire

        return self._engine(BlockingWire(self.target, self._label))

    def asyncio(self) -> RedisEngine:
        """An engine for the running event loop. Tasks may share it."""
        from leasehold.wires.redis_asyncio import AsyncWire

        return self._engine(AsyncWire(self.target, self._label))

    def _engine(self, wire: Wire) -> RedisEngine:
        self._wires.add(wire)
        return RedisEngine(self, wire)

    def raise_floor(self, token: int) -> None:
        """Take note of a token; threads may do so at the same time."""
        with self._raising:
            self.floor = max(self.floor, token)

    def forked(self) -> None:
        """In a forked child: let go of every inherited connection, of whichever engine."""
        self._raising = threading.Lock()
        for wire in list(self._wires):
            wire.forked()


def open_engine(on: str | object, *, namespace: str, client_label: str) -> RedisFamily:
    """Open the engine behind a URL or a redis-py client object. Nothing is sent before the first operation."""
    if isinstance(on, str):
        on = Hidden(on)
        target = target_from_url(on)
    else:
        from leasehold.wires.redis_client import target_from_client

        target = target_from_client(on)
    warn_of_transport(target, stacklevel=2)
    return RedisFamily(target, namespace, client_label)
