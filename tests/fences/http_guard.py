"""A guard of something behind an HTTP service, whose middleware runs each request inside of a fenced block."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
import wsgiref.simple_server
from collections.abc import Callable, Iterator
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any, Self

import httpx
from tests.fences.guards import Guard

from leasehold.errors import StaleToken, TokenUsed
from leasehold.fences import SqliteFence
from leasehold.fences.http import AsgiFence, WsgiFence, carrying, send_token
from leasehold.names import HIGHEST_TOKEN

Between = Callable[[], object] | None


class Things:
    """What the service keeps: one connection a thread, as frameworks have it."""

    def __init__(self, path: str) -> None:
        self._path, self._local = path, threading.local()
        SqliteFence(self.database).create()
        self.database.execute("CREATE TABLE IF NOT EXISTS thing (resource TEXT PRIMARY KEY, value TEXT)")

    @property
    def database(self) -> sqlite3.Connection:
        if not hasattr(self._local, "database"):
            self._local.database = sqlite3.connect(self._path, timeout=30, isolation_level=None)
            self._local.database.execute("PRAGMA synchronous = OFF")  # no test here cuts the power
        database: sqlite3.Connection = self._local.database
        return database

    @property
    def fence(self) -> SqliteFence:
        return SqliteFence(self.database, jump_limit=HIGHEST_TOKEN)

    def fenced(self, method: str, query: str) -> Callable[[str, int], Any]:
        """Reads are fenced as reads, and a request may say that it is to be done once."""
        if method == "GET":
            return self.fence.reading
        return lambda resource, token: self.fence.writing(resource, token, once=query == "once")

    def respond(self, method: str, resource: str, body: bytes) -> tuple[str, bytes]:
        if method == "PUT":
            self.database.execute("INSERT OR REPLACE INTO thing VALUES (?, ?)", (resource, body.decode()))
        elif method == "DELETE":
            self.database.execute("DELETE FROM thing WHERE resource = ?", (resource,))
        row = self.database.execute("SELECT value FROM thing WHERE resource = ?", (resource,)).fetchone()
        return ("200 OK", str(row[0]).encode()) if row else ("204 No Content", b"")


def wsgi_app(things: Things) -> Callable[..., Any]:
    def inner(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        status, answer = things.respond(environ["REQUEST_METHOD"], environ["PATH_INFO"], body)
        start_response(status, [("Content-Length", str(len(answer)))])
        return [answer]

    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        if environ["QUERY_STRING"] == "past":
            return inner(environ, start_response)
        fenced = things.fenced(environ["REQUEST_METHOD"], environ["QUERY_STRING"])
        return WsgiFence(inner, fenced)(environ, start_response)

    return app


def asgi_app(things: Things) -> Callable[..., Any]:
    async def inner(scope: Any, receive: Any, send: Any) -> None:
        body = (await receive()).get("body", b"")
        status, answer = things.respond(scope["method"], scope["path"], body)
        await send({"type": "http.response.start", "status": int(status[:3]), "headers": []})
        await send({"type": "http.response.body", "body": answer})

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["query_string"] == b"past":
            await inner(scope, receive, send)
            return
        fenced = things.fenced(scope["method"], scope["query_string"].decode())
        await AsgiFence(inner, fenced)(scope, receive, send)

    return app


class _Server(ThreadingMixIn, wsgiref.simple_server.WSGIServer):
    daemon_threads = True


class _Quiet(wsgiref.simple_server.WSGIRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Nothing."""


@contextlib.contextmanager
def running_service(folder: Path) -> Iterator[str]:
    """The service on a free port of the loopback, and where it keeps its things: ``http://…#path``."""
    path = str(folder / "things.db")
    with wsgiref.simple_server.make_server("127.0.0.1", 0, wsgi_app(Things(path)), _Server, _Quiet) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}#{path}"
        server.shutdown()
        thread.join(20)


class HttpGuard(Guard):
    """Sends its token to the real server (WSGI), or to an app for the same things in this process (ASGI)."""

    def __init__(self, address: str, resource: str, *, patience: float = 0.2, in_asyncio: bool = False) -> None:
        super().__init__()
        self.address, self.in_asyncio = address, in_asyncio
        self.resource = "/" + resource.lstrip("/")
        self.url, _, path = address.partition("#")
        self.things = Things(path)
        self.client = httpx.Client(auth=send_token)
        self.transport = httpx.ASGITransport(asgi_app(self.things))

    def _another(self) -> Self:
        return type(self)(self.address, self.resource, in_asyncio=self.in_asyncio)

    def _send(self, method: str, token: int, query: str = "", body: str = "") -> httpx.Response:
        url = f"{self.url}{self.resource}{query}"
        with carrying(token):
            if not self.in_asyncio:
                answer = self.client.request(method, url, content=body)
            else:
                answer = asyncio.run(self._sending(method, url, body))
        if answer.status_code == 412:
            told = answer.json()
            raise StaleToken(told["resource"], token=int(told["token"]), seen=int(told["seen"]))
        if answer.status_code == 409:
            raise TokenUsed(answer.json()["resource"], token=int(answer.json()["token"]))
        return answer.raise_for_status()

    async def _sending(self, method: str, url: str, body: str) -> httpx.Response:
        async with httpx.AsyncClient(transport=self.transport, auth=send_token) as client:
            return await client.request(method, url, content=body)

    def write(self, token: int, value: str, *, once: bool = False, between: Between = None) -> None:
        self._send("PUT", token, "?once" if once else "", value)  # one request: there is no between

    def write_past(self, value: str) -> None:
        self._send("PUT", 0, "?past", value)

    def floor_size(self) -> int:
        return int(self.things.database.execute("SELECT count(*) FROM leasehold_fence").fetchone()[0])

    def read(self, token: int) -> str | None:
        answer = self._send("GET", token)
        return answer.text if answer.status_code == 200 else None

    def delete(self, token: int) -> None:
        self._send("DELETE", token)

    def announce(self, token: int) -> None:
        self._send("GET", token)

    def peek(self) -> str | None:
        row = self.things.respond("GET", self.resource, b"")
        return row[1].decode() if row[0].startswith("200") else None

    def raise_floor(self, token: int) -> None:
        self.things.fence.raise_floor(self.resource, token)

    def floor(self) -> int | None:
        return self.things.fence.floor(self.resource)

    def _close(self) -> None:
        self.client.close()
        self.things.database.close()
