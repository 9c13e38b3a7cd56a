"""As much of HTTP/1.1 as a page for operators needs, and nothing that is lenient.

A request is a line, headers of at most 16 KiB, and a body whose length is given. Whatever else a client sends (a folded
header, a second Host, a chunked body, a control character) is refused with a status that says so, and the connection is
closed: what two readers could understand differently is not understood at all.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qsl, unquote_to_bytes

MOST_HEADER_BYTES: Final = 16 * 1024
MOST_BODY_BYTES: Final = 64 * 1024
MOST_HEADERS: Final = 64
HEADER_WITHIN: Final = 10.0
"""Seconds that a client may take for its request line and headers, from its first byte on."""
BODY_WITHIN: Final = 10.0
IDLE_WITHIN: Final = 30.0
"""How long a connection may be open without a request."""
MOST_PARAMETERS: Final = 32

_LINE: Final = re.compile(rb"([A-Z]{1,16}) (/[\x21-\x7e]{0,4095}) HTTP/1\.([01])")
_HEADER: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}):[ \t]*([\x20-\x7e\x80-\xff\t]*)")
_ONCE: Final = frozenset(("host", "content-length", "content-type", "authorization", "cookie", "origin"))


class Refusal(Exception):
    """The request is answered with an error: a status, a word for programs and a sentence for people."""

    def __init__(self, status: HTTPStatus, code: str, message: str, *, close: bool = False) -> None:
        """Say what was wrong and what is allowed; `close` when the connection cannot be used any more."""
        self.status, self.code, self.close = status, code, close
        super().__init__(message)


def malformed(message: str) -> Refusal:
    """What came was not HTTP as it is spoken here."""
    return Refusal(HTTPStatus.BAD_REQUEST, "malformed", message, close=True)


@dataclass(frozen=True)
class Request:
    """One request, checked for its form only."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes = b""
    keep_alive: bool = True
    client: str = "?"
    """The address that it came from."""

    def header(self, name: str) -> str:
        """A header, or an empty text."""
        return self.headers.get(name, "")

    @property
    def cookies(self) -> dict[str, str]:
        """The cookies of the request."""
        pairs = (part.strip().partition("=") for part in self.header("cookie").split(";"))
        return {name: value for name, equals, value in pairs if equals}


@dataclass(frozen=True)
class Response:
    """One answer."""

    status: HTTPStatus = HTTPStatus.OK
    body: bytes = b""
    kind: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)
    close: bool = False


SECURITY_HEADERS: Final = {
    # Scripts and styles from this server only, none in the page itself, and no way to make markup of a text.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def as_json(value: object, status: HTTPStatus = HTTPStatus.OK, **headers: str) -> Response:
    """An answer in JSON, in plain ASCII: nothing in it can be taken for markup or end a script."""
    text = json.dumps(value, separators=(",", ":")).replace("<", "\\u003c").replace(">", "\\u003e")
    return Response(status, text.replace("&", "\\u0026").encode("ascii"), headers=headers)


def as_error(refusal: Refusal) -> Response:
    """An error, always of the same form."""
    answer = as_json({"error": {"code": refusal.code, "message": str(refusal)}}, refusal.status)
    headers = {"WWW-Authenticate": "Bearer"} if refusal.status == HTTPStatus.UNAUTHORIZED else {}
    return Response(refusal.status, answer.body, headers=headers, close=refusal.close)


def head_of(response: Response, *, length: int | None) -> bytes:
    """The first lines of an answer. Without a length it goes on until the connection is closed."""
    headers = {
        "Content-Type": response.kind,
        "Cache-Control": "no-store",
        **SECURITY_HEADERS,
        **response.headers,
        **({"Content-Length": str(length)} if length is not None else {}),
        "Connection": "close" if response.close or length is None else "keep-alive",
    }
    lines = [f"HTTP/1.1 {response.status.value} {response.status.phrase}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


async def read_request(reader: asyncio.StreamReader, client: str) -> Request | None:
    """The next request; None when the client has gone, or was idle for too long."""
    try:
        async with asyncio.timeout(IDLE_WITHIN):
            first = await reader.read(1)
    except TimeoutError:
        return None
    if not first:
        return None
    if not first.isalpha():
        raise malformed("a request begins with its method")
    try:
        async with asyncio.timeout(HEADER_WITHIN):
            head = first + await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    except asyncio.LimitOverrunError:
        text = f"the headers have more than {MOST_HEADER_BYTES} bytes"
        raise Refusal(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "too_large", text, close=True) from None
    except TimeoutError:
        text = f"the headers took longer than {HEADER_WITHIN:g} s"
        raise Refusal(HTTPStatus.REQUEST_TIMEOUT, "too_slow", text, close=True) from None
    method, path, query, headers, minor = _read_head(head)
    body = await _read_body(reader, method, headers)
    keep_alive = minor == b"1" and headers.get("connection", "").lower() != "close"
    return Request(method, path, query, headers, body, keep_alive, client)


def _read_head(head: bytes) -> tuple[str, str, dict[str, str], dict[str, str], bytes]:
    line, *rest = head[:-4].split(b"\r\n")
    match = _LINE.fullmatch(line)
    if match is None:
        raise malformed("the request line is not METHOD /path HTTP/1.1, in plain ASCII and at most 4096 bytes long")
    if len(rest) > MOST_HEADERS:
        text = f"there are more than {MOST_HEADERS} headers"
        raise Refusal(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "too_large", text, close=True)
    headers: dict[str, str] = {}
    for one in rest:
        found = _HEADER.fullmatch(one)
        if found is None:
            raise malformed("a header is not NAME: VALUE on one line")
        name, value = found[1].decode().lower(), found[2].decode("latin-1").strip()
        if name in headers and name in _ONCE:
            raise malformed(f"the header {name} came twice")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    path, _, query = match[2].decode().partition("?")
    return match[1].decode(), _text(path, "path"), _read_query(query), headers, match[3]


def _text(encoded: str, what: str) -> str:
    try:
        return unquote_to_bytes(encoded).decode("utf-8")
    except UnicodeDecodeError:
        raise malformed(f"the {what} is not UTF-8 in percent encoding") from None


def _read_query(query: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(
            query, keep_blank_values=True, strict_parsing=bool(query), errors="strict", max_num_fields=MOST_PARAMETERS
        )
    except ValueError:  # and UnicodeDecodeError, which is one
        text = "the query is not name=value&name=value, in UTF-8 and percent encoding"
        raise Refusal(HTTPStatus.BAD_REQUEST, "invalid", text) from None
    found = dict(pairs)
    if len(found) != len(pairs):
        raise Refusal(HTTPStatus.BAD_REQUEST, "invalid", "a parameter came twice; each may come once")
    return found


async def _read_body(reader: asyncio.StreamReader, method: str, headers: Mapping[str, str]) -> bytes:
    if "transfer-encoding" in headers:
        text = "a body has a Content-Length here; chunked ones are not read"
        raise Refusal(HTTPStatus.NOT_IMPLEMENTED, "chunked", text, close=True)
    given = headers.get("content-length", "0")
    if not re.fullmatch(r"[0-9]{1,12}", given):
        raise malformed("Content-Length is a number of bytes")
    length = int(given)
    if length > MOST_BODY_BYTES:
        text = f"a body has at most {MOST_BODY_BYTES} bytes, not {length}"
        raise Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too_large", text, close=True)
    if length and method in ("GET", "HEAD"):
        raise malformed(f"a {method} request has no body")
    try:
        async with asyncio.timeout(BODY_WITHIN):
            return await reader.readexactly(length)
    except asyncio.IncompleteReadError:
        raise malformed("the body is shorter than its Content-Length") from None
    except TimeoutError:
        text = f"the body took longer than {BODY_WITHIN:g} s"
        raise Refusal(HTTPStatus.REQUEST_TIMEOUT, "too_slow", text, close=True) from None


def json_in(request: Request) -> Any:
    """The body of a request that changes something."""
    if request.header("content-type").partition(";")[0].strip().lower() != "application/json":
        text = "the body is JSON; say so with Content-Type: application/json"
        raise Refusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "not_json", text)
    try:
        return json.loads(request.body.decode("utf-8"))
    except (ValueError, RecursionError):
        raise Refusal(HTTPStatus.BAD_REQUEST, "invalid", "the body is not JSON in UTF-8") from None
