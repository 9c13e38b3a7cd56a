"""How a connection begins, in either world: find the primary, get in, speak RESP3, subscribe to one's own wake-ups."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from leasehold.core.worlds import World
from leasehold.errors import EngineError, EngineUnavailable
from leasehold.wires.redis_replies import ErrorReply, command, error_at_entry, nonsense, unreachable
from leasehold.wires.redis_target import Credentials, Target
from leasehold.wires.urls import Endpoint, HiddenBytes

OLDEST_REDIS = (6, 2)
LONGEST_ANSWER = 1.0
"""So long at most a server may take that only tells where another one is."""
CHANNEL_PREFIX = "lh:wake:"
AnswerT = TypeVar("AnswerT")


class Link(Protocol):
    """A fresh connection."""

    async def exchange(self, request: bytes, count: int, until: float) -> list[Any]:
        """Send a pipeline and return its `count` replies; a subscription's confirmation is one."""
        ...

    def close(self) -> None:
        """Close it."""
        ...


Dial = Callable[[Endpoint, float], Awaitable[Link]]
"""Connects to an endpoint by a time on the world's clock, or raises `EngineUnavailable`."""


class Hello(NamedTuple):
    """What the server said of itself."""

    version: str
    is_cluster: bool


async def locate(target: Target, dial: Dial, world: World, until: float) -> Endpoint:
    """The primary's endpoint: the target's own, or what the first Sentinel that knows says."""
    if target.service is None:
        return target.endpoints[0]

    async def ask(sentinel: Endpoint, until: float) -> Endpoint:
        return await _ask_sentinel(sentinel, target, dial, until)

    return await first_answer(
        target.endpoints, ask, world, until, f"no Sentinel could name the primary of {target.address}"
    )


async def first_answer(
    endpoints: Sequence[Endpoint],
    ask: Callable[[Endpoint, float], Awaitable[AnswerT]],
    world: World,
    until: float,
    failing: str,
) -> AnswerT:
    """What the first server says that can answer. Each has a share of the time, and one is left for what follows."""
    failures: list[str] = []
    for position, endpoint in enumerate(endpoints):
        share = min((until - world.now()) / (len(endpoints) - position + 1), LONGEST_ANSWER)
        try:
            return await ask(endpoint, world.now() + share)
        except EngineError as error:
            failures.append(str(error))
    raise EngineUnavailable(f"{failing}: {'; '.join(failures)}")


async def _ask_sentinel(sentinel: Endpoint, target: Target, dial: Dial, until: float) -> Endpoint:
    assert target.service is not None
    who = f"the Sentinel at {sentinel}"
    request = command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", target.service)
    match await ask_apart(await dial(sentinel, until), target.sentinel_credentials(), request, who, until):
        case None:
            raise unreachable(f"the primary {target.service}", f"{who} knows no such name")
        case [bytes(host), bytes(port)] if re.fullmatch(rb"[0-9]{1,5}", port) and host:
            return Endpoint(host.decode("utf-8", "replace"), int(port))
        case ErrorReply() as error:
            raise error_at_entry(error, who)
        case other:
            raise nonsense(other, who)


async def ask_apart(link: Link, credentials: Credentials | None, request: bytes, who: str, until: float) -> Any:
    """The reply to one request on a connection of its own, to a server that need not be a primary nor know HELLO."""
    entry = [] if credentials is None else [HiddenBytes(command("AUTH", *credentials))]
    try:
        replies = await link.exchange(HiddenBytes(b"".join([*entry, request])), len(entry) + 1, until)
    finally:
        link.close()
    for reply in replies[:-1]:
        if isinstance(reply, ErrorReply):
            raise error_at_entry(reply, who)
    return replies[-1]


async def enter(link: Link, target: Target, channel: str, label: str, until: float) -> Hello:
    """Authenticate, switch to RESP3, choose the database and subscribe, in one round trip."""
    request, count = entry_request(target, channel, label)
    return check_entry(await link.exchange(request, count, until), target)


def entry_request(target: Target, channel: str, label: str) -> tuple[HiddenBytes, int]:
    """What `enter` sends, and how many replies it has."""
    credentials = _credentials(target)
    entry = ["AUTH", *credentials] if credentials else []
    request = command("HELLO", "3", *entry, "SETNAME", connection_name(label))
    if target.database:
        request += command("SELECT", target.database)
    return HiddenBytes(request + command("SUBSCRIBE", channel)), 3 if target.database else 2


def check_entry(replies: Sequence[Any], target: Target) -> Hello:
    """What the server said of itself when it let us in; or the error that it did not."""
    for reply in replies:
        if isinstance(reply, ErrorReply):
            raise error_at_entry(reply, target.address)
    return _check(replies[0], target)


def _credentials(target: Target) -> Credentials | None:
    try:
        return target.credentials()
    except Exception as error:  # a provider of credentials is the caller's code
        raise unreachable(target.address, f"the credential provider failed ({type(error).__name__})") from error


def connection_name(label: str) -> str:
    """A name for CLIENT LIST: the protocol allows no spaces and nothing beyond printable ASCII."""
    return "leasehold:" + re.sub(r"[^!-~]", "_", label)[:64]


def _check(hello: Any, target: Target) -> Hello:
    if not isinstance(hello, dict):
        raise nonsense(hello, target.address)
    said = {key: value for key, value in hello.items() if isinstance(key, bytes) and isinstance(value, bytes)}
    mode, role, version = said.get(b"mode"), said.get(b"role"), said.get(b"version", b"").decode("ascii", "replace")
    if mode == b"sentinel":
        raise EngineError(f"{target.address} is a Sentinel; write redis+sentinel://host:port/name-of-the-primary")
    if said.get(b"server") == b"redis" and _numbers(version) < OLDEST_REDIS:
        raise EngineError(f"{target.address} runs Redis {version}; Redis 6.2 or newer, or any Valkey, is needed")
    if role != b"master":
        raise EngineUnavailable(
            f"{target.address} leads to a replica; leases live on the primary"
            + ("; a failover is under way" if target.service else ": connect to that, or through Sentinel")
        )
    return Hello(version, mode == b"cluster")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])
