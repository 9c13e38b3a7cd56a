"""Middleware for the ``Idempotency-Key`` header: ASGI and WSGI.

A request that comes again with the same key gets the answer that was given to the first, marked with
``Idempotency-Replayed: true``. The key counts for one tenant, one method and one path: nobody gets another's answer.

| what comes | what is answered |
|---|---|
| no key where one is required, or one that is no key | 400 |
| the first request with this key is under way | 409, with ``Retry-After`` |
| the same key with another body or query | 422 |
| a body that is too large to be compared | 413 |
| a body that ends before its length, or is of no known length | 400, 411 |

All of these are ``application/problem+json``, and the application is not called.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import io
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from http import HTTPStatus
from typing import Any, Final, NamedTuple

from leasehold.errors import InProgress, KeyReused, Misuse, quoted
from leasehold.fences.http import wsgi_path
from leasehold.patterns.idempotency.keys import DAY, AsyncIdempotency, AsyncRun, Idempotency, Run
from leasehold.patterns.idempotency.records import LARGEST_RESULT, Store

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]
StartResponse = Callable[..., Callable[[bytes], object]]
WsgiApp = Callable[[dict[str, Any], StartResponse], Iterable[bytes]]

METHODS: Final = frozenset({"POST", "PATCH"})
"""The methods that are not idempotent by themselves."""
PASSING: Final = frozenset({408, 425, 429})
"""Answers below 500 that say: try again. They are not kept."""
_QUOTED: Final = re.compile(r'"((?:[\x20\x21\x23-\x5b\x5d-\x7e]|\\["\\]){1,255})"')
_BARE: Final = re.compile(r"[!#-\[\]-~]{1,255}")
Headers = list[tuple[str, str]]


class Answer(NamedTuple):
    """What is sent, and kept."""

    status: int
    headers: Headers
    body: bytes


class _NotKept(Exception):
    """An answer after which the request may be tried again."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer


class Rules:
    """What both kinds of middleware agree on."""

    def __init__(
        self,
        *,
        methods: Iterable[str] = METHODS,
        required: bool = False,
        keep_server_errors: bool = False,
        largest_body: int = 1024 * 1024,
        largest_response: int = LARGEST_RESULT,
        wait: float = 0.0,
        lease: float = 60.0,
        keep: float = DAY,
    ) -> None:
        """Say which methods are covered, whether they need a key, and what is kept for how long.

        Answers of 500 and more are not kept, so that the request may be tried again, unless `keep_server_errors`.
        """
        self.methods = frozenset(method.upper() for method in methods)
        self.required, self.wait = required, wait
        for what, size in (("largest_body", largest_body), ("largest_response", largest_response)):
            if type(size) is not int or size < 1:
                raise Misuse(f"{what} is a number of bytes of at least 1, not {quoted(size)}")
        self.largest_body, self.largest_response = largest_body, largest_response
        self._keep_server_errors = keep_server_errors
        # Base64 makes four bytes of three; the headers come on top.
        self.settings: dict[str, Any] = {"lease": lease, "keep": keep, "largest_result": 2 * largest_response + 32768}

    def keeps(self, status: int) -> bool:
        """Whether this is an answer to be given again."""
        return status not in PASSING and (status < 500 or self._keep_server_errors)

    def packed(self, answer: Answer) -> object:
        """As JSON. Of an answer that is too large only that is kept."""
        if len(answer.body) > self.largest_response:
            text = "the request was carried out before; its answer was too large to be kept"
            return self.packed(problem(HTTPStatus.CONFLICT, text))
        return {"status": answer.status, "headers": answer.headers, "body": base64.b64encode(answer.body).decode()}


def unpacked(kept: Mapping[str, Any]) -> Answer:
    """An answer that was kept, marked as given again."""
    headers = [(name, value) for name, value in kept["headers"]]
    body = base64.b64decode(kept["body"])
    return Answer(kept["status"], [*headers, ("idempotency-replayed", "true")], body)


def problem(status: HTTPStatus, text: str, *headers: tuple[str, str]) -> Answer:
    """An error as ``application/problem+json``."""
    body = json.dumps({"type": "about:blank", "title": status.phrase, "status": int(status), "detail": text}).encode()
    own = [("content-type", "application/problem+json"), ("content-length", str(len(body)))]
    return Answer(int(status), [*own, *headers], body)


def key_in(header: str) -> str | None:
    r"""The key in a header: a quoted string, as the draft standard says, or bare, as many clients send it.

    >>> key_in('"8e03978e-40d5"'), key_in("8e03978e-40d5"), key_in(r'"a\"b"'), key_in("a b"), key_in('"')
    ('8e03978e-40d5', '8e03978e-40d5', 'a"b', None, None)
    """
    header = header.strip()
    if found := _QUOTED.fullmatch(header):
        key = re.sub(r"\\(.)", r"\1", found[1])
        return key if key.strip() else None
    return header if _BARE.fullmatch(header) else None


def scope_of(tenant: str, method: str, path: str) -> str:
    """What a key counts for; no tenant can make up the scope of another."""
    digest = hashlib.sha256(json.dumps([tenant, method, path]).encode()).hexdigest()
    return f"http {digest}"


def refused(error: Exception) -> Answer:
    """The answer to a request that is not the first with its key."""
    if isinstance(error, InProgress):
        return problem(HTTPStatus.CONFLICT, "the first request with this key is under way", ("retry-after", "1"))
    return problem(HTTPStatus.UNPROCESSABLE_ENTITY, "this key came before with another request")


def without_key() -> Answer:
    """The answer where a key is required."""
    return problem(HTTPStatus.BAD_REQUEST, "this request needs an Idempotency-Key header")


def not_a_key() -> Answer:
    """The answer to a header that is no key, or to several."""
    return problem(HTTPStatus.BAD_REQUEST, "Idempotency-Key is one string of 1 to 255 printable ASCII characters")


def too_large() -> Answer:
    """The answer to a body that cannot be compared."""
    return problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "the body is too large for a request with an Idempotency-Key")


def cut_short() -> Answer:
    """The answer to a body that has not come in full: whatever is made of it is not what was asked for."""
    return problem(HTTPStatus.BAD_REQUEST, "the body ended before its Content-Length")


def of_no_length() -> Answer:
    """The answer to a body whose end this server cannot tell."""
    return problem(HTTPStatus.LENGTH_REQUIRED, "a request with an Idempotency-Key needs a Content-Length here")


class _Gone(Exception):
    """The client has gone before its request was complete."""


class AsgiIdempotency:
    """Wrap an ASGI application. `tenant` says of a request's scope whose it is: a customer, a user, an API key."""

    def __init__(self, app: AsgiApp, store: Store, *, tenant: Callable[[Scope], str], **rules: Any) -> None:
        if not callable(tenant):
            raise Misuse(f"tenant is a function that says whose a request is, not {quoted(tenant)}")
        self._app, self._store, self._tenant, self._rules = app, store, tenant, Rules(**rules)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or scope["method"] not in self._rules.methods:
            await self._app(scope, receive, send)
            return
        headers = [value for name, value in scope["headers"] if name.lower() == b"idempotency-key"]
        if not headers and not self._rules.required:
            await self._app(scope, receive, send)
            return
        try:
            answer = await self._answer(scope, receive, send, headers)
        except _Gone:
            return
        if answer is not None:
            await _send(answer, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send, headers: list[bytes]) -> Answer | None:
        """An answer that is not the application's to give now; None when it has given one."""
        if not headers:
            return without_key()
        key = key_in(headers[0].decode("latin-1")) if len(headers) == 1 else None
        if key is None:
            return not_a_key()
        body = await _body_of(receive, self._rules.largest_body)
        if body is None:
            return too_large()
        keys = AsyncIdempotency(
            self._store,
            scope=scope_of(self._tenant(scope), scope["method"], scope["path"]),
            **self._rules.settings,
        )
        payload = scope.get("query_string", b"") + b"\n" + body
        try:
            run, kept = await keys._begun(key, payload, self._rules.wait)
        except (InProgress, KeyReused) as error:
            return refused(error)
        if run is None:
            return unpacked(kept)
        if scope.get("extensions"):
            # With them the application could hand over a file's name in place of its bytes.
            scope = {**scope, "extensions": {}}
        await _Exchange(self._rules, keys, run, receive, send).carry_out(self._app, scope, body)
        return None


class _Exchange:
    """One request that the application answers.

    What it says is kept until all of it is there, and is stored and sent at that moment: what the application does
    afterwards, in the background, is neither waited for nor part of the run.
    """

    def __init__(self, rules: Rules, keys: AsyncIdempotency, run: AsyncRun, receive: Receive, send: Send) -> None:
        """`receive` gives what comes after the request's body, which was read."""
        self._rules, self._keys, self._run, self._receive, self._send = rules, keys, run, receive, send
        self._unread: list[bytes] = []
        self._start: Message | None = None
        self._parts: list[bytes] = []
        self._settled = False
        self._trouble: Exception | None = None
        self._answered = asyncio.Event()

    async def carry_out(self, app: AsgiApp, scope: Scope, body: bytes) -> None:
        """Call the application with the request. An error after its answer is raised to the server, as without this."""
        self._unread.append(body)
        try:
            await app(scope, self._hear, self._say)
            if not self._settled and self._trouble is None:
                raise RuntimeError(
                    f"the application ended {'before the end of its' if self._start else 'without an'} answer"
                )
        except Exception as error:
            if not self._settled and self._trouble is None:
                await self._keys._failed(self._run, error)
            raise
        if self._trouble is not None:
            raise self._trouble

    async def _hear(self) -> Message:
        """The request; and that its client has gone only when it is answered.

        A client that gives up comes again with its key: until then the application has to go on, and not stop half way.
        """
        if self._unread:
            return {"type": "http.request", "body": self._unread.pop(), "more_body": False}
        await self._answered.wait()
        return await self._receive()

    async def _say(self, message: Message) -> None:
        if self._trouble is not None:
            raise self._trouble
        if self._answered.is_set():
            await self._send(message)  # too much is the server's to refuse
        elif message["type"] == "http.response.start":
            self._start = self._start or message
        elif message["type"] == "http.response.body":
            self._parts.append(bytes(message.get("body", b"")))
            if not message.get("more_body", False):
                await self._complete()

    async def _complete(self) -> None:
        """Store the answer, and then send it: nobody gets one that the next request would not get, too."""
        if self._start is None:
            raise RuntimeError("the application sent a body before it began its answer")
        headers = [(bytes(n).decode("latin-1"), bytes(v).decode("latin-1")) for n, v in self._start.get("headers", ())]
        answer = Answer(self._start["status"], headers, b"".join(self._parts))
        try:
            await self._settle(answer)
        except Exception as trouble:
            self._trouble = trouble  # another run took over, or the store does not answer: no answer, whoever asks
            self._answered.set()
            raise
        self._settled = True
        try:
            await _send(answer, self._send)
        finally:
            self._answered.set()

    async def _settle(self, answer: Answer) -> None:
        if self._rules.keeps(answer.status):
            await self._keys._finished(self._run, self._rules.packed(answer))
        else:
            await self._keys._failed(self._run, _NotKept(answer))


async def _body_of(receive: Receive, most: int) -> bytes | None:
    body = b""
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise _Gone
        body += bytes(message.get("body", b""))
        if len(body) > most:
            return None
        if not message.get("more_body", False):
            return body


async def _send(answer: Answer, send: Send) -> None:
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})


class _Sent(list[bytes]):
    """A body for the server, which closes it when it was sent: what the application does then is no part of the run."""

    def __init__(self, body: bytes, afterwards: contextlib.ExitStack) -> None:
        super().__init__([body])
        self.close = afterwards.close


class WsgiIdempotency:
    """Wrap a WSGI application. `tenant` says of a request's environment whose it is."""

    def __init__(self, app: WsgiApp, store: Store, *, tenant: Callable[[dict[str, Any]], str], **rules: Any) -> None:
        if not callable(tenant):
            raise Misuse(f"tenant is a function that says whose a request is, not {quoted(tenant)}")
        self._app, self._store, self._tenant, self._rules = app, store, tenant, Rules(**rules)

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        """Serve one request."""
        header = environ.get("HTTP_IDEMPOTENCY_KEY")
        if environ["REQUEST_METHOD"] not in self._rules.methods or (header is None and not self._rules.required):
            return self._app(environ, start_response)
        with contextlib.ExitStack() as afterwards:
            answer = self._answer(environ, header, afterwards)
            start_response(f"{answer.status} {_phrase(answer.status)}", answer.headers)
            return _Sent(answer.body, afterwards.pop_all())

    def _answer(self, environ: dict[str, Any], header: str | None, afterwards: contextlib.ExitStack) -> Answer:
        if header is None:
            return without_key()
        key = key_in(header)
        if key is None:
            return not_a_key()
        body = _wsgi_body(environ, self._rules.largest_body)
        if isinstance(body, Answer):
            return body
        path = wsgi_path(environ)
        keys = Idempotency(
            self._store, scope=scope_of(self._tenant(environ), environ["REQUEST_METHOD"], path), **self._rules.settings
        )
        given: list[Answer] = []

        def call(_run: Run) -> object:
            request = {**environ, "wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}
            given.append(self._call(request, afterwards))
            if not self._rules.keeps(given[0].status):
                raise _NotKept(given[0])
            return self._rules.packed(given[0])

        payload = environ.get("QUERY_STRING", "").encode("latin-1") + b"\n" + body
        try:
            kept = keys.once(key, call, payload=payload, wait=self._rules.wait)
        except _NotKept as passing:
            return passing.answer
        except (InProgress, KeyReused) as error:
            return refused(error)
        return given[0] if given else unpacked(kept)

    def _call(self, environ: dict[str, Any], afterwards: contextlib.ExitStack) -> Answer:
        """Let the application answer, and keep what it says until all of it is there."""
        started: list[tuple[str, Headers]] = []
        written: list[bytes] = []

        def start(status: str, headers: Headers, exc_info: Any = None) -> Callable[[bytes], object]:
            if exc_info is None and started:
                raise RuntimeError("the application has begun its answer twice")
            started[:] = [(status, headers)]
            return written.append

        parts = self._app(environ, start)
        if callable(close := getattr(parts, "close", None)):
            afterwards.callback(close)
        written.extend(parts)
        if not started:
            raise RuntimeError("the application ended without an answer")
        [(status, headers)] = started
        return Answer(int(status.split(" ", 1)[0]), list(headers), b"".join(written))


def _wsgi_body(environ: dict[str, Any], most: int) -> bytes | Answer:
    """The body, or why there is none."""
    length: str = environ.get("CONTENT_LENGTH") or ""
    ends_by_itself = bool(environ.get("wsgi.input_terminated"))
    if not length and environ.get("HTTP_TRANSFER_ENCODING") and not ends_by_itself:
        return of_no_length()
    if length and not length.isdigit():
        return cut_short()
    expected = int(length) if length else most + 1 if ends_by_itself else 0
    if length and expected > most:
        return too_large()
    body = bytes(environ["wsgi.input"].read(expected))
    if len(body) > most:
        return too_large()
    return cut_short() if length and len(body) < expected else body


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"
