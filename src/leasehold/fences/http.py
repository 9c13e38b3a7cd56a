"""Fences for HTTP services: the client sends its token in a header, the service refuses one that is stale.

On the server a middleware runs each write inside of a fenced block, so that check and write are one transaction:

    app = WsgiFence(app, lambda resource, token: SqlFence(connection).writing(resource, token))

On the client one function puts the token of the current lease into the header, for httpx and for requests:

    client = httpx.Client(auth=send_token)
    with carrying(lease):
        client.put("https://accounts.example/42", json={"balance": 100})

No framework and no client library is imported here.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeVar

from leasehold.errors import InvalidName, InvalidToken, LeaseholdError, Misuse, StaleToken, TokenJump, TokenUsed, quoted
from leasehold.fences.rule import HasToken, token_of
from leasehold.fences.signed import SignedToken, TokenSigner
from leasehold.names import check_token

HEADER = "Fencing-Token"
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
"""They change nothing, so they need no token; with one they are fenced as well, and raise the floor."""

_DIGITS = re.compile(r"0|[1-9][0-9]{0,18}", re.ASCII)
_ENVIRON_KEY = "HTTP_FENCING_TOKEN"
_TOKEN_KEY = "leasehold.token"

Fenced = Callable[[str, int], "AbstractContextManager[Any] | AbstractAsyncContextManager[Any]"]
"""What opens a fenced block for a resource and a token, such as the method `writing` of a fence."""

R = TypeVar("R")


# What is answered instead


class MissingToken(LeaseholdError):
    """A request that writes came without a token."""


class Problem(NamedTuple):
    """A refusal as RFC 9457 wants it."""

    status: int
    reason: str
    body: bytes

    @property
    def headers(self) -> list[tuple[str, str]]:
        """Of a response that nobody may store."""
        return [
            ("Content-Type", "application/problem+json"),
            ("Content-Length", str(len(self.body))),
            ("Cache-Control", "no-store"),
        ]


_KINDS: tuple[tuple[type[LeaseholdError], int, str, str], ...] = (
    (StaleToken, 412, "Precondition Failed", "stale-token"),
    (MissingToken, 428, "Precondition Required", "missing-token"),
    (TokenUsed, 409, "Conflict", "token-used"),
    (TokenJump, 400, "Bad Request", "token-jump"),
    (InvalidToken, 400, "Bad Request", "invalid-token"),
    (InvalidName, 400, "Bad Request", "invalid-resource"),
)


def problem(error: LeaseholdError) -> Problem:
    """The answer to a refused write, for code that fences by itself and answers by itself.

    Tokens are texts in it: many JSON readers cannot tell whole numbers apart above 2**53.
    """
    status, reason, kind = next(
        (found[1:] for found in _KINDS if isinstance(error, found[0])), (500, "Internal Server Error", "unexpected")
    )
    numbers = {name: getattr(error, name, None) for name in ("resource", "token", "seen")}
    told = {name: str(value) for name, value in numbers.items() if value is not None}
    body = {"type": f"urn:leasehold:{kind}", "title": reason, "status": status, "detail": str(error), **told}
    return Problem(status, reason, json.dumps(body).encode())


def read_token(values: Iterable[str], resource: str = "", signer: TokenSigner | None = None) -> int | None:
    """Return the token that a request carries in its header, or None; anything but one plain number is refused.

    With a `signer`, anything but one token that is signed for the resource is.
    """
    given = list(values)
    if not given:
        return None
    if signer is not None and len(given) == 1:
        return signer.verify(resource, given[0])
    if len(given) > 1 or not _DIGITS.fullmatch(given[0]):
        raise InvalidToken(f"the header {HEADER} must be one decimal integer, such as 34, not {quoted(given[0])}")
    return check_token(int(given[0]))


# The server's side


def wsgi_path(environ: Mapping[str, Any]) -> str:
    r"""The path of a WSGI request as text, with the part that it is mounted under: as ASGI and Django have it.

    WSGI hands over the bytes of a path as characters of Latin-1. A path that is no UTF-8 stays as it was handed over.

    >>> wsgi_path({"SCRIPT_NAME": "/shop", "PATH_INFO": "/\xc3\x84pfel"})
    '/shop/Äpfel'
    """
    given = str(environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", ""))
    try:
        return given.encode("latin-1").decode()
    except UnicodeError:
        return given


class _Middleware:
    def __init__(
        self,
        app: Any,
        fenced: Fenced,
        *,
        resource: Callable[[Any], str | None] | None = None,
        signer: TokenSigner | None = None,
    ) -> None:
        """`resource` finds the name in the request (None: it needs no fence); by default that is the path.

        With a `signer`, only tokens that it has signed for the resource are taken.
        """
        if not callable(fenced):
            raise Misuse(
                "`fenced` must be something to call with a resource and a token that returns a block, such as the "
                f"method `writing` of a fence, not {quoted(fenced)}"
            )
        self._app, self._fenced, self._resource, self._signer = app, fenced, resource, signer

    def _claimed(self, method: str, resource: str | None, values: Iterable[str]) -> tuple[str, int] | None:
        """What to fence with, or None when the request goes on as it is."""
        if resource is None:
            return None
        token = read_token(values, resource, self._signer)
        if token is None:
            if method in SAFE_METHODS:
                return None
            raise MissingToken(f"send the token of your lease in the header {HEADER}; without it nothing is written")
        return resource, token


class _RolledBack(Exception):
    """Ends a fenced block whose response says that it failed."""


_REFUSALS = (StaleToken, TokenUsed, TokenJump, InvalidToken, InvalidName, MissingToken)


class DjangoFence(_Middleware):
    """Django's kind of middleware: put the path of one of these into ``MIDDLEWARE``, last.

    It stands inside of Django, which closes connections that are in a transaction when a request comes in: a WSGI
    middleware around it would come too early. Views find the token in ``request.META["leasehold.token"]``.
    """

    def __init__(
        self, fenced: Fenced, *, resource: Callable[[Any], str | None] | None = None, signer: TokenSigner | None = None
    ) -> None:
        """As for `WsgiFence`; `resource` is called with Django's request."""
        super().__init__(None, fenced, resource=resource, signer=signer)

    def __call__(self, get_response: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Wrap what answers requests, as Django asks middleware to do."""

        def answer(request: Any) -> Any:
            resource = self._resource(request) if self._resource else request.path
            values = [request.META[_ENVIRON_KEY].strip()] if _ENVIRON_KEY in request.META else []
            try:
                claimed = self._claimed(request.method, resource, values)
                if claimed is None:
                    return get_response(request)
                request.META[_TOKEN_KEY] = claimed[1]
                return self._run(claimed, lambda: get_response(request))
            except _REFUSALS as refusal:
                told = problem(refusal)
                respond = importlib.import_module("django.http").HttpResponse
                return respond(told.body, status=told.status, headers=dict(told.headers))

        return answer

    def _run(self, claimed: tuple[str, int], respond: Callable[[], Any]) -> Any:
        response: Any = None
        block = self._fenced(*claimed)
        if not isinstance(block, AbstractContextManager):
            raise Misuse("Django's transactions are blocking; give it a blocking fence")
        with contextlib.suppress(_RolledBack), block:
            response = respond()
            if response.status_code >= 400:
                raise _RolledBack
        return response


class WsgiFence(_Middleware):
    """WSGI middleware: each request with a token runs inside of ``fenced(resource, token)``.

    The response is held back until the block has ended, so nobody is told of a write that is not committed; a response
    of 400 or more rolls it back. The app finds the token in ``environ["leasehold.token"]``.
    """

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Answer one request."""
        resource = self._resource(environ) if self._resource else wsgi_path(environ)
        values = [environ[_ENVIRON_KEY].strip()] if _ENVIRON_KEY in environ else []
        try:
            claimed = self._claimed(environ["REQUEST_METHOD"], resource, values)
            if claimed is None:
                passed: Iterable[bytes] = self._app(environ, start_response)
                return passed
            return self._run(claimed, {**environ, _TOKEN_KEY: claimed[1]}, start_response)
        except _REFUSALS as refusal:
            answer = problem(refusal)
            start_response(f"{answer.status} {answer.reason}", answer.headers)
            return [answer.body]

    def _run(
        self, claimed: tuple[str, int], environ: dict[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        started: list[tuple[Any, ...]] = []
        body: list[bytes] = []

        def hold(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Callable[[bytes], object]:
            started[:] = [(status, headers, exc_info)]
            return body.append

        block = self._fenced(*claimed)
        if not isinstance(block, AbstractContextManager):
            raise Misuse("a WSGI app needs a blocking fence; this one is for asyncio")
        with contextlib.suppress(_RolledBack), block:
            parts = self._app(environ, hold)
            try:
                body.extend(parts)
            finally:
                if hasattr(parts, "close"):
                    parts.close()
            if not started or int(started[0][0][:3]) >= 400:
                raise _RolledBack
        status, headers, exc_info = started[0]
        start_response(status, headers, exc_info) if exc_info else start_response(status, headers)
        return body


Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class AsgiFence(_Middleware):
    """ASGI middleware: each request with a token runs inside of ``fenced(resource, token)``, blocking or async.

    The response is held back until the block has ended, so nobody is told of a write that is not committed; a response
    of 400 or more rolls it back. The app finds the token in ``scope["leasehold.token"]``.
    """

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request; websockets and lifespan messages go on as they are."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        resource = self._resource(scope) if self._resource else scope["path"]
        name = HEADER.lower().encode()
        values = [value.decode("latin-1").strip() for key, value in scope["headers"] if key.lower() == name]
        try:
            claimed = self._claimed(scope["method"], resource, values)
            if claimed is None:
                await self._app(scope, receive, send)
                return
            held = await self._run(claimed, {**scope, _TOKEN_KEY: claimed[1]}, receive)
        except _REFUSALS as refusal:
            held = _messages(problem(refusal))
        for message in held:
            await send(message)

    async def _run(self, claimed: tuple[str, int], scope: Message, receive: Receive) -> list[Message]:
        held: list[Message] = []

        async def hold(message: Message) -> None:
            held.append(message)

        with contextlib.suppress(_RolledBack):
            async with _in_either_world(self._fenced(*claimed)):
                await self._app(scope, receive, hold)
                status = next((one["status"] for one in held if one["type"] == "http.response.start"), 500)
                if status >= 400:
                    raise _RolledBack
        return held


@contextlib.asynccontextmanager
async def _in_either_world(
    block: AbstractContextManager[Any] | AbstractAsyncContextManager[Any],
) -> AsyncIterator[None]:
    if isinstance(block, AbstractAsyncContextManager):
        async with block:
            yield
    else:
        with block:
            yield


def _messages(answer: Problem) -> list[Message]:
    headers = [(name.lower().encode(), value.encode()) for name, value in answer.headers]
    return [
        {"type": "http.response.start", "status": answer.status, "headers": headers},
        {"type": "http.response.body", "body": answer.body},
    ]


# The client's side

_carried: ContextVar[int | HasToken | None] = ContextVar("leasehold_carried", default=None)


@contextlib.contextmanager
def carrying(lease: int | HasToken) -> Iterator[None]:
    """Inside of this block, `send_token` sends the token of this lease. Tasks and threads each have their own."""
    token_of(lease)
    before = _carried.set(lease)
    try:
        yield
    finally:
        _carried.reset(before)


def send_token(request: R) -> R:
    """Put the current lease's token into a request: ``httpx.Client(auth=send_token)``, ``session.auth = send_token``.

    A lease that is known to be lost sends nothing: `LeaseLost` is raised instead. So is `Misuse` when a request that
    writes is made outside of `carrying`.
    """
    lease = _carried.get()
    outgoing: Any = request
    if lease is None:
        if str(outgoing.method).upper() not in SAFE_METHODS:
            raise Misuse("no lease is carried here; wrap the request in `with carrying(lease):`")
        return request
    check = getattr(lease, "check", None)
    if callable(check):
        check()
    outgoing.headers[HEADER] = str(lease) if isinstance(lease, SignedToken) else str(token_of(lease))
    return request
