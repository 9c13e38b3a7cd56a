"""An inbox in Redis or Valkey: a list for each partition, and one script an operation.

All of a group is in one slot of a Cluster. A server that loses its data loses messages: keep those that matter in a
database, or with ``appendfsync always``.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import threading
from typing import Any, Final

from leasehold.errors import KeyReused, QueueFull, quoted
from leasehold.fences.redis import RedisFence
from leasehold.fences.rule import HasToken
from leasehold.names import check_wait
from leasehold.patterns.partitions.bells import LISTEN_FOR, Bell, Ring, keep_listening
from leasehold.patterns.partitions.entities import Entities
from leasehold.patterns.partitions.inbox import (
    BATCH,
    MOST_TRIES,
    MOST_WAITING,
    REMEMBER,
    Message,
    Parked,
    check_entity,
    key_of,
    packed,
)

RESENT_WITHIN: Final = 60.0
"""Seconds after which redis-py does not send a request again any more."""

# An entry is its number, a space, and JSON. Only the first of a list is ever removed, by whoever shows its number.
# Who may not publish may put all the same: nobody is woken then, and the message is found by looking.
_PUT: Final = """
local queue, numbers, waiting, key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local known = redis.call('HMGET', key, 'seq', 'fingerprint')
if known[1] then return known end
if redis.call('LLEN', queue) >= tonumber(ARGV[1]) then return {'0', ''} end
local seq = string.format('%.0f', redis.call('HINCRBY', numbers, ARGV[2], 1))
redis.call('RPUSH', queue, seq .. ' ' .. ARGV[3])
redis.call('SADD', waiting, ARGV[2])
redis.call('HSET', key, 'seq', seq, 'fingerprint', ARGV[4])
redis.call('PEXPIRE', key, ARGV[5])
redis.pcall('PUBLISH', ARGV[6], '')
return {seq, ARGV[4]}
"""
_TAKE: Final = """
return {redis.call('LRANGE', KEYS[1], 0, ARGV[1] - 1), redis.call('HGET', KEYS[2], ARGV[2]) or '0'}
"""
_REMOVE: Final = """
local queue, tries, waiting = KEYS[1], KEYS[2], KEYS[3]
local first = redis.call('LINDEX', queue, 0)
local function is_first()
  return first and string.sub(first, 1, #ARGV[1] + 1) == ARGV[1] .. ' '
end
local function remove()
  redis.call('LPOP', queue)
  redis.call('HDEL', tries, ARGV[2])
  if redis.call('LLEN', queue) == 0 then redis.call('SREM', waiting, ARGV[2]) end
end
"""
_ACKNOWLEDGE: Final = (
    _REMOVE
    + """
if is_first() then remove() end
return 1
"""
)
_FAIL: Final = (
    _REMOVE
    + """
if not is_first() then return 0 end
if redis.call('HINCRBY', tries, ARGV[2], 1) < tonumber(ARGV[3]) then return 0 end
local now = redis.call('TIME')
redis.call('ZADD', KEYS[4], now[1] .. '.' .. string.format('%06d', now[2]), ARGV[2] .. ' ' .. ARGV[4] .. ' ' .. first)
remove()
return 1
"""
)
_SWEEP: Final = """
local now = redis.call('TIME')
return redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now[1] + now[2] / 1000000 - ARGV[1])
"""


class RedisInbox:
    """An inbox on the server of a redis-py client (`redis.Redis`). Threads may share it."""

    def __init__(
        self,
        entities: Entities,
        client: Any,
        *,
        most_waiting: int = MOST_WAITING,
        most_tries: int = MOST_TRIES,
        remember: float = REMEMBER,
    ) -> None:
        """Refuse messages while `most_waiting` wait in one partition; put one aside that failed `most_tries` times.

        Keys are known for `remember` seconds.
        """
        self._entities, self._client, self._fence = entities, client, RedisFence(client)
        self._most_waiting, self._most_tries = most_waiting, most_tries
        self._remember = check_wait(remember, what="remember")
        self._bell = Bell()
        self._base = f"lhi:{{{hashlib.blake2b(entities.group.encode(), digest_size=16).hexdigest()}}}:"
        self._put, self._sweep = client.register_script(_PUT), client.register_script(_SWEEP)

    def put(self, entity: str, payload: object, *, key: str | None = None) -> int:
        """See `Inbox`."""
        place = self._entities.partition_of(entity)
        text = json.dumps([check_entity(entity), packed(payload)])
        # Without a key of the caller's it has one of ours, because redis-py sends a request again by itself.
        named = key_of(key or secrets.token_hex(16), entity, text)
        assert named is not None
        keys = [self._queue(place), f"{self._base}numbers", f"{self._base}waiting", f"{self._base}key:{named.name}"]
        known_for = max(int((self._remember if key is not None else RESENT_WITHIN) * 1000), 1)
        args = [self._most_waiting, place, text, named.fingerprint, known_for, self._channel]
        seq, fingerprint = (_text(one) for one in self._put(keys=keys, args=args))
        if seq == "0":
            raise QueueFull(f"partition {place} of the inbox {quoted(self._entities.group)}", self._most_waiting)
        if key is not None and fingerprint != named.fingerprint:
            raise KeyReused(key)
        self._bell.ring()
        return int(seq)

    def listen(self, ring: Ring, over: threading.Event) -> None:
        """See `Inbox`."""

        def hear() -> None:
            with self._client.pubsub(ignore_subscribe_messages=True) as channel:
                channel.subscribe(self._channel)
                channel.get_message(timeout=LISTEN_FOR)
                ring()  # for what came before this
                while not over.is_set():
                    if channel.get_message(timeout=LISTEN_FOR) is not None:
                        ring()

        with self._bell.heard(ring):
            keep_listening(hear, over)

    def waiting(self) -> list[int]:
        """See `Inbox`."""
        return sorted(int(place) for place in self._client.smembers(f"{self._base}waiting"))

    def take(self, partition: int, token: int | HasToken, most: int = BATCH) -> list[Message]:
        """See `Inbox`."""
        keys = [self._queue(partition), f"{self._base}tries"]
        entries, tries = self._fence.run(self._queue(partition), token, _TAKE, keys=keys, args=[most, partition])
        return [self._message(partition, _text(entry), int(tries) if not at else 0) for at, entry in enumerate(entries)]

    def acknowledge(self, message: Message, token: int | HasToken) -> None:
        """See `Inbox`."""
        self._fenced(_ACKNOWLEDGE, message, token)

    def fail(self, message: Message, token: int | HasToken, error: str) -> bool:
        """See `Inbox`."""
        return bool(self._fenced(_FAIL, message, token, self._most_tries, json.dumps(error).replace(" ", "\\u0020")))

    def parked(self, most: int = BATCH) -> list[Parked]:
        """See `Inbox`."""
        found = []
        for entry in self._client.zrange(f"{self._base}parked", 0, most - 1):
            place, error, seq, stored = _text(entry).split(" ", 3)
            entity, payload = json.loads(stored)
            found.append(Parked(int(place), int(seq), entity, json.loads(payload), json.loads(error)))
        return found

    def sweep(self, older_than: float) -> int:
        """See `Inbox`."""
        age = check_wait(older_than, what="older_than")
        return int(self._sweep(keys=[f"{self._base}parked"], args=[age]))

    def _fenced(self, script: str, message: Message, token: int | HasToken, *more: str | int) -> Any:
        queue = self._queue(message.partition)
        keys = [queue, f"{self._base}tries", f"{self._base}waiting", f"{self._base}parked"]
        return self._fence.run(queue, token, script, keys=keys, args=[message.seq, message.partition, *more])

    def _message(self, partition: int, entry: str, tries: int) -> Message:
        seq, _, stored = entry.partition(" ")
        entity, payload = json.loads(stored)
        return Message(partition, int(seq), entity, payload, tries)

    @property
    def _channel(self) -> str:
        return f"{self._base}bell"

    def _queue(self, partition: int) -> str:
        return f"{self._base}{partition}"


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
