"""The proxy itself: each fault does what it says, seen from plain sockets."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from leasehold.testing.proxy import Proxy


class Echo:
    """A server that answers each request with the same bytes, and remembers them."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._ends: list[socket.socket] = [self._listener]
        self.port: int = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                end, _ = self._listener.accept()
            except OSError:
                return
            self._ends.append(end)
            thread = threading.Thread(target=self._answer, args=(end,))
            self._threads.append(thread)
            thread.start()

    def _answer(self, end: socket.socket) -> None:
        try:
            while request := end.recv(100):
                self.seen.append(request)
                end.sendall(request)
        except OSError:
            return

    def close(self) -> None:
        for end in list(self._ends):
            with contextlib.suppress(OSError):  # the peer may have been first
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5)
        for end in self._ends:
            end.close()


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.close()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[Proxy]:
    with Proxy("127.0.0.1", echo.port) as proxy:
        yield proxy


class Client:
    def __init__(self, proxy: Proxy) -> None:
        self._end = socket.create_connection((proxy.host, proxy.port))
        self._end.settimeout(0.15)

    def ask(self, request: bytes = b"x") -> bytes | str:
        """The answer, or in a word what came instead."""
        try:
            self._end.sendall(request)
            return self._end.recv(100) or "closed"
        except TimeoutError:
            return "silence"
        except OSError:
            return "reset"

    def close(self) -> None:
        self._end.close()


@pytest.fixture
def connect(proxy: Proxy) -> Iterator[Callable[[], Client]]:
    opened: list[Client] = []

    def open_one() -> Client:
        opened.append(Client(proxy))
        return opened[-1]

    yield open_one
    for client in opened:
        client.close()


Connect = Callable[[], Client]


def test_passes_both_ways_in_order(connect: Connect, proxy: Proxy, echo: Echo) -> None:
    client = connect()
    assert [client.ask(bytes([n])) for n in range(20)] == [bytes([n]) for n in range(20)]
    assert proxy.traffic.requests == proxy.traffic.replies == 20


def test_a_black_hole_says_nothing_and_new_connections_open_into_it(connect: Connect, proxy: Proxy, echo: Echo) -> None:
    old = connect()
    assert old.ask() == b"x"
    proxy.black_hole()
    new = connect()
    assert [old.ask(b"y"), new.ask(b"z")] == ["silence", "silence"]
    assert echo.seen == [b"x"]
    proxy.heal()
    assert [old.ask(), new.ask()] == ["reset", "reset"]
    assert connect().ask() == b"x"


def test_swallows_one_way_only(connect: Connect, proxy: Proxy, echo: Echo) -> None:
    proxy.cut("replies")
    assert connect().ask(b"carried out") == "silence"
    proxy.heal()
    proxy.cut("requests")
    assert connect().ask(b"never seen") == "silence"
    assert echo.seen == [b"carried out"]


def test_delays_without_reordering(connect: Connect, proxy: Proxy) -> None:
    client = connect()
    proxy.delay(0.03)
    started = time.monotonic()
    assert [client.ask(b"1"), client.ask(b"2")] == [b"1", b"2"]
    assert time.monotonic() - started >= 0.12


def test_resets_now_and_passes_later(connect: Connect, proxy: Proxy) -> None:
    client = connect()
    assert client.ask() == b"x"
    proxy.reset()
    assert client.ask() == "reset"
    assert connect().ask() == b"x"


def test_refuses_until_healed(connect: Connect, proxy: Proxy) -> None:
    proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        connect()
    proxy.heal()
    assert connect().ask() == b"x"


@pytest.mark.parametrize(("what", "seen"), [("reply", [b"1", b"2"]), ("request", [b"1"])])
def test_loses_the_one_that_was_named(connect: Connect, proxy: Proxy, echo: Echo, what: str, seen: list[bytes]) -> None:
    client = connect()
    proxy.lose("reply" if what == "reply" else "request", after=1)
    assert client.ask(b"1") == b"1"
    assert [proxy.struck, client.ask(b"2")] == [False, "reset"]
    assert proxy.struck
    assert echo.seen == seen
    assert connect().ask(b"3") == b"3"
