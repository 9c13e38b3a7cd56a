"""Clients that speak badly, slowly, too much, or not at all."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import time

import pytest
from tests.serve.conftest import TOKEN, Served, read_all, wait_for

from leasehold import Leasehold
from leasehold.serve.http import MOST_BODY_BYTES, MOST_HEADER_BYTES
from leasehold.serve.server import MOST_CONNECTIONS, MOST_VIEWERS

RESET_AT_CLOSE = struct.pack("ii", 1, 0)


def request(served: Served, path: str = "/api/names", *more: str, method: str = "GET") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Host: 127.0.0.1:{served.port}", f"Authorization: Bearer {TOKEN}", *more]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def status_of(answer: bytes) -> int:
    assert answer.startswith(b"HTTP/1.1 "), answer[:200]
    return int(answer[9:12])


def code_of(answer: bytes) -> str:
    return str(json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"])


@pytest.mark.parametrize(
    "sent",
    [
        b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/2.0\r\n\r\n",
        b"GET / HTTP/1.1 x\r\n\r\n",
        b"get / HTTP/1.1\r\n\r\n",
        b"GET  / HTTP/1.1\r\n\r\n",
        b"GET http://127.0.0.1/ HTTP/1.1\r\n\r\n",
        b"GET /\x00 HTTP/1.1\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\n\r\n",
        b"GET /%ff HTTP/1.1\r\n\r\n",
        b"GET /" + b"x" * 5000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: HOST\r\nHost: evil.example\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost : HOST\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: HOST\r\n folded\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: HOST\nX: y\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: HOST\r\nX: a\x00b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: HOST\r\nno colon\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: HOST\r\nContent-Length: 5\r\n\r\nhello",
        b"POST /api/break HTTP/1.1\r\nHost: HOST\r\nContent-Length: -1\r\n\r\n",
        b"POST /api/break HTTP/1.1\r\nHost: HOST\r\nContent-Length: +1\r\n\r\n",
        b"POST /api/break HTTP/1.1\r\nHost: HOST\r\nContent-Length: 1, 1\r\n\r\n",
        b"POST /api/break HTTP/1.1\r\nHost: HOST\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    ],
)
def test_what_is_not_http_is_refused_and_the_connection_closed(shared: Served, sent: bytes) -> None:
    answer = shared.raw(sent.replace(b"HOST", f"127.0.0.1:{shared.port}".encode()))
    assert (status_of(answer), code_of(answer)) == (400, "malformed")
    assert b"\r\nConnection: close\r\n" in answer
    assert shared.ask("/api/names").status == 200


def test_chunked_bodies_are_not_read(shared: Served) -> None:
    sent = request(shared, "/api/break", "Transfer-Encoding: chunked", method="POST") + b"0\r\n\r\n"
    answer = shared.raw(sent + request(shared))
    assert (status_of(answer), answer.count(b"HTTP/1.1 ")) == (501, 1)


def test_headers_have_a_limit(shared: Served) -> None:
    big = "X-Big: " + "x" * MOST_HEADER_BYTES
    assert status_of(shared.raw(request(shared, "/", big))) == 431
    assert status_of(shared.raw(request(shared, "/", *(f"X-{n}: y" for n in range(100)), "Connection: close"))) == 431
    endless = b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 200_000
    assert status_of(shared.raw(endless)) == 431
    fits = "X-Big: " + "x" * (MOST_HEADER_BYTES - 600)
    assert status_of(shared.raw(request(shared, "/", fits, "Connection: close"))) == 200


def test_bodies_have_a_limit(shared: Served) -> None:
    declared = request(shared, "/api/break", f"Content-Length: {MOST_BODY_BYTES + 1}", method="POST")
    assert status_of(shared.raw(declared)) == 413
    assert status_of(shared.raw(declared + b"x" * (MOST_BODY_BYTES + 1))) == 413
    assert shared.ask("/api/break", "POST", b" " * MOST_BODY_BYTES).status == 400


def test_several_requests_share_a_connection(shared: Served) -> None:
    last = request(shared, "/nothing", "Connection: close")
    answer = shared.raw(request(shared) + request(shared, "/", method="HEAD") + last)
    statuses = [int(part[:3]) for part in answer.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [200, 200, 404]
    old = request(shared, "/").replace(b"HTTP/1.1", b"HTTP/1.0")
    assert status_of(shared.raw(old)) == 200  # and the connection is closed, or this would not return


def test_head_has_no_body(shared: Served) -> None:
    for path in ("/", "/api/names", "/metrics"):
        answer = shared.raw(request(shared, path, "Connection: close", method="HEAD"))
        assert answer.endswith(b"\r\n\r\n")
        assert b"\r\nContent-Length: 0\r\n" not in answer
    stream = shared.raw(request(shared, "/api/events", method="HEAD"))
    assert (status_of(stream), stream.endswith(b"\r\n\r\n")) == (200, True)


@pytest.mark.parametrize(
    ("limit", "sent"),
    [
        ("HEADER_WITHIN", b"GET / HTTP/1.1\r\nX: "),
        ("BODY_WITHIN", b"POST /api/break HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nabc"),
    ],
)
def test_a_slow_client_is_let_go(served: Served, monkeypatch: pytest.MonkeyPatch, limit: str, sent: bytes) -> None:
    """One that sends a byte now and then gets no more time than one that sends nothing."""
    monkeypatch.setattr(f"leasehold.serve.http.{limit}", 1.0)
    began = time.monotonic()
    with served.connect() as connection:
        connection.sendall(sent)
        connection.settimeout(0.1)
        answer = b""
        while not answer:
            assert time.monotonic() < began + 30, "it was not let go"
            with contextlib.suppress(TimeoutError):
                answer = connection.recv(1 << 16)
            if not answer:
                connection.sendall(b"x")
        connection.settimeout(30)
        answer += read_all(connection)
    assert (status_of(answer), code_of(answer)) == (408, "too_slow")
    assert time.monotonic() - began >= 1.0


def test_an_idle_connection_is_closed(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leasehold.serve.http.IDLE_WITHIN", 0.2)
    with served.connect() as connection:
        assert read_all(connection) == b""


def test_clients_that_reset_after_a_bad_request_leave_nothing_in_the_log(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(50):
        with served.connect() as connection:
            connection.sendall(b"GARBAGE\r\n\r\n")
            assert connection.recv(10)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_CLOSE)
    assert status_of(served.raw(request(served, "/api/names", "Connection: close"))) == 200
    wait_for(lambda: not served.server._connections, "the connections to end")
    assert [record.getMessage() for record in caplog.records] == []


def test_connections_are_limited_and_come_back(served: Served) -> None:
    with contextlib.ExitStack() as many:
        for _ in range(MOST_CONNECTIONS):
            many.enter_context(served.connect()).sendall(b"G")
        answer = wait_for(lambda: served.raw(request(served)), "it answers")
        assert (status_of(answer), code_of(answer)) == (503, "busy")
    wait_for(lambda: status_of(served.raw(request(served, "/", "Connection: close"))) == 200, "there is room again")


def open_stream(served: Served) -> socket.socket:
    connection = served.connect()
    connection.sendall(request(served, "/api/events"))
    assert connection.recv(12) == b"HTTP/1.1 200"
    return connection


def test_open_pages_are_limited_and_come_back(served: Served) -> None:
    with contextlib.ExitStack() as many:
        for _ in range(MOST_VIEWERS):
            many.enter_context(open_stream(served))
        answer = served.raw(request(served, "/api/events"))
        assert (status_of(answer), code_of(answer)) == (503, "busy")
        assert served.ask("/api/names").status == 200
    wait_for(lambda: not served.server.api.watch.viewers, "the viewers are gone")
    open_stream(served).close()


def test_a_page_that_does_not_read_is_let_go(locks: Leasehold, served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leasehold.serve.server.WRITE_WITHIN", 0.3)
    leases = [locks.lock(f"name-{n:0200}", ttl=600).acquire() for n in range(300)]
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", served.port))
        connection.sendall(request(served, "/api/events?limit=1000"))
        wait_for(lambda: served.server.api.watch.viewers, "it listens")
        wait_for(lambda: not served.server.api.watch.viewers, "it was let go", within=60)
    for lease in leases:
        lease.release()


def test_a_mistake_of_ours_is_not_told_to_clients(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("planted-detail")

    monkeypatch.setattr(served.server.api.watch, "names", broken)
    answer = served.ask("/api/names")
    assert (answer.status, answer.code, b"planted" in answer.body) == (500, "mistake", False)
    assert "planted-detail" in caplog.text
    assert TOKEN not in caplog.text
