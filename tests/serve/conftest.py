"""A server on a free loopback port, on a real engine, and clients that speak to it as others would."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from leasehold import Leasehold
from leasehold.serve import Server, Settings, serving

TOKEN = "the-token-of-the-tests-" + "x" * 20
PATIENCE = 30.0


def wait_for(condition: Callable[[], object], what: str, within: float = PATIENCE) -> Any:
    """Wait until something is so; fail if it does not become so."""
    give_up_at = time.monotonic() + within
    while not (value := condition()):
        assert time.monotonic() < give_up_at, f"not within {within:g} s: {what}"
        time.sleep(0.02)
    return value


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def data(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The word for programs in an error."""
        return str(self.data["error"]["code"])


class Served:
    """The server in a thread of its own."""

    def __init__(self, locks: Leasehold, settings: Settings) -> None:
        self.locks, self.settings = locks, settings
        self._started = threading.Event()
        self._over: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    async def _serve(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        async with serving(self.locks, self.settings) as self.server:
            self._started.set()
            await self._over.wait()

    def start(self) -> None:
        self._thread.start()
        assert self._started.wait(PATIENCE)

    def end(self) -> None:
        assert self._loop is not None
        assert self._over is not None
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "the server did not end"

    server: Server

    @property
    def port(self) -> int:
        return self.server.port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def ask(
        self, path: str, method: str = "GET", body: Any = None, *, token: str | None = TOKEN, **headers: str
    ) -> Answer:
        """One request over a connection of its own; underscores in the names of headers stand for dashes."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        sent = {"Authorization": f"Bearer {token}"} if token is not None else {}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        content = None
        if body is not None:
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            sent.setdefault("Content-Type", "application/json")
        with contextlib.closing(connection):
            connection.request(method, path, content, sent)
            answer = connection.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())

    def raw(self, sent: bytes) -> bytes:
        """What comes back for bytes as they are, until the server closes the connection."""
        with self.connect() as connection, contextlib.suppress(ConnectionError):
            connection.sendall(sent)
            return read_all(connection)
        return b""

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)

    def session(self) -> dict[str, str]:
        """The headers of a browser that came in."""
        answer = self.ask("/api/session", "POST")
        assert answer.status == 201, answer
        cookie = answer.headers["set-cookie"].partition(";")[0]
        return {"Cookie": cookie, "X_CSRF_Token": answer.data["csrf"]}


def read_all(connection: socket.socket) -> bytes:
    read = b""
    while some := connection.recv(1 << 16):
        read += some
    return read


ServeIt = Callable[..., Served]


@pytest.fixture
def locks(tmp_path: Path) -> Iterator[Leasehold]:
    with Leasehold(tmp_path / "leases.db", label="holder", request_timeout=PATIENCE) as one:
        yield one


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[ServeIt]:
    """Starts servers on the test's own file; ends them."""
    started: list[Served] = []
    with contextlib.ExitStack() as clients:

        def start(**settings: Any) -> Served:
            on = settings.pop("on", tmp_path / "leases.db")
            watching = clients.enter_context(Leasehold(on, request_timeout=PATIENCE))
            one = Served(watching, Settings(**{"token": TOKEN, "every": 0.2, **settings}))
            one.start()
            started.append(one)
            return one

        yield start
        for one in started:
            one.end()


@pytest.fixture
def served(serve: ServeIt) -> Served:
    return serve()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server for tests that leave nothing behind, on a file of its own; it allows to break."""
    file = tmp_path_factory.mktemp("shared") / "leases.db"
    with Leasehold(file, label="holder", request_timeout=PATIENCE) as locks:
        one = Served(locks, Settings(TOKEN, every=0.2, can_break=True))
        one.start()
        yield one
        one.end()
