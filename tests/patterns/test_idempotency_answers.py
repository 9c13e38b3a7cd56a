"""When an answer behind the ``Idempotency-Key`` header counts: as soon as it is complete, whatever comes afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route
from tests.patterns.conftest import PATIENT

from leasehold import StaleToken
from leasehold.patterns.idempotency import InThreads, SqlKeys
from leasehold.patterns.idempotency.http import AsgiIdempotency, Message, Scope, WsgiIdempotency


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlKeys]:
    keys = SqlKeys(tmp_path / "app.db")
    keys.create()
    yield keys
    keys.close()


class Counter:
    """An ASGI application whose orders are answered in two parts; what it does around that, the test says."""

    def __init__(self, afterwards: Callable[[Any, Any], Any] | None = None, status: int = 201) -> None:
        self.orders, self.ended, self._afterwards, self._status = 0, 0, afterwards, status

    async def __call__(self, _scope: Scope, receive: Any, send: Any) -> None:
        self.orders += 1
        await receive()
        await send({"type": "http.response.start", "status": self._status, "headers": []})
        await send({"type": "http.response.body", "body": b"order ", "more_body": True})
        await send({"type": "http.response.body", "body": b"%d" % self.orders})
        if self._afterwards is not None:
            await self._afterwards(receive, send)
        self.ended += 1


def _said(said: list[Message]) -> tuple[int, bytes]:
    assert [one["type"] for one in said] == ["http.response.start", "http.response.body"]
    return said[0]["status"], said[1]["body"]


class Request:
    """One request to an ASGI application, which may go on when it was answered."""

    def __init__(self, app: Any, *, path: str = "/", is_gone: bool = False) -> None:
        self.said, self.answered, self._is_gone = list[Message](), asyncio.Event(), is_gone
        self._unread: list[Message] = [{"type": "http.request", "body": b"x"}]
        scope = {"type": "http", "method": "POST", "path": path, "headers": [(b"idempotency-key", b"k-1")]}
        self.served = asyncio.create_task(app(scope, self._receive, self._send))

    async def _receive(self) -> Message:
        if self._unread:
            return self._unread.pop()
        if not self._is_gone:
            await self.answered.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if self.answered.is_set():
            raise RuntimeError(f"{message['type']} came after the end")
        self.said.append(message)
        if message["type"] == "http.response.body" and not message.get("more_body"):
            self.answered.set()
            if self._is_gone:
                raise OSError("the client has gone")


def in_time(main: Callable[[], Any]) -> None:
    asyncio.run(asyncio.wait_for(main(), PATIENT))


@pytest.mark.parametrize(("status", "orders"), [(201, 1), (503, 2)])
def test_an_answer_is_sent_when_it_is_complete_and_what_comes_afterwards_goes_on_by_itself(
    store: SqlKeys, status: int, orders: int
) -> None:
    async def main() -> None:
        may_end = asyncio.Event()

        async def mail(receive: Any, _send: Any) -> None:
            assert (await receive())["type"] == "http.disconnect"
            await may_end.wait()
            raise ConnectionError("the mail server is down")

        app = Counter(mail, status)
        wrapped = AsgiIdempotency(app, InThreads(store), tenant=lambda _scope: "one")
        requests = []
        for _ in range(2):
            requests.append(request := Request(wrapped))
            await request.answered.wait()
            assert not app.ended
        assert [_said(request.said) for request in requests] == [(status, b"order 1"), (status, b"order %d" % orders)]
        may_end.set()
        for request in requests[:orders]:
            with pytest.raises(ConnectionError):
                await request.served
        assert app.orders == orders

    in_time(main)


def test_a_background_task_of_starlette_that_fails_leaves_the_answer_as_it_is(store: SqlKeys) -> None:
    orders = list[int]()

    def fail() -> None:
        raise ConnectionError("the mail server is down")

    async def order(_request: Any) -> JSONResponse:
        orders.append(1)
        return JSONResponse({"order": len(orders)}, 201, background=BackgroundTask(fail))

    async def stream(_request: Any) -> StreamingResponse:
        orders.append(1)
        return StreamingResponse(iter([b"or", b"der"]), 201, background=BackgroundTask(fail))

    async def broken(_request: Any) -> JSONResponse:
        orders.append(1)
        raise ZeroDivisionError

    routes = [Route(f"/{one.__name__}", one, methods=["POST"]) for one in (order, stream, broken)]
    wrapped = AsgiIdempotency(Starlette(routes=routes), InThreads(store), tenant=lambda _scope: "one")

    async def main() -> None:
        for path, status, count in (("/order", 201, 1), ("/stream", 201, 1), ("/broken", 500, 2)):
            orders.clear()
            replies = list[Request]()
            for _ in range(2):
                replies.append(reply := Request(wrapped, path=path))
                await asyncio.wait([reply.served])
            failures = [type(reply.served.exception()) for reply in replies]
            assert failures == [ZeroDivisionError] * 2 if status == 500 else [ConnectionError, type(None)]
            assert _said(replies[0].said) == _said(replies[1].said)
            assert (replies[0].said[0]["status"], len(orders)) == (status, count)

    in_time(main)


def test_a_client_that_has_gone_is_answered_when_it_comes_again(store: SqlKeys) -> None:
    async def stream(_request: Any) -> StreamingResponse:
        async def parts() -> AsyncIterator[bytes]:
            for part in (b"one ", b"two ", b"three"):
                yield part
                await asyncio.sleep(0.01)  # where a disconnect would end it

        return StreamingResponse(parts(), 201)

    async def main() -> None:
        app = Starlette(routes=[Route("/", stream, methods=["POST"])])
        wrapped = AsgiIdempotency(app, InThreads(store), tenant=lambda _scope: "one")
        gone = Request(wrapped, is_gone=True)
        with contextlib.suppress(OSError):
            await gone.served
        again = Request(wrapped)
        await again.served
        assert _said(again.said) == _said(gone.said) == (201, b"one two three")
        assert (b"idempotency-replayed", b"true") in again.said[0]["headers"]

    in_time(main)


def test_what_an_application_sends_after_its_answer_is_for_the_server_to_refuse(store: SqlKeys) -> None:
    async def more(_receive: Any, send: Any) -> None:
        await send({"type": "http.response.body", "body": b"more"})

    async def main() -> None:
        app = Counter(more)
        wrapped = AsgiIdempotency(app, InThreads(store), tenant=lambda _scope: "one")
        first = Request(wrapped)
        with pytest.raises(RuntimeError, match="after the end"):
            await first.served
        again = Request(wrapped)
        await again.served
        assert _said(first.said) == _said(again.said) == (201, b"order 1")

    in_time(main)


def test_an_application_that_stops_before_the_end_of_its_answer_has_given_none(store: SqlKeys) -> None:
    orders = list[int]()

    async def app(_scope: Scope, _receive: Any, send: Any) -> None:
        orders.append(1)
        if len(orders) == 1:
            await send({"type": "http.response.body", "body": b"too soon"})
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"half", "more_body": len(orders) == 2})

    async def main() -> None:
        wrapped = AsgiIdempotency(app, InThreads(store), tenant=lambda _scope: "one")
        for why in ("before it began", "before the end"):
            with pytest.raises(RuntimeError, match=why):
                await Request(wrapped).served
        last = Request(wrapped)
        await last.served
        assert _said(last.said) == (200, b"half")

    in_time(main)


@pytest.mark.parametrize("swallows", [False, True])
def test_a_run_that_was_taken_over_gives_no_answer_of_its_own(store: SqlKeys, swallows: bool) -> None:
    async def main() -> None:
        taken_over, orders = asyncio.Event(), list[int]()

        async def app(_scope: Scope, _receive: Any, send: Any) -> None:
            orders.append(1)
            number = len(orders)
            if number == 1:
                await taken_over.wait()
            with contextlib.suppress(*[StaleToken] if swallows else []):
                await send({"type": "http.response.start", "status": 201, "headers": []})
                await send({"type": "http.response.body", "body": b"order %d" % number})

        wrapped = AsgiIdempotency(app, InThreads(store), tenant=lambda _scope: "one", lease=1)
        late = Request(wrapped)
        while not orders:  # noqa: ASYNC110 - it says so when it runs
            await asyncio.sleep(0.01)
        while True:
            second = Request(wrapped)
            await second.served
            if second.said[0]["status"] != 409:
                break
            await asyncio.sleep(0.1)
        taken_over.set()
        with pytest.raises(StaleToken):
            await late.served
        assert (_said(second.said), late.said) == ((201, b"order 2"), [])

    in_time(main)


def test_what_a_wsgi_application_does_when_its_answer_was_sent_is_no_part_of_it(store: SqlKeys) -> None:
    orders, closed = list[int](), list[bool]()

    class Parts(list[bytes]):
        def close(self) -> None:
            closed.append(True)
            raise ConnectionError("the mail server is down")

    def app(_environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        orders.append(1)
        start_response("201 Created", [])
        return Parts([b"order"])

    wrapped = WsgiIdempotency(app, store, tenant=lambda _environ: "one")

    def ask() -> Any:
        request = {"REQUEST_METHOD": "POST", "HTTP_IDEMPOTENCY_KEY": "k-1", "wsgi.input": io.BytesIO(b"")}
        return wrapped(request, lambda _status, _headers: None)  # type: ignore[arg-type, return-value]

    first, again = ask(), ask()
    assert list(first) == list(again) == [b"order"]
    assert not closed
    with pytest.raises(ConnectionError):
        first.close()
    again.close()
    assert (len(orders), len(closed)) == (1, 1)
