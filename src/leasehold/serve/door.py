"""Who may come in: the host that was asked for, the token, sessions of browsers, and where a request comes from.

A browser gets the token in the fragment of the page's address, which it never sends; the page trades it for a session
in a cookie that scripts cannot read and other sites cannot use. Programs send the token itself, in a header. A change
also needs the session's second secret in a header, which only a page from this very server can know.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Iterable
from http import HTTPStatus
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from leasehold.errors import Misuse, quoted
from leasehold.serve.http import Refusal, Request

LEAST_TOKEN_LENGTH: Final = 32
MOST_SESSIONS: Final = 64
SESSION_LASTS: Final = 12 * 3600.0
LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]")


class Session(NamedTuple):
    """A browser that has shown the token."""

    csrf: str
    until: float


class Door:
    """Checks each request before anything else looks at it."""

    def __init__(self, token: str, *, port: int, hosts: Iterable[str]) -> None:
        """Let in who knows `token` and asked for one of `hosts`, with the port or (behind a proxy) without one."""
        if len(token) < LEAST_TOKEN_LENGTH or not token.isascii() or not token.isprintable() or " " in token:
            raise Misuse(
                f"the token has to be at least {LEAST_TOKEN_LENGTH} printable ASCII characters without a blank; "
                "for example: python -c 'import secrets; print(secrets.token_urlsafe(32))'"
            )
        self._token = _digest(token)
        self.cookie = f"leasehold_{port}"  # cookies of one host are shared by all of its ports
        ours = {form for host in hosts for form in (host.lower(), f"{host.lower()}:{port}")}
        self._hosts = ours | {f"{host}:{port}" for host in LOOPBACK} | (set(LOOPBACK) if port == 80 else set())
        self._sessions: OrderedDict[bytes, Session] = OrderedDict()

    def check_host(self, request: Request) -> None:
        """Refuse a name that is not ours: a foreign page may have had its own name point here."""
        host = request.header("host").lower()
        if host not in self._hosts:
            text = f"this server does not answer for the host {quoted(host)}; --host NAME adds one"
            raise Refusal(HTTPStatus.MISDIRECTED_REQUEST, "wrong_host", text)
        origin = request.header("origin")
        if origin and _host_of(origin) != host:
            raise Refusal(HTTPStatus.FORBIDDEN, "wrong_origin", "requests from pages of other sites are refused")
        if request.header("sec-fetch-site") in ("cross-site", "same-site") and request.path.startswith("/api/"):
            raise Refusal(HTTPStatus.FORBIDDEN, "wrong_origin", "requests from pages of other sites are refused")

    def check_token(self, request: Request) -> None:
        """Let in who sends the token itself."""
        scheme, _, given = request.header("authorization").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(_digest(given.strip()), self._token):
            raise _unknown()

    def check(self, request: Request) -> None:
        """Let in who sends the token, or a session that was got for it; a change needs its second secret, too."""
        if request.header("authorization"):
            self.check_token(request)
            return
        session = self.session_of(request)
        if session is None:
            raise _unknown()
        if request.method not in ("GET", "HEAD"):
            given = request.header("x-csrf-token")
            if not hmac.compare_digest(_digest(given), _digest(session.csrf)):
                text = "a change needs the X-CSRF-Token of the session; reload the page"
                raise Refusal(HTTPStatus.FORBIDDEN, "csrf", text)

    def open_session(self) -> tuple[str, Session]:
        """A new session, as the value of its cookie and its second secret."""
        name, session = secrets.token_urlsafe(32), Session(secrets.token_urlsafe(32), time.monotonic() + SESSION_LASTS)
        while len(self._sessions) >= MOST_SESSIONS:
            self._sessions.popitem(last=False)
        self._sessions[_digest(name)] = session
        return name, session

    def session_of(self, request: Request) -> Session | None:
        """The session of a request, if it has one that has not ended."""
        key = _digest(request.cookies.get(self.cookie, ""))
        session = self._sessions.get(key)
        if session is not None and session.until <= time.monotonic():
            del self._sessions[key]
            return None
        return session

    def end_session(self, request: Request) -> None:
        """Forget the session of a request."""
        self._sessions.pop(_digest(request.cookies.get(self.cookie, "")), None)


def _digest(secret: str) -> bytes:
    """What is compared and looked up instead of a secret: how long that takes tells nothing of it."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def _host_of(origin: str) -> str | None:
    try:
        parts = urlsplit(origin)
    except ValueError:
        return None
    return parts.netloc.lower() if parts.scheme in ("http", "https") else None


def _unknown() -> Refusal:
    text = "send the token that was printed at the start: Authorization: Bearer TOKEN"
    return Refusal(HTTPStatus.UNAUTHORIZED, "unauthorized", text)
