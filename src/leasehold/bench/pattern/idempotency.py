"""Idempotency keys for HTTP, on Redis: the middleware asgi-idempotency-header, and Leasehold's."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from typing import Any

from leasehold.bench.patterns import Comparison, Use
from leasehold.bench.places import Place
from leasehold.patterns.idempotency.http import AsgiIdempotency
from leasehold.patterns.idempotency.redis import AsyncRedisKeys

LIBRARY, OURS = "asgi-idempotency-header", "Leasehold AsgiIdempotency"
BODY = b'{"order": 42, "amount": 10}'
NOTE = (
    "An ASGI application called directly, keys in Redis, one client of redis-py each. The library keeps no fingerprint "
    "of the body, so it replays an answer to another request; keeps JSON only; and a key whose request died stays "
    "pending for ever."
)
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[Any]]


async def _application(_scope: Message, receive: Receive, send: Send) -> None:
    await receive()
    await send(
        {"type": "http.response.start", "status": 201, "headers": [(b"content-type", b"application/json")]},
    )
    await send({"type": "http.response.body", "body": BODY})


async def _post(app: App, key: str) -> int:
    """One request; returns the status of its answer."""
    sent: list[Message] = []
    scope: Message = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": "/orders",
        "raw_path": b"/orders",
        "query_string": b"",
        "headers": [(b"idempotency-key", key.encode()), (b"content-type", b"application/json")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }

    async def receive() -> Message:
        return {"type": "http.request", "body": BODY, "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return int(sent[0]["status"])


@contextlib.contextmanager
def comparisons(place: Place, runner: asyncio.Runner) -> Iterator[list[Comparison]]:
    """A request whose key is new, and one that is answered from what is kept."""
    redis, library = importlib.import_module("redis.asyncio"), importlib.import_module("idempotency_header_middleware")
    backends = importlib.import_module("idempotency_header_middleware.backends.redis")
    clients = [redis.Redis.from_url(place.on) for _ in range(2)]
    names = {"keys_key": f"{place.namespace}:keys", "response_key": f"{place.namespace}:response:"}
    apps: dict[str, Any] = {
        LIBRARY: library.IdempotencyHeaderMiddleware(
            app=_application, backend=backends.RedisBackend(redis=clients[0], **names)
        ),
        OURS: AsgiIdempotency(_application, AsyncRedisKeys(clients[1]), tenant=lambda _scope: "a customer"),
    }

    def asked(app: App, key: str) -> None:
        if runner.run(_post(app, key)) != 201:
            raise RuntimeError("the request was not served")

    def first(app: App) -> Use:
        return lambda number: asked(app, f"new-{number}")

    def again(app: App) -> Use:
        return lambda _number: asked(app, "the-same")

    try:
        yield [
            Comparison("Idempotency: a request with a new key", {who: first(app) for who, app in apps.items()}, [NOTE]),
            Comparison("Idempotency: a replayed answer", {who: again(app) for who, app in apps.items()}, [NOTE]),
        ]
    finally:
        for client in clients:
            runner.run(client.aclose())
