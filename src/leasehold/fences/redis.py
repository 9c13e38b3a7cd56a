"""Fences for what is kept in Redis or Valkey: check and write are one script.

Both take an open client of redis-py (or of a library shaped like it, such as valkey-py) and use nothing of it but its
scripts, so that no client library is imported here.

    fence = RedisFence(redis.Redis())
    fence.set("account:42", lease, b"100")

The floor of a resource is a small hash in the same slot of a Cluster as the resource itself.
"""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from leasehold.errors import InvalidName, Misuse, StaleToken, quoted
from leasehold.fences.rule import DAY, NEVER, Claim, HasToken, Rule
from leasehold.names import LONGEST_TTL, check_name

Value = str | bytes | int | float

FLOORS = "leasehold:fence:"
"""Every floor's key starts with this: nobody but a fence should be allowed to write there."""

_CENTURY = 36_525 * 86_400.0

# Tokens stay text: Lua's numbers are doubles, which cannot tell 2**53 from 2**53 + 1. Longer is greater, and of the
# same length the later in the order of digits is; the empty text stands for "never". The floor is raised before the
# work, so that work never happens where the floor cannot be raised; the mark of a writer comes after it, so that work
# that failed can be done again.
_CHECK = """
local floor, token, lowest, most_written, mark, retention = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local function below(a, b)
  return #a < #b or (#a == #b and a < b)
end
local marks = redis.call('HMGET', floor, 'token', 'written')
local seen, written = marks[1] or '', marks[2] or ''
if below(token, seen) or below(seen, lowest) or below(most_written, written) then
  return {0, seen, written}
end
if seen ~= token then
  redis.call('HSET', floor, 'token', token)
  redis.call('PERSIST', floor)
end
if retention ~= '' then
  redis.call('PEXPIRE', floor, retention)
end
local result = (function(KEYS, ARGV)
"""
_CONCLUSION = """
end)({unpack(KEYS, 2)}, {unpack(ARGV, 6)})
if type(result) == 'table' and result.err then
  return result
end
if below(written, mark) then
  redis.call('HSET', floor, 'written', mark)
end
return {1, result}
"""
_ONE_COMMAND = "return redis.call(ARGV[1], KEYS[1], unpack(ARGV, 2))"
_NOTHING = "return false"
_READ_FLOOR = "return redis.call('HGET', KEYS[1], 'token')"


class Script(Protocol):
    """A script that a client knows: called with keys and arguments, it answers or returns something to await."""

    def __call__(self, keys: Sequence[str], args: Sequence[Value]) -> Any:
        """Run it on the server."""
        ...


class ScriptingClient(Protocol):
    """All that a fence asks of a client."""

    def register_script(self, script: str) -> Script:
        """Prepare a script, which the client loads when the server does not know it (any more)."""
        ...


class _Request(NamedTuple):
    """A claim and what is to be done under it, ready to be sent."""

    claim: Claim
    script: Script
    keys: list[str]
    args: list[Value]

    def result(self, reply: Any) -> Any:
        """Return what the work returned, or raise the reason for which it was refused."""
        accepted, *rest = reply
        if accepted:
            return rest[0] if rest else None
        refusal = self.claim.refusal(*(int(mark) if mark else NEVER for mark in rest))
        raise refusal or Misuse("the fence's script refused what the rule accepts; is its floor key written by others?")


def floor_key(resource: str) -> str:
    """Return the key that holds a resource's floor; a Cluster keeps it where it keeps the resource."""
    check_name(resource, what="resource")
    if resource.startswith(FLOORS):
        raise InvalidName(
            f"resource {quoted(resource)} is the key of a floor; keys under {FLOORS} belong to the fences"
        )
    _, _, after_brace = resource.partition("{")
    tag, closed, _ = after_brace.partition("}")
    if tag and closed:
        return f"{FLOORS}{{{tag}}}:{resource}"
    if "}" in resource:
        raise InvalidName(
            f"resource {quoted(resource)} has a '}}' but no hash tag, so no other key can share its slot in a Cluster; "
            "leave the '}' out, or put a part of the name in braces"
        )
    return f"{FLOORS}{{{resource}}}"


def _milliseconds(seconds: float, *, what: str, least: float) -> int:
    number = type(seconds) in (int, float) and math.isfinite(seconds)
    if not number or not least <= seconds <= _CENTURY:
        raise Misuse(f"{what} must be a number of seconds from {least:g} to {_CENTURY:g}, not {quoted(seconds)}")
    return round(seconds * 1000)


class _Fence:
    """What the blocking and the asyncio fence share: everything but the waiting."""

    _ASYNC: bool

    def __init__(self, client: ScriptingClient, *, keep_floors: float | None = None, jump_limit: int = DAY) -> None:
        """Nothing is sent yet. `keep_floors`: for how many seconds an untouched floor is kept; None means for ever."""
        if not hasattr(client, "register_script") or hasattr(client, "command_stack"):
            raise Misuse("give an open redis-py client; a pipeline cannot serve, since its answers come too late")
        self._client, self._rule = client, Rule(jump_limit)
        self._retention: Value = ""
        if keep_floors is not None:
            self._retention = _milliseconds(keep_floors, what="keep_floors", least=LONGEST_TTL)
        self._one_command = client.register_script(_CHECK + _ONE_COMMAND + _CONCLUSION)
        self._nothing = client.register_script(_CHECK + _NOTHING + _CONCLUSION)
        self._read_floor = client.register_script(_READ_FLOOR)
        if inspect.iscoroutinefunction(type(self._nothing).__call__) is not self._ASYNC:
            kind, right = ("blocking", "RedisFence") if self._ASYNC else ("an asyncio one", "AsyncRedisFence")
            raise Misuse(f"this client is {kind}; give it to {right}")

    def _write(self, resource: str, token: int | HasToken, *command: Value, once: bool, allow_jump: bool) -> _Request:
        claim = self._rule.claim(resource, token, writes=True, once=once, allow_jump=allow_jump)
        return self._request(claim, self._one_command, [resource], command)

    def _read(self, resource: str, token: int | HasToken, *command: Value, allow_jump: bool) -> _Request:
        claim = self._rule.claim(resource, token, writes=False, allow_jump=allow_jump)
        return self._request(claim, self._one_command if command else self._nothing, [resource], command)

    def _set(
        self,
        resource: str,
        token: int | HasToken,
        value: Value,
        *,
        expires_in: float | None,
        once: bool,
        allow_jump: bool,
    ) -> _Request:
        expiry = () if expires_in is None else ("PX", _milliseconds(expires_in, what="expires_in", least=0.001))
        return self._write(resource, token, "SET", value, *expiry, once=once, allow_jump=allow_jump)

    def _hset(
        self, resource: str, token: int | HasToken, mapping: Mapping[str, Value], *, once: bool, allow_jump: bool
    ) -> _Request:
        if not mapping:
            raise Misuse("the mapping is empty; give at least one field, or use announce() to raise the floor only")
        pairs = [part for field in mapping.items() for part in field]
        return self._write(resource, token, "HSET", *pairs, once=once, allow_jump=allow_jump)

    def _script(
        self,
        resource: str,
        token: int | HasToken,
        script: str,
        *,
        keys: Sequence[str] | None,
        args: Sequence[Value],
        once: bool,
        allow_jump: bool,
    ) -> _Request:
        if script.lstrip().startswith("#!"):
            raise Misuse("a script that runs behind a fence cannot have a '#!' line of its own; leave it out")
        used = [resource] if keys is None else list(keys)
        taken = next((key for key in used if key.startswith(FLOORS)), None)
        if taken is not None:
            raise Misuse(f"key {quoted(taken)} is the key of a floor; keys under {FLOORS} belong to the fences")
        claim = self._rule.claim(resource, token, writes=True, once=once, allow_jump=allow_jump)
        return self._request(claim, self._client.register_script(_CHECK + script + _CONCLUSION), used, args)

    def _request(self, claim: Claim, script: Script, keys: Sequence[str], args: Sequence[Value]) -> _Request:
        marks = (claim.token, claim.lowest, claim.most_written, claim.mark)
        texts = ["" if mark == NEVER else str(mark) for mark in marks]
        return _Request(claim, script, [floor_key(claim.resource), *keys], [*texts, self._retention, *args])


def _floor(reply: Any) -> int | None:
    return None if reply is None else int(reply)


class RedisFence(_Fence):
    """Checks tokens in scripts of a blocking redis-py client.

    A resource is a key; its floor is kept beside it and outlives it. Every method takes the resource and then the
    token, or what carries it. Retries by the client are harmless: an equal token is accepted, and a repeated write
    that a later holder has overtaken is refused.
    """

    _ASYNC = False

    def set(
        self,
        resource: str,
        token: int | HasToken,
        value: Value,
        *,
        expires_in: float | None = None,
        once: bool = False,
        allow_jump: bool = False,
    ) -> None:
        """Set the key's value, and let the key (never the floor) expire after so many seconds if that is asked for."""
        self._send(self._set(resource, token, value, expires_in=expires_in, once=once, allow_jump=allow_jump))

    def get(self, resource: str, token: int | HasToken, *, allow_jump: bool = False) -> Any:
        """Return the key's value, or None; no earlier holder can write any more when it returns."""
        return self._send(self._read(resource, token, "GET", allow_jump=allow_jump))

    def delete(self, resource: str, token: int | HasToken, *, once: bool = False, allow_jump: bool = False) -> bool:
        """Delete the key, and return whether it was there. The floor stays."""
        return bool(self._send(self._write(resource, token, "DEL", once=once, allow_jump=allow_jump)))

    def hset(
        self,
        resource: str,
        token: int | HasToken,
        mapping: Mapping[str, Value],
        *,
        once: bool = False,
        allow_jump: bool = False,
    ) -> int:
        """Set fields of the hash at the key, and return how many of them are new."""
        return int(self._send(self._hset(resource, token, mapping, once=once, allow_jump=allow_jump)))

    def hget(self, resource: str, token: int | HasToken, field: str, *, allow_jump: bool = False) -> Any:
        """Return a field of the hash at the key, or None; no earlier holder can write any more when it returns."""
        return self._send(self._read(resource, token, "HGET", field, allow_jump=allow_jump))

    def run(
        self,
        resource: str,
        token: int | HasToken,
        script: str,
        *,
        keys: Sequence[str] | None = None,
        args: Sequence[Value] = (),
        once: bool = False,
        allow_jump: bool = False,
    ) -> Any:
        """Run a Lua script of your own behind the check, as one step with it, and return what it returns.

        It counts as a write. `keys` are its KEYS, the resource alone by default; in a Cluster they must share the
        resource's slot. As always in Redis, a script that fails half-way leaves what it did before.
        """
        request = self._script(resource, token, script, keys=keys, args=args, once=once, allow_jump=allow_jump)
        return self._send(request)

    def announce(self, resource: str, token: int | HasToken, *, allow_jump: bool = False) -> None:
        """Raise the floor to the token before the work starts, so that no earlier holder can write from now on."""
        self._send(self._read(resource, token, allow_jump=allow_jump))

    def raise_floor(self, resource: str, token: int | HasToken, *, allow_jump: bool = False) -> None:
        """Make sure that the floor is at least this token, whatever it is now. It never falls."""
        with contextlib.suppress(StaleToken):
            self.announce(resource, token, allow_jump=allow_jump)

    def floor(self, resource: str) -> int | None:
        """Return the highest token seen, or None. Tells people; decides nothing, since it may be higher by now."""
        return _floor(self._read_floor(keys=[floor_key(resource)], args=[]))

    def _send(self, request: _Request) -> Any:
        return request.result(request.script(keys=request.keys, args=request.args))


class AsyncRedisFence(_Fence):
    """The same as `RedisFence`, for a client of ``redis.asyncio``."""

    _ASYNC = True

    async def set(
        self,
        resource: str,
        token: int | HasToken,
        value: Value,
        *,
        expires_in: float | None = None,
        once: bool = False,
        allow_jump: bool = False,
    ) -> None:
        """Set the key's value, and let the key (never the floor) expire after so many seconds if that is asked for."""
        await self._send(self._set(resource, token, value, expires_in=expires_in, once=once, allow_jump=allow_jump))

    async def get(self, resource: str, token: int | HasToken, *, allow_jump: bool = False) -> Any:
        """Return the key's value, or None; no earlier holder can write any more when it returns."""
        return await self._send(self._read(resource, token, "GET", allow_jump=allow_jump))

    async def delete(
        self, resource: str, token: int | HasToken, *, once: bool = False, allow_jump: bool = False
    ) -> bool:
        """Delete the key, and return whether it was there. The floor stays."""
        return bool(await self._send(self._write(resource, token, "DEL", once=once, allow_jump=allow_jump)))

    async def hset(
        self,
        resource: str,
        token: int | HasToken,
        mapping: Mapping[str, Value],
        *,
        once: bool = False,
        allow_jump: bool = False,
    ) -> int:
        """Set fields of the hash at the key, and return how many of them are new."""
        return int(await self._send(self._hset(resource, token, mapping, once=once, allow_jump=allow_jump)))

    async def hget(self, resource: str, token: int | HasToken, field: str, *, allow_jump: bool = False) -> Any:
        """Return a field of the hash at the key, or None; no earlier holder can write any more when it returns."""
        return await self._send(self._read(resource, token, "HGET", field, allow_jump=allow_jump))

    async def run(
        self,
        resource: str,
        token: int | HasToken,
        script: str,
        *,
        keys: Sequence[str] | None = None,
        args: Sequence[Value] = (),
        once: bool = False,
        allow_jump: bool = False,
    ) -> Any:
        """Run a Lua script of your own behind the check; see `RedisFence.run`."""
        request = self._script(resource, token, script, keys=keys, args=args, once=once, allow_jump=allow_jump)
        return await self._send(request)

    async def announce(self, resource: str, token: int | HasToken, *, allow_jump: bool = False) -> None:
        """Raise the floor to the token before the work starts, so that no earlier holder can write from now on."""
        await self._send(self._read(resource, token, allow_jump=allow_jump))

    async def raise_floor(self, resource: str, token: int | HasToken, *, allow_jump: bool = False) -> None:
        """Make sure that the floor is at least this token, whatever it is now. It never falls."""
        with contextlib.suppress(StaleToken):
            await self.announce(resource, token, allow_jump=allow_jump)

    async def floor(self, resource: str) -> int | None:
        """Return the highest token seen, or None. Tells people; decides nothing, since it may be higher by now."""
        return _floor(await self._read_floor(keys=[floor_key(resource)], args=[]))

    async def _send(self, request: _Request) -> Any:
        return request.result(await request.script(keys=request.keys, args=request.args))
