"""Redis and Valkey, one primary: every operation is one script, and so one atomic step in one round trip."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple, Protocol

from leasehold.core.engine import Busy, Grant, Incumbent, NameStatus, Purpose, Renewal, Suspect, Want
from leasehold.core.worlds import World
from leasehold.engines import redis_scripts as scripts
from leasehold.engines.family import WiredFamily
from leasehold.engines.redis_facts import check_correctness, facts_of, refuse_sentinel
from leasehold.engines.redis_keys import keys_of, name_in, pattern_of
from leasehold.engines.redis_scripts import Script, argument
from leasehold.engines.redis_status import Unreadable, is_idle, status_from
from leasehold.errors import EngineError
from leasehold.wires.redis_replies import ErrorReply, command, error_from, nonsense
from leasehold.wires.redis_target import Target, target_from_url, warn_of_transport
from leasehold.wires.urls import Hidden

RETENTION_MS = 24 * 3600 * 1000
"""How long the token of an idle name is kept."""
HIGHEST_TOKEN = 2**53 - 1
LONGEST_ASK_AGAIN = 75_000_000
LARGEST_PIPELINE = 500
KEYS_AT_A_TIME = 1000
PIPELINE_OF_LOOKS = 100
"""Those who only look do so in smaller pipelines, between which the server serves those who work."""
MOST_REMEMBERED = 1024
"""Names and settings whose form for the protocol is remembered."""
INCUMBENT = [int, bytes, int, int, bytes]
"""Of what the parts of a refusal are that tells who holds the name."""
NOT_OURS = frozenset({"WRONGTYPE", "LEASEHOLD"})
"""Errors that say: another program wrote to this key, so the lease is gone."""


class Wire(Protocol):
    """Our path to the server, in one of the worlds.

    Its methods return the reply, or, where it `suspends`, something to await for it. A reply may be an `ErrorReply`.
    """

    @property
    def suspends(self) -> bool:
        """Whether replies have to be awaited."""
        ...

    @property
    def world(self) -> World:
        """The world that it blocks or suspends in."""
        ...

    read_grant: Callable[[bytes], Grant | None]
    """Called with the token in a wake-up."""

    def ask(self, request: bytes, until: float) -> Any:
        """Send one request."""
        ...

    def ask_all(self, request: bytes, count: int, until: float) -> Any:
        """Send a pipeline; its `count` replies are a list."""
        ...

    def ask_to_queue(self, holder: str, request: bytes, until: float) -> Any:
        """Send a request that lacks its last argument, the address for wake-ups. Refused by a list, expect one."""
        ...

    def ask_to_leave(self, holder: str, request: bytes, until: float) -> Any:
        """Send the last request of a holder."""
        ...

    def wait(self, holder: str, until: float) -> Any:
        """Wait for a holder's wake-up; what `read_grant` makes of the token that it was handed."""
        ...

    def close(self) -> Any:
        """Close connections."""
        ...

    def forked(self) -> None:
        """Let go of connections without a word."""
        ...


class _Form(NamedTuple):
    """The parts of a take that are the same each time, as text in the protocol's form."""

    alone: str
    """Up to the holder, for a caller who does not wait."""
    queue: str
    """Up to the holder, for one who does."""
    terms: str
    """What follows the holder and the floor."""


def _microseconds(seconds: float) -> int:
    return math.ceil(seconds * 1_000_000)


class Seen:
    """The highest token seen from a server: what it mints for us must be above, even if it lost its data."""

    def __init__(self) -> None:
        self.token = 0
        self.argument = argument("0")

    def grant_from(self, text: bytes) -> Grant | None:
        """The grant with the token in a server's answer; None when that is none."""
        token = int(text) if text.isdigit() and len(text) <= 16 else 0
        if not 0 < token <= HIGHEST_TOKEN:
            return None
        if token > self.token:
            # Two threads may do this at once, and the lower token win: until the next grant, a moment later.
            self.token, self.argument = token, f"${len(text)}\r\n{token}\r\n"
        return Grant(token)


class RedisEngine:
    """The operations, the same in both worlds: only the wire differs."""

    def __init__(self, family: RedisFamily, wire: Wire) -> None:
        self.facts = family.facts
        self.world = wire.world
        self._family, self._wire, self._suspends = family, wire, wire.suspends
        self._address = family.facts.address
        self._takes: dict[tuple[object, ...], _Form] = {}
        self._releases: dict[str, str] = {}
        self._seen = family.seen
        wire.read_grant = family.seen.grant_from

    async def take(
        self, want: Want, *, until: float, patience: float | None = None, suspect: Suspect | None = None
    ) -> Grant | Busy:
        """Take the name and mint its token, or say why not; with patience, queue."""
        # No request is kept while its answer is under way, but made again where that is needed: it would be kept by
        # each of thousands of tasks that come to wait at once.
        if patience is None and suspect is None:
            answer = self._wire.ask(self._taking(want).encode(), until)
            reply = await answer if self._suspends else answer
            if type(reply) is ErrorReply:
                reply = await self._once_more(scripts.TAKE, self._taking(want), reply, until)
        else:
            answer = self._wire.ask_to_queue(want.holder, self._queueing(want, patience, suspect).encode(), until)
            reply = await answer if self._suspends else answer
            if type(reply) is ErrorReply:
                again = self._queueing(want, patience, suspect)
                reply = await self._once_more(scripts.TAKE_OR_QUEUE, again, reply, until, want.holder)
        granted_or_busy = self._granted(reply, want.holder) if type(reply) is bytes else _busy(reply)
        if granted_or_busy is None:
            raise await self._failure(reply)
        return granted_or_busy

    def wait(self, want: Want, until: float) -> Coroutine[Any, Any, Grant | None]:
        """Return when the queued asker is woken, or at `until`, with the grant where it was handed the name."""
        # Where it suspends, no coroutine of its own: each of thousands of waiting tasks would keep one.
        return self._wire.wait(want.holder, until) if self._suspends else self._block(want, until)

    async def _block(self, want: Want, until: float) -> Grant | None:
        handed: Grant | None = self._wire.wait(want.holder, until)
        return handed

    async def renew(self, leases: Sequence[Renewal], *, until: float) -> list[bool]:
        """Prolong each lease that is still held, in pipelines."""
        kept: list[bool] = []
        for start in range(0, len(leases), LARGEST_PIPELINE):
            kept += await self._renew_some(leases[start : start + LARGEST_PIPELINE], until)
        return kept

    async def _renew_some(self, leases: Sequence[Renewal], until: float) -> list[bool]:
        requests = [
            self._start(scripts.RENEW, lease.name) + _pack(lease.holder, lease.token, _microseconds(lease.ttl))
            for lease in leases
        ]
        replies = await self._ask_all_of(scripts.RENEW, requests, until)
        return [await self._was_renewed(lease, reply) for lease, reply in zip(leases, replies, strict=True)]

    async def _was_renewed(self, lease: Renewal, reply: Any) -> bool:
        if reply == b"%d" % lease.token:
            return True
        if (type(reply) is int and reply == 0) or (type(reply) is ErrorReply and reply.code in NOT_OURS):
            return False
        raise await self._failure(reply)

    async def release(self, name: str, holder: str, *, until: float) -> bool:
        """Give the name back, and leave its queue."""
        request = f"{self._releases.get(name) or self._release_form(name)}${len(holder)}\r\n{holder}\r\n"
        answer = self._wire.ask_to_leave(holder, request.encode(), until)
        reply = await answer if self._suspends else answer
        if type(reply) is ErrorReply:
            reply = await self._once_more(scripts.RELEASE, request, reply, until)
        if type(reply) is int and reply in {0, 1}:
            return reply == 1
        raise await self._failure(reply)

    async def status(self, name: str, *, until: float) -> NameStatus | None:
        """Who holds and who waits."""
        return self._status(name, await self._run(scripts.STATUS, self._start(scripts.STATUS, name), until))

    async def statuses(self, names: Sequence[str], *, until: float) -> list[NameStatus | None]:
        """Who holds and who waits, for many names, in pipelines."""
        found: list[NameStatus | None] = []
        for start in range(0, len(names), PIPELINE_OF_LOOKS):
            some = names[start : start + PIPELINE_OF_LOOKS]
            requests = [self._start(scripts.STATUS, name) for name in some]
            replies = await self._ask_all_of(scripts.STATUS, requests, until)
            for name, reply in zip(some, replies, strict=True):
                if type(reply) is ErrorReply:
                    raise await self._failure(reply)
                found.append(self._status(name, reply))
        return found

    def _status(self, name: str, reply: Any) -> NameStatus | None:
        try:
            return status_from(name, reply)
        except (Unreadable, ValueError):
            raise nonsense(reply, self._address) from None

    async def names(self, *, after: str | None, limit: int, until: float) -> list[str]:
        """Names that are held or waited for, in the order of their text. Looks through all keys of the database."""
        heads: set[str] = set()
        cursor = "0"
        while True:
            some, cursor = await self._scan(cursor, until)
            heads.update(name for name in some if after is None or name > after)
            if cursor == "0":
                return [one.name for one in await self._busy(sorted(heads), limit, until)]

    async def roll(self, *, at: str, until: float) -> tuple[list[NameStatus], str]:
        """Some of these names, in no order, with who holds and who waits. Looks through as many keys at a time."""
        names, cursor = await self._scan(at or "0", until)
        return await self._busy(names, len(names), until), "" if cursor == "0" else cursor

    async def _scan(self, cursor: str, until: float) -> tuple[list[str], str]:
        """The names among some of the keys of the database, and the cursor of the next ones."""
        namespace = self._family.namespace
        reply = await self._ask(command("SCAN", cursor, "MATCH", pattern_of(namespace), "COUNT", KEYS_AT_A_TIME), until)
        match reply:
            case [bytes() as following, list(keys)] if following.isdigit():
                found = (name_in(key, namespace) for key in keys if isinstance(key, bytes))
                return list(dict.fromkeys(name for name in found if name is not None)), following.decode("ascii")
            case _:
                raise await self._failure(reply)

    async def _busy(self, names: list[str], limit: int, until: float) -> list[NameStatus]:
        """The first of these names that are held or waited for."""
        busy: list[NameStatus] = []
        for start in range(0, len(names), PIPELINE_OF_LOOKS):
            some = names[start : start + PIPELINE_OF_LOOKS]
            requests = ["*2\r\n" + _pack("GET", keys_of(self._family.namespace, name)[0]) for name in some]
            heads = zip(some, await self._ask_all(requests, until), strict=True)
            awake = [name for name, head in heads if head is not None and not (type(head) is bytes and is_idle(head))]
            for status in await self.statuses(awake, until=until):
                if status is not None and (status.holders or status.waiters):
                    busy.append(status)
                    if len(busy) >= limit:
                        return busy
        return busy

    async def force_release(self, name: str, *, until: float) -> int:
        """End every lease on the name and mint a token above theirs."""
        request = self._start(scripts.FORCE_RELEASE, name) + self._seen.argument
        reply = await self._run(scripts.FORCE_RELEASE, request, until)
        granted = self._seen.grant_from(reply) if type(reply) is bytes else None
        if granted is None:
            raise await self._failure(reply)
        return granted.token

    async def check_purpose(self, purpose: Purpose, *, until: float) -> None:
        """Refuse correctness where replicas may be promoted; warn where data may be lost."""
        if purpose != "correctness":
            return
        if self._family.target.service is not None:
            refuse_sentinel(self._address)
        sections = ("replication", "memory", "persistence")
        replies = await self._ask_all(["*2\r\n" + _pack("INFO", section) for section in sections], until)
        check_correctness(self._address, *replies)

    async def close(self) -> None:
        """Give back connections."""
        answer = self._wire.close()
        if self._suspends:
            await answer

    def forked(self) -> None:
        """Let go of every connection of the family: the keeper's, too, has no thread in a child."""
        self._family.forked()

    async def _ask(self, request: bytes, until: float) -> Any:
        answer = self._wire.ask(request, until)
        return await answer if self._suspends else answer

    async def _ask_all(self, requests: list[str], until: float) -> list[Any]:
        answer = self._wire.ask_all("".join(requests).encode(), len(requests), until)
        replies: list[Any] = await answer if self._suspends else answer
        return replies

    async def _ask_all_of(self, script: Script, requests: list[str], until: float) -> list[Any]:
        """The replies to requests that all run one script."""
        replies = await self._ask_all(requests, until)
        unknown = [index for index, reply in enumerate(replies) if _says(reply, "NOSCRIPT")]
        if unknown:
            # The first brings the script along, and the others find it there.
            again = [requests[index] for index in unknown]
            again[0] = script.with_text(again[0])
            for index, reply in zip(unknown, await self._ask_all(again, until), strict=True):
                replies[index] = reply
        return replies

    async def _run(self, script: Script, request: str, until: float) -> Any:
        reply = await self._ask(request.encode(), until)
        return await self._once_more(script, request, reply, until) if type(reply) is ErrorReply else reply

    async def _once_more(
        self, script: Script, request: str, error: ErrorReply, until: float, waiter: str | None = None
    ) -> Any:
        """Bring the script along where the server does not know it, for then nothing was carried out; else raise."""
        if not _says(error, "NOSCRIPT"):
            raise await self._failure(error)
        request_bytes = script.with_text(request).encode()
        if waiter is None:
            reply = await self._ask(request_bytes, until)
        else:
            answer = self._wire.ask_to_queue(waiter, request_bytes, until)
            reply = await answer if self._suspends else answer
        if type(reply) is ErrorReply:
            raise await self._failure(reply)
        return reply

    async def _failure(self, reply: Any) -> EngineError:
        """The error to raise for a reply that is not an answer."""
        if type(reply) is not ErrorReply:
            await self.close()  # whoever says this may say anything
            return nonsense(reply, self._address)
        if _says(reply, "READONLY"):
            await self.close()  # the primary has become a replica: the next request must find the new one
        return error_from(reply, self._address)

    def _granted(self, reply: bytes, holder: str) -> Grant | None:
        """The grant in a reply; None when it is not one, or not for this holder."""
        text, _, to = reply.partition(b" ")
        return self._seen.grant_from(text) if to == holder.encode() else None

    def _start(self, script: Script, name: str) -> str:
        """A request up to its keys."""
        return script.by_digest + _pack(*keys_of(self._family.namespace, name))

    def _taking(self, want: Want) -> str:
        """A request of a caller who does not wait."""
        name, holder, ttl, mode, limit, delay, about = want
        form = self._takes.get((name, ttl, mode, limit, delay, about)) or self._take_form(want)
        return f"{form.alone}${len(holder)}\r\n{holder}\r\n{self._seen.argument}{form.terms}"

    def _queueing(self, want: Want, patience: float | None, suspect: Suspect | None) -> str:
        """A request of one who does."""
        name, holder, ttl, mode, limit, delay, about = want
        form = self._takes.get((name, ttl, mode, limit, delay, about)) or self._take_form(want)
        waiting = _waiting_arguments(patience, suspect)
        return f"{form.queue}${len(holder)}\r\n{holder}\r\n{self._seen.argument}{form.terms}{waiting}"

    def _take_form(self, want: Want) -> _Form:
        if len(self._takes) >= MOST_REMEMBERED:
            self._takes.clear()
        name, _, ttl, mode, limit, delay, about = want
        kept_ms = math.ceil((ttl + delay) * 1000) + RETENTION_MS
        form = self._takes[name, ttl, mode, limit, delay, about] = _Form(
            self._start(scripts.TAKE, name),
            self._start(scripts.TAKE_OR_QUEUE, name),
            _pack(mode, kept_ms, f"{_microseconds(ttl)} {_microseconds(delay)} {about}", limit),
        )
        return form

    def _release_form(self, name: str) -> str:
        if len(self._releases) >= MOST_REMEMBERED:
            self._releases.clear()
        form = self._releases[name] = self._start(scripts.RELEASE, name)
        return form


def _pack(*arguments: str | int) -> str:
    return "".join([argument(str(one)) for one in arguments])


@functools.lru_cache(maxsize=64)
def _waiting_arguments(patience: float | None, suspect: Suspect | None) -> str:
    return _pack(
        "" if patience is None else _microseconds(patience),
        "" if suspect is None else suspect.token,
        "" if suspect is None else suspect.beat,
    )


def _busy(reply: Any) -> Busy | None:
    """The refusal in a reply; None when it is not one."""
    if type(reply) is not list or not reply or type(reply[0]) is not int or not 0 < reply[0] <= LONGEST_ASK_AGAIN:
        return None
    if len(reply) == 1:
        return Busy(reply[0] / 1e6, None)
    # Every one who queues comes by here: to match patterns would take twice as long.
    if [type(part) for part in reply] != INCUMBENT:
        return None
    ask_again, token, beat, lasts, about = reply
    if not token.isdigit() or len(token) > 16 or beat < 0 or lasts < 0:
        return None
    return Busy(ask_again / 1e6, _incumbent(token, beat, lasts, about))


@functools.lru_cache(maxsize=64)
def _incumbent(token: bytes, beat: int, lasts: int, about: bytes) -> Incumbent:
    """Who holds the name; thousands of tasks that wait for it keep one answer between them."""
    return Incumbent(int(token), beat, lasts / 1e6, about.decode("utf-8", "replace"))


def _says(reply: Any, code: str) -> bool:
    return type(reply) is ErrorReply and reply.code == code


class RedisFamily(WiredFamily[RedisEngine, Wire]):
    """One server, or one primary behind Sentinels, and how to reach it in each world."""

    def __init__(self, target: Target, namespace: str, label: str) -> None:
        super().__init__(facts_of(target))
        self.target, self.namespace = target, namespace
        self.seen = Seen()
        self._label = label

    def _blocking_wire(self) -> Wire:
        from leasehold.wires.redis_blocking import BlockingWire

        return BlockingWire(self.target, self._label)

    def _asyncio_wire(self) -> Wire:
        from leasehold.wires.redis_asyncio import AsyncWire

        return AsyncWire(self.target, self._label)

    def _engine_over(self, wire: Wire) -> RedisEngine:
        return RedisEngine(self, wire)


def open_engine(on: str | object, *, namespace: str, client_label: str) -> RedisFamily:
    """Open the engine behind a URL or a redis-py client object. Nothing is sent before the first operation."""
    if isinstance(on, str):
        on = Hidden(on)
        target = target_from_url(on)
    else:
        from leasehold.wires.redis_client import target_from_client

        target = target_from_client(on)
    warn_of_transport(target, stacklevel=4)
    return RedisFamily(target, namespace, client_label)
