"""Idempotency records in Redis or Valkey: one hash a key, one script a step, by the server's clock.

A server that loses its data forgets which operations ran: keep the keys of payments in the database of the payments.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from leasehold.errors import EngineError, EngineUnavailable, Misuse, OutcomeUnknown, quoted
from leasehold.patterns.idempotency.records import Change, Claim, Record
from leasehold.patterns.notes import Note, note_id

_BEGIN: Final = """
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local kept = redis.call('HMGET', KEYS[1], 'state', 'run', 'token', 'fingerprint', 'expires', 'point', 'data', 'result')
local state, run, token, expires = kept[1], kept[2], tonumber(kept[3] or 0), tonumber(kept[5] or 0)
"""
_CLAIM: Final = (
    _BEGIN
    + """
local fingerprint, mine, lease, keep_ms = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local fresh = not state or state == 'released'
local crashed = state == 'running' and expires <= now
local agrees = fresh or kept[4] == '' or fingerprint == '' or kept[4] == fingerprint
if run ~= mine and agrees and (fresh or crashed) then
  token = math.max(token + 1, now)
  redis.call('HSET', KEYS[1], 'state', 'running', 'run', mine, 'token', string.format('%.0f', token),
    'expires', string.format('%.0f', now + lease), 'result', '')
  if fresh then redis.call('HSET', KEYS[1], 'fingerprint', fingerprint, 'point', '', 'data', '') end
  redis.call('PEXPIRE', KEYS[1], keep_ms)
  kept = redis.call('HMGET', KEYS[1], 'state', 'run', 'token', 'fingerprint', 'expires', 'point', 'data', 'result')
end
return {kept[1], kept[2], kept[3], kept[4], string.format('%.0f', kept[5] - now), kept[6], kept[7], kept[8]}
"""
)
_CHANGE: Final = (
    _BEGIN
    + """
if token ~= tonumber(ARGV[1]) then return 0 end
if state ~= 'running' then return (state == ARGV[2] and kept[8] == ARGV[4]) and 1 or 0 end
redis.call('HSET', KEYS[1], 'state', ARGV[2], 'expires', string.format('%.0f', now + ARGV[3]), 'result', ARGV[4])
if ARGV[5] == '1' then redis.call('HSET', KEYS[1], 'point', ARGV[6], 'data', ARGV[7]) end
redis.call('PEXPIRE', KEYS[1], ARGV[8])
return 1
"""
)
_FORGET: Final = (
    _BEGIN
    + """
if not state or state == 'running' or state == 'released' then return 0 end
redis.call('HSET', KEYS[1], 'state', 'released', 'result', '')
return 1
"""
)
NOTE: Final = """
local time = redis.call('TIME')
local kept = redis.call('HMGET', KEYS[1], 'version', 'text')
return {kept[1] or '0', kept[2] or '', time[1], time[2]}
"""
SET_NOTE: Final = """
local version = redis.call('HGET', KEYS[1], 'version') or '0'
if version ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'version', string.format('%.0f', version + 1), 'text', ARGV[2])
return 1
"""


def note_key(name: str) -> str:
    """Where a note is kept."""
    return f"lhn:{{{note_id(name)}}}"


def note_of(answer: list[Any]) -> Note:
    """What the script `NOTE` has found."""
    version, text, seconds, micros = (one.decode() if isinstance(one, bytes) else str(one) for one in answer)
    return Note(int(version), text, int(seconds) + int(micros) / 1e6)


def _key(claim: Claim) -> str:
    return f"lhk:{{{claim.id}}}"


def _kept_for(claim: Claim) -> int:
    return max(int(claim.keep * 1000), 1)


def _claim_arguments(claim: Claim) -> tuple[object, ...]:
    return claim.fingerprint, claim.run, int(claim.lease * 1_000_000), _kept_for(claim)


def _change_arguments(claim: Claim, token: int, change: Change) -> tuple[object, ...]:
    lease, reached = int(change.lease * 1_000_000), int(change.point is not None)
    word = change.point or "", change.data or ""
    return token, change.state, lease, change.result, reached, *word, _kept_for(claim)


def _record(answer: list[Any]) -> Record:
    state, run, token, fingerprint, left, point, data, result = (
        one.decode() if isinstance(one, bytes) else str(one) for one in answer
    )
    return Record(state, run, int(token), fingerprint, int(left) / 1e6, point, data, result)  # type: ignore[arg-type]


def _failure(error: Exception) -> EngineError:
    """What redis-py's own errors mean here; its class tells whether the request can have been carried out."""
    kind = type(error).__name__
    unknown = kind in ("TimeoutError", "ConnectionError")
    return (OutcomeUnknown if unknown else EngineUnavailable)(f"redis: {kind}: {quoted(str(error))}")


class _Scripts:
    """What stores of both worlds have in common."""

    def __init__(self, client: Any) -> None:
        if not hasattr(client, "register_script") or hasattr(client, "command_stack"):
            given = "a URL" if isinstance(client, str) else f"{type(client).__name__}"  # a URL may hold a password
            raise Misuse(f"give an open redis-py client, such as redis.Redis.from_url(…), not {given}")
        self._client = client
        self._claim, self._change, self._forget = map(client.register_script, (_CLAIM, _CHANGE, _FORGET))
        self._note, self._set_note = map(client.register_script, (NOTE, SET_NOTE))

    async def sweep(self, most: int) -> int:
        """Nothing is left to do: the server forgets by itself."""
        return 0 * most


class RedisKeys(_Scripts):
    """Records on the server of a redis-py client (`redis.Redis`)."""

    async def claim(self, claim: Claim) -> Record:
        """See `Store`."""
        return _record(self._ask(self._claim, claim, _claim_arguments(claim)))

    async def change(self, claim: Claim, token: int, change: Change) -> bool:
        """See `Store`."""
        return bool(self._ask(self._change, claim, _change_arguments(claim, token, change)))

    async def forget(self, claim: Claim) -> bool:
        """See `Store`."""
        return bool(self._ask(self._forget, claim, ()))

    def _ask(self, script: Any, claim: Claim, arguments: tuple[object, ...]) -> Any:
        return self._guarded(lambda: script(keys=[_key(claim)], args=arguments))

    async def note(self, name: str) -> Note:
        """See `Notes`."""
        return note_of(self._guarded(lambda: self._note(keys=[note_key(name)])))

    async def set_note(self, name: str, version: int, text: str) -> bool:
        """See `Notes`."""
        return bool(self._guarded(lambda: self._set_note(keys=[note_key(name)], args=(version, text))))

    @staticmethod
    def _guarded(request: Callable[[], Any]) -> Any:
        try:
            return request()
        except Exception as error:
            if not _is_redis_error(error):
                raise
            raise _failure(error) from error

    async def now(self) -> float:
        """See `Store`."""
        seconds, micros = self._guarded(self._client.time)
        return float(seconds + micros / 1e6)

    async def pause(self, seconds: float) -> None:
        """See `Store`."""
        time.sleep(seconds)  # noqa: ASYNC251 - this store blocks


class AsyncRedisKeys(_Scripts):
    """Records on the server of an asyncio redis-py client (`redis.asyncio.Redis`)."""

    async def claim(self, claim: Claim) -> Record:
        """See `Store`."""
        return _record(await self._ask(self._claim, claim, _claim_arguments(claim)))

    async def change(self, claim: Claim, token: int, change: Change) -> bool:
        """See `Store`."""
        return bool(await self._ask(self._change, claim, _change_arguments(claim, token, change)))

    async def forget(self, claim: Claim) -> bool:
        """See `Store`."""
        return bool(await self._ask(self._forget, claim, ()))

    async def _ask(self, script: Any, claim: Claim, arguments: tuple[object, ...]) -> Any:
        return await self._guarded(lambda: script(keys=[_key(claim)], args=arguments))

    async def note(self, name: str) -> Note:
        """See `Notes`."""
        return note_of(await self._guarded(lambda: self._note(keys=[note_key(name)])))

    async def set_note(self, name: str, version: int, text: str) -> bool:
        """See `Notes`."""
        return bool(await self._guarded(lambda: self._set_note(keys=[note_key(name)], args=(version, text))))

    @staticmethod
    async def _guarded(request: Callable[[], Awaitable[Any]]) -> Any:
        try:
            return await request()
        except Exception as error:
            if not _is_redis_error(error):
                raise
            raise _failure(error) from error

    async def now(self) -> float:
        """See `Store`."""
        seconds, micros = await self._guarded(self._client.time)
        return float(seconds + micros / 1e6)

    async def pause(self, seconds: float) -> None:
        """See `Store`."""
        await asyncio.sleep(seconds)


def _is_redis_error(error: Exception) -> bool:
    return any(base.__module__.partition(".")[0] in ("redis", "valkey") for base in type(error).__mro__)
