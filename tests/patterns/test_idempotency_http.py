"""The ``Idempotency-Key`` header before real applications: one execution, the same answer, nobody else's."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import io
import json
import threading
import time
import wsgiref.simple_server
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.patterns.conftest import PATIENT, STORES, async_store_of, store_of

from leasehold import Misuse
from leasehold.patterns.idempotency import InThreads, SqlKeys, Store
from leasehold.patterns.idempotency.http import AsgiIdempotency, Message, Scope, WsgiIdempotency


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def replayed(self) -> bool:
        return self.headers.get("idempotency-replayed") == "true"


class Shop:
    """What both applications do: each call is an order, and the path says how it ends."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.orders = 0
        self.before_the_answer: Callable[[], object] = lambda: time.sleep(seconds)
        self._lock = threading.Lock()

    def serve(self, path: str, body: bytes) -> tuple[int, list[tuple[str, str]], list[bytes]]:
        with self._lock:
            self.orders += 1
            number = self.orders
        self.before_the_answer()
        status = int(path.rpartition("/")[2]) if path[-3:].isdigit() else 201
        parts = [b"\x00\xff order %d " % number, body]
        if path.startswith("/large"):
            parts.append(b"x" * 70_000)
        return status, [("Location", f"/orders/{number}"), ("X-Twice", "a"), ("X-Twice", "b")], parts


Call = Callable[..., Reply]
Serve = Callable[..., contextlib.AbstractContextManager[Call]]


def asgi(shop: Shop, store: SqlKeys, **rules: Any) -> contextlib.AbstractContextManager[Call]:
    async def app(scope: Scope, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message["body"], message["more_body"]
        status, headers, parts = await asyncio.to_thread(shop.serve, scope["path"], body)
        raw = [(name.lower().encode(), value.encode()) for name, value in headers]
        await send({"type": "http.response.start", "status": status, "headers": raw})
        for part in parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    def tenant(scope: Scope) -> str:
        return str(dict(scope["headers"]).get(b"x-tenant", b"nobody"), "ascii")

    wrapped = AsgiIdempotency(app, InThreads(store), tenant=tenant, **rules)

    def call(path: str, body: bytes = b"", *, method: str = "POST", query: str = "", **headers: str) -> Reply:
        async def run() -> Reply:
            raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
            scope = {"type": "http", "method": method, "path": path, "query_string": query.encode(), "headers": raw}
            unread, said = [body[:5], body[5:]], list[Message]()

            async def receive() -> Message:
                part = unread.pop(0)
                return {"type": "http.request", "body": part, "more_body": bool(unread)}

            async def send(message: Message) -> None:
                said.append(message)

            await wrapped(scope, receive, send)
            found = {name.decode().lower(): value.decode() for name, value in said[0]["headers"]}
            return Reply(said[0]["status"], found, b"".join(one["body"] for one in said[1:]))

        return asyncio.run(run())

    return contextlib.nullcontext(call)


class _Quiet(wsgiref.simple_server.WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing."""


class _Threaded(wsgiref.simple_server.WSGIServer):
    request_queue_size = 128

    def process_request(self, request: Any, client_address: Any) -> None:
        threading.Thread(target=self._serve, args=(request, client_address), daemon=True).start()

    def _serve(self, request: Any, client_address: Any) -> None:
        self.finish_request(request, client_address)
        self.shutdown_request(request)


@contextlib.contextmanager
def wsgi(shop: Shop, store: Store, **rules: Any) -> Iterator[Call]:
    """Behind a real server and its socket."""

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        status, headers, parts = shop.serve(environ["PATH_INFO"], body)
        start_response(f"{status} Some", headers)
        return iter(parts)

    wrapped = WsgiIdempotency(app, store, tenant=lambda environ: environ.get("HTTP_X_TENANT", "nobody"), **rules)
    server = _Threaded(("127.0.0.1", 0), _Quiet)
    server.set_app(wrapped)
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    serving.start()

    def call(path: str, body: bytes = b"", *, method: str = "POST", query: str = "", **headers: str) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=PATIENT)
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path + (f"?{query}" if query else ""), body, given)
        answer = connection.getresponse()
        reply = Reply(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
        connection.close()
        return reply

    try:
        yield call
    finally:
        server.shutdown()
        serving.join()
        server.server_close()


@pytest.fixture(params=[asgi, wsgi])
def serve(request: pytest.FixtureRequest) -> Serve:
    serve: Serve = request.param
    return serve


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlKeys]:
    keys = SqlKeys(tmp_path / "app.db")
    keys.create()
    yield keys
    keys.close()


def test_the_second_request_gets_the_first_answer_with_its_headers_and_bytes(serve: Serve, store: SqlKeys) -> None:
    shop = Shop()
    with serve(shop, store) as call:
        first = call("/orders", b"two chairs", idempotency_key='"k-1"')
        second = call("/orders", b"two chairs", idempotency_key='"k-1"')
    assert (first.status, first.body) == (201, b"\x00\xff order 1 two chairs")
    assert (second.status, second.body, second.headers["location"]) == (201, first.body, "/orders/1")
    assert (first.replayed, second.replayed) == (False, True)
    assert shop.orders == 1


def test_a_hundred_requests_at_once_and_one_order(serve: Serve, store: SqlKeys) -> None:
    shop = Shop(seconds=0.3)
    with serve(shop, store, wait=PATIENT) as call, ThreadPoolExecutor(100) as pool:
        replies = list(pool.map(lambda _: call("/orders", b"x", idempotency_key="k-1"), range(100)))
    assert shop.orders == 1
    assert {(reply.status, reply.body) for reply in replies} == {(201, replies[0].body)}
    assert sum(reply.replayed for reply in replies) == 99


@pytest.mark.parametrize("kind", STORES[1:])
def test_a_hundred_requests_at_once_and_one_order_on_every_store(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """On SQLite it is the test above."""
    with store_of(kind, request, tmp_path) as store:
        shop = Shop(seconds=0.3)
        with wsgi(shop, store, wait=PATIENT) as call, ThreadPoolExecutor(100) as pool:
            replies = list(pool.map(lambda _: call("/orders", b"x", idempotency_key="k-1"), range(100)))
        assert shop.orders == 1
        assert {(reply.status, reply.body) for reply in replies} == {(201, replies[0].body)}
        assert sum(reply.replayed for reply in replies) == 99
        at_once = asyncio.run(_a_hundred_in_one_loop(store))
        assert sorted(at_once) == [(201, False), *[(201, True)] * 99]


async def _a_hundred_in_one_loop(store: Any) -> list[tuple[int, bool]]:
    async def app(_scope: Scope, receive: Any, send: Any) -> None:
        await receive()
        await asyncio.sleep(0.3)
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b"made"})

    async def ask(wrapped: AsgiIdempotency) -> tuple[int, bool]:
        said = list[Message]()

        async def receive() -> Message:
            return {"type": "http.request", "body": b"x"}

        async def send(message: Message) -> None:
            said.append(message)

        headers = [(b"idempotency-key", b"k-2")]
        await wrapped({"type": "http", "method": "POST", "path": "/", "headers": headers}, receive, send)
        return said[0]["status"], (b"idempotency-replayed", b"true") in said[0]["headers"]

    async with async_store_of(store) as keeping:
        wrapped = AsgiIdempotency(app, keeping, tenant=lambda _scope: "one", wait=PATIENT)
        return await asyncio.gather(*(ask(wrapped) for _ in range(100)))


def test_who_comes_while_it_is_under_way_is_told_to_come_again(serve: Serve, store: SqlKeys) -> None:
    shop, may_end = Shop(), threading.Event()
    shop.before_the_answer = lambda: may_end.wait(PATIENT)
    with serve(shop, store) as call, ThreadPoolExecutor(1) as pool:
        first = pool.submit(call, "/orders", b"x", idempotency_key="k-1")
        while not shop.orders:
            time.sleep(0.01)
        refused = call("/orders", b"x", idempotency_key="k-1")
        may_end.set()
        assert first.result().status == 201
        assert call("/orders", b"x", idempotency_key="k-1").replayed
    assert refused.headers["retry-after"] == "1"
    _is_problem(refused, 409)
    assert shop.orders == 1


def _is_problem(reply: Reply, status: int) -> None:
    assert reply.status == status
    assert reply.headers["content-type"] == "application/problem+json"
    told = json.loads(reply.body)
    assert told["status"] == status
    assert told["title"]
    assert told["detail"]
    assert reply.headers["content-length"] == str(len(reply.body))


def test_another_request_with_the_same_key_is_refused(serve: Serve, store: SqlKeys) -> None:
    shop = Shop()
    with serve(shop, store) as call:
        call("/orders", b"two chairs", idempotency_key="k-1")
        _is_problem(call("/orders", b"three chairs", idempotency_key="k-1"), 422)
        _is_problem(call("/orders", b"two chairs", query="express=1", idempotency_key="k-1"), 422)
    assert shop.orders == 1


def test_keys_of_tenants_paths_and_methods_do_not_meet(serve: Serve, store: SqlKeys) -> None:
    shop = Shop()
    with serve(shop, store) as call:
        for path, tenant, method in (
            ("/a", "1", "POST"),
            ("/a", "2", "POST"),
            ("/b", "1", "POST"),
            ("/a", "1", "PATCH"),
        ):
            reply = call(path, b"x", method=method, x_tenant=tenant, idempotency_key="k-1")
            assert not reply.replayed
    assert shop.orders == 4


def test_a_path_in_any_script_is_the_same_behind_wsgi_and_asgi(store: SqlKeys) -> None:
    """A key that was used with one kind of server is known to the other."""
    shop = Shop()
    with wsgi(shop, store) as call:
        call("/kunden/%C3%84rzte", b"pay 10", idempotency_key="k-1")
    with asgi(shop, store) as call:
        again = call("/kunden/Ärzte", b"pay 10", idempotency_key="k-1")
    assert again.replayed
    assert shop.orders == 1


@pytest.mark.parametrize("header", ['"', '""', '" "', "a b", '"a', "x" * 256, '"\\x"', "☃".encode().decode("latin-1")])
def test_what_is_no_key_is_refused(serve: Serve, store: SqlKeys, header: str) -> None:
    shop = Shop()
    with serve(shop, store) as call:
        _is_problem(call("/orders", b"x", idempotency_key=header), 400)
    assert shop.orders == 0


def test_without_a_key_the_application_decides_unless_one_is_required(serve: Serve, store: SqlKeys) -> None:
    shop = Shop()
    with serve(shop, store) as call:
        assert [call("/orders").status, call("/orders").status] == [201, 201]
    with serve(shop, store, required=True) as call:
        _is_problem(call("/orders"), 400)
        assert call("/orders", method="GET").status == 201
    assert shop.orders == 3


@pytest.mark.parametrize(("status", "kept"), [(200, True), (404, True), (409, True), (429, False), (500, False)])
def test_answers_that_say_try_again_are_not_kept(serve: Serve, store: SqlKeys, status: int, kept: bool) -> None:
    shop = Shop()
    with serve(shop, store) as call:
        replies = [call(f"/orders/{status}", b"x", idempotency_key="k-1") for _ in range(2)]
    assert [reply.status for reply in replies] == [status, status]
    assert shop.orders == (1 if kept else 2)


def test_server_errors_are_kept_on_request(serve: Serve, store: SqlKeys) -> None:
    shop = Shop()
    with serve(shop, store, keep_server_errors=True) as call:
        assert [call("/orders/500", idempotency_key="k-1").status for _ in range(2)] == [500, 500]
    assert shop.orders == 1


def test_an_answer_that_is_too_large_is_given_once_and_not_made_again(serve: Serve, store: SqlKeys) -> None:
    shop = Shop()
    with serve(shop, store) as call:
        assert len(call("/large", b"x", idempotency_key="k-1").body) > 70_000
        again = call("/large", b"x", idempotency_key="k-1")
    assert again.status == 409
    assert b"too large to be kept" in again.body
    assert shop.orders == 1


def test_a_body_that_is_too_large_is_refused(serve: Serve, store: SqlKeys) -> None:
    shop = Shop()
    with serve(shop, store, largest_body=100) as call:
        _is_problem(call("/orders", b"x" * 101, idempotency_key="k-1"), 413)
        assert call("/orders", b"x" * 100, idempotency_key="k-1").status == 201
    assert shop.orders == 1


def test_headers_that_come_twice_are_kept_in_their_order(store: SqlKeys) -> None:
    async def app(_scope: Scope, _receive: Any, send: Any) -> None:
        headers = [(b"set-cookie", b"a=1"), (b"x-raw", b"\xff"), (b"set-cookie", b"b=2")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"\x00"})

    told = [asyncio.run(_told(AsgiIdempotency(app, InThreads(store), tenant=lambda _scope: "one"))) for _ in range(2)]
    expected = [(b"set-cookie", b"a=1"), (b"x-raw", b"\xff"), (b"set-cookie", b"b=2")]
    assert told[0][0]["headers"] == expected
    assert told[1][0]["headers"] == [*expected, (b"idempotency-replayed", b"true")]


async def _told(app: AsgiIdempotency, *parts: Message, **scope: Any) -> list[Message]:
    """What is said to a request whose body comes in these parts."""
    unread, said = list(parts or ({"type": "http.request", "body": b"x"},)), list[Message]()

    async def receive() -> Message:
        return unread.pop(0)

    async def send(message: Message) -> None:
        said.append(message)

    headers = [(b"idempotency-key", b"k-1")]
    await app({"type": "http", "method": "POST", "path": "/", "headers": headers, **scope}, receive, send)
    return said


def test_a_client_that_goes_in_the_middle_of_its_request_has_asked_for_nothing(store: SqlKeys) -> None:
    async def app(*_: Any) -> None:
        pytest.fail("half a request was carried out")

    wrapped = AsgiIdempotency(app, InThreads(store), tenant=lambda _scope: "one")
    half = {"type": "http.request", "body": b"pay 10", "more_body": True}
    assert asyncio.run(_told(wrapped, half, {"type": "http.disconnect"})) == []


def test_an_application_sends_bytes_and_not_the_name_of_a_file(store: SqlKeys) -> None:
    async def app(scope: Scope, _receive: Any, send: Any) -> None:
        assert not scope["extensions"]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"bytes"})

    wrapped = AsgiIdempotency(app, InThreads(store), tenant=lambda _scope: "one")
    told = asyncio.run(_told(wrapped, extensions={"http.response.pathsend": {}}))
    assert told[1]["body"] == b"bytes"


@pytest.mark.parametrize(
    ("environ", "status"),
    [
        ({"CONTENT_LENGTH": "7"}, 400),
        ({"CONTENT_LENGTH": "many"}, 400),
        ({"HTTP_TRANSFER_ENCODING": "chunked"}, 411),
        ({"HTTP_TRANSFER_ENCODING": "chunked", "wsgi.input_terminated": True}, 200),
        ({"CONTENT_LENGTH": "6"}, 200),
    ],
)
def test_a_body_that_is_not_all_there_is_not_acted_upon(store: SqlKeys, environ: dict[str, Any], status: int) -> None:
    orders, told = list[bytes](), list[str]()

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        orders.append(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
        start_response("200 OK", [])(b"written, ")
        return [b"returned"]

    wrapped = WsgiIdempotency(app, store, tenant=lambda _environ: "one")
    request = {"REQUEST_METHOD": "POST", "HTTP_IDEMPOTENCY_KEY": "k-1", "wsgi.input": io.BytesIO(b"pay 10"), **environ}
    body = b"".join(wrapped(request, lambda status, _headers: told.append(status)))  # type: ignore[arg-type, return-value]
    assert told[0].startswith(str(status))
    assert orders == ([b"pay 10"] if status == 200 else [])
    assert (body == b"written, returned") is (status == 200)


def test_wrong_rules_are_refused_at_once(store: SqlKeys) -> None:
    for rules in ({"tenant": "one"}, {"tenant": str, "largest_body": 0}, {"tenant": str, "largest_response": "much"}):
        with pytest.raises(Misuse):
            WsgiIdempotency(lambda _environ, _start: [], store, **rules)
