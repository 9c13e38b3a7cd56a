"""The header on the wire, with real clients, real frameworks and a real database behind them."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import signal
import sqlite3
import subprocess
import sys
import threading
import wsgiref.simple_server
from collections.abc import Callable, Iterator, MutableMapping
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
import requests
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from tests.fences.http_guard import HttpGuard
from tests.fences.sql_guards import set_up_django

from leasehold import Leasehold
from leasehold.errors import LeaseLost, Misuse
from leasehold.fences import SqliteFence, TokenSigner
from leasehold.fences.http import AsgiFence, DjangoFence, WsgiFence, carrying, read_token, send_token, wsgi_path

RESOURCE = "/accounts/42"
ROOT = Path(__file__).parents[2]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "accounts.db"
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE account (id TEXT PRIMARY KEY, balance TEXT)")
        SqliteFence(database).create()
    return path


class Accounts:
    """What a service keeps; one connection a thread, as frameworks have it."""

    def __init__(self, path: Path) -> None:
        self._path, self._local = path, threading.local()

    @property
    def database(self) -> sqlite3.Connection:
        if not hasattr(self._local, "database"):
            self._local.database = sqlite3.connect(self._path, timeout=10, isolation_level=None)
        database: sqlite3.Connection = self._local.database
        return database

    def writing(self, resource: str, token: int) -> contextlib.AbstractContextManager[sqlite3.Connection]:
        return SqliteFence(self.database).writing(resource, token)

    def put(self, resource: str, balance: str) -> None:
        self.database.execute("INSERT OR REPLACE INTO account VALUES (?, ?)", (resource, balance))

    def get(self, resource: str) -> str | None:
        row = self.database.execute("SELECT balance FROM account WHERE id = ?", (resource,)).fetchone()
        return None if row is None else str(row[0])

    def floor(self, resource: str) -> int | None:
        return SqliteFence(self.database).floor(resource)


@pytest.fixture
def accounts(path: Path) -> Iterator[Accounts]:
    accounts = Accounts(path)
    yield accounts
    accounts.database.close()


def wsgi_app(accounts: Accounts) -> Any:
    """A plain app: PUT stores its body, 'fail' in it answers 500 after the write, GET shows."""

    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        resource = environ["PATH_INFO"]
        if environ["REQUEST_METHOD"] == "GET":
            start_response("200 OK", [("Content-Type", "text/plain")])
            return [(accounts.get(resource) or "nothing").encode()]
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0)).decode()
        accounts.put(resource, body)
        start_response("500 Oh no" if "fail" in body else "200 OK", [("Content-Type", "text/plain")])
        return [str(environ.get("leasehold.token")).encode()]

    return app


def asgi_app(accounts: Accounts) -> Any:
    async def account(request: Request) -> Response:
        if request.method == "GET":
            return PlainTextResponse(accounts.get(request.url.path) or "nothing")
        body = (await request.body()).decode()
        accounts.put(request.url.path, body)
        return PlainTextResponse(str(request.scope.get("leasehold.token")), 500 if "fail" in body else 200)

    return Starlette(routes=[Route("/{path:path}", account, methods=["GET", "PUT"])])


def django_app(accounts: Accounts) -> Any:
    """Middleware and a view of Django's, called as its own handler calls them."""
    set_up_django()
    responses = importlib.import_module("django.http")
    requests_of = importlib.import_module("django.core.handlers.wsgi").WSGIRequest

    def view(request: Any) -> Any:
        if request.method == "GET":
            return responses.HttpResponse(accounts.get(request.path) or "nothing")
        body = request.body.decode()
        accounts.put(request.path, body)
        return responses.HttpResponse(str(request.META.get("leasehold.token")), status=500 if "fail" in body else 200)

    answer = DjangoFence(accounts.writing)(view)

    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        response = answer(requests_of(environ))
        start_response(f"{response.status_code} {response.reason_phrase}", list(response.items()))
        return [response.content]

    return app


@pytest.fixture(params=["wsgi", "asgi", "django"])
def call(request: pytest.FixtureRequest, accounts: Accounts) -> Iterator[Callable[..., httpx.Response]]:
    """Sends a request to the fenced app, in this process."""
    if request.param != "asgi":
        is_django = request.param == "django"
        app = django_app(accounts) if is_django else WsgiFence(wsgi_app(accounts), accounts.writing)
        with httpx.Client(transport=httpx.WSGITransport(app)) as client:
            yield client.request
        return
    transport = httpx.ASGITransport(AsgiFence(asgi_app(accounts), accounts.writing))

    def send(*arguments: Any, **more: Any) -> httpx.Response:
        async def sending() -> httpx.Response:
            async with httpx.AsyncClient(transport=transport) as client:
                return await client.request(*arguments, **more)

        return asyncio.run(sending())

    yield send


URL = f"http://service{RESOURCE}"


def put(call: Callable[..., httpx.Response], token: object, body: str) -> httpx.Response:
    return call("PUT", URL, headers={"Fencing-Token": str(token)}, content=body)


def test_a_stale_token_is_refused_with_412(call: Callable[..., httpx.Response], accounts: Accounts) -> None:
    assert put(call, 34, "100").text == "34", "the app can see the token"
    refused = put(call, 33, "0")
    assert refused.status_code == 412
    assert refused.headers["Content-Type"] == "application/problem+json"
    assert refused.headers["Cache-Control"] == "no-store"
    told = json.loads(refused.text)
    assert told.pop("detail").startswith("token 33 is stale for '/accounts/42'")
    assert told == {
        "type": "urn:leasehold:stale-token",
        "title": "Precondition Failed",
        "status": 412,
        "resource": RESOURCE,
        "token": "33",
        "seen": "34",
    }
    assert put(call, 34, "101").status_code == 200
    assert put(call, 35, "102").status_code == 200
    assert (accounts.get(RESOURCE), accounts.floor(RESOURCE)) == ("102", 35)


def test_a_write_without_a_token_is_refused_with_428(call: Callable[..., httpx.Response], accounts: Accounts) -> None:
    refused = call("PUT", URL, content="0")
    assert (refused.status_code, json.loads(refused.text)["type"]) == (428, "urn:leasehold:missing-token")
    assert accounts.get(RESOURCE) is None
    assert call("GET", URL).text == "nothing", "reads may come without one"


def test_a_read_with_a_token_raises_the_floor(call: Callable[..., httpx.Response], accounts: Accounts) -> None:
    assert call("GET", URL, headers={"Fencing-Token": "34"}).status_code == 200
    assert put(call, 33, "0").status_code == 412
    assert accounts.get(RESOURCE) is None


@pytest.mark.parametrize("value", ["", "x", "-1", "+1", "1.0", "0x1", "007", "1,2", "1 2", "9" * 19, "9" * 400, "1_0"])
def test_what_is_no_token_is_refused_with_400(
    value: str, call: Callable[..., httpx.Response], accounts: Accounts
) -> None:
    refused = put(call, value, "0")
    assert (refused.status_code, json.loads(refused.text)["type"]) == (400, "urn:leasehold:invalid-token")
    assert accounts.get(RESOURCE) is None


def test_digits_of_other_scripts_are_no_token() -> None:
    with pytest.raises(Misuse):
        read_token(["٣"])
    with pytest.raises(Misuse):
        read_token(["34", "34"])


def test_an_absurd_token_is_refused(call: Callable[..., httpx.Response], accounts: Accounts) -> None:
    refused = put(call, 2**63 - 1, "0")
    assert (refused.status_code, json.loads(refused.text)["type"]) == (400, "urn:leasehold:token-jump")
    assert accounts.floor(RESOURCE) is None


def test_a_response_that_tells_of_a_failure_leaves_nothing(
    call: Callable[..., httpx.Response], accounts: Accounts
) -> None:
    assert put(call, 34, "fail").status_code == 500
    assert (accounts.get(RESOURCE), accounts.floor(RESOURCE)) == (None, None)


def test_a_resource_may_be_found_in_another_way(accounts: Accounts) -> None:
    app = WsgiFence(wsgi_app(accounts), accounts.writing, resource=lambda environ: environ.get("HTTP_X_ACCOUNT"))
    with httpx.Client(transport=httpx.WSGITransport(app)) as client:
        assert client.put(URL, content="not fenced").text == "None"
        answered = client.put(URL, content="1", headers={"Fencing-Token": "5", "X-Account": "forty-two"})
        assert answered.status_code == 200
    assert accounts.floor("forty-two") == 5


def test_an_app_that_crashes_leaves_nothing(accounts: Accounts) -> None:
    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterator[bytes]:
        accounts.put(RESOURCE, "half")
        start_response("200 OK", [])
        yield b"so far"
        raise ZeroDivisionError

    transport = httpx.WSGITransport(WsgiFence(app, accounts.writing))
    with httpx.Client(transport=transport) as client, pytest.raises(ZeroDivisionError):
        client.put(URL, headers={"Fencing-Token": "5"})
    assert (accounts.get(RESOURCE), accounts.floor(RESOURCE)) == (None, None)


@pytest.mark.parametrize("world", ["wsgi", "asgi"])
def test_a_service_that_is_killed_half_way_leaves_nothing(world: str, tmp_path: Path) -> None:
    """Really killed, after the check and the write of a request and before its commit."""
    path = str(tmp_path / "things.db")
    with contextlib.closing(HttpGuard(f"http://service#{path}", "thing", in_asyncio=True)) as guard:
        guard.write(32, "whole")
        command = [sys.executable, "-m", "tests.fences.http_crash", world, path, "33"]
        killed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert (guard.peek(), guard.floor()) == ("whole", 32)
        guard.write(32, "still mine")
        assert guard.peek() == "still mine"


def test_websockets_and_lifespan_go_on_as_they_are(accounts: Accounts) -> None:
    seen: list[str] = []

    async def app(scope: dict[str, Any], receive: object, send: object) -> None:
        seen.append(scope["type"])

    async def nothing() -> MutableMapping[str, Any]:
        return {}

    async def sent(message: MutableMapping[str, Any]) -> None:
        raise AssertionError(message)

    for kind in ("lifespan", "websocket"):
        asyncio.run(AsgiFence(app, accounts.writing)({"type": kind}, nothing, sent))
    assert seen == ["lifespan", "websocket"]


def test_a_stalled_request_cannot_land_after_a_later_one(accounts: Accounts, path: Path) -> None:
    """It stalls inside of the app, after its token was checked: the later request waits until it has ended."""
    entered, go_on = threading.Event(), threading.Event()

    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        token = str(environ["leasehold.token"])
        if token == "33":
            entered.set()
            go_on.wait(20)
        accounts.put(RESOURCE, token)
        start_response("200 OK", [])
        return [b""]

    transport = httpx.WSGITransport(WsgiFence(app, accounts.writing))
    answers: dict[int, int] = {}

    def request(token: int) -> None:
        with httpx.Client(transport=transport) as client:
            answers[token] = client.put(URL, headers={"Fencing-Token": str(token)}).status_code
        accounts.database.close()

    first = threading.Thread(target=request, args=(33,))
    first.start()
    assert entered.wait(20)
    second = threading.Thread(target=request, args=(34,))
    second.start()
    second.join(0.3)
    assert second.is_alive(), "it waits for the one that is at work"
    go_on.set()
    first.join(20)
    second.join(20)
    assert answers == {33: 200, 34: 200}
    assert accounts.get(RESOURCE) == "34"


# Clients


@pytest.fixture
def service(accounts: Accounts) -> Iterator[str]:
    """The service behind a real socket."""

    class Quiet(wsgiref.simple_server.WSGIRequestHandler):
        def log_request(self, code: object = "-", size: object = "-") -> None:
            """Say nothing."""

    app = WsgiFence(wsgi_app(accounts), accounts.writing)
    with wsgiref.simple_server.make_server("127.0.0.1", 0, app, handler_class=Quiet) as server:

        def serve() -> None:
            server.serve_forever(poll_interval=0.02)
            accounts.database.close()

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}{RESOURCE}"
        server.shutdown()
        thread.join()


def test_clients_send_the_token_of_the_lease_that_they_carry(service: str, accounts: Accounts, tmp_path: Path) -> None:
    with Leasehold(tmp_path / "leases.db") as locks, requests.Session() as session:
        session.auth = cast("Any", send_token)
        with locks.lock("account/42") as lease, carrying(lease), httpx.Client(auth=send_token) as client:
            assert client.put(service, content="1").text == str(lease.token)
            assert session.put(service, data="2").text == str(lease.token)
        assert session.get(service).text == "2", "a read needs no lease"
        with pytest.raises(Misuse, match="carrying"):
            session.put(service, data="3")
        with carrying(lease), pytest.raises(LeaseLost):
            session.put(service, data="3")
        with carrying(lease.token - 1):
            assert session.put(service, data="3").status_code == 412
    assert accounts.get(RESOURCE) == "2"


def test_async_clients_and_tasks_carry_their_own(service: str, accounts: Accounts) -> None:
    async def put(client: httpx.AsyncClient, token: int) -> str:
        with carrying(token):
            await asyncio.sleep(0)
            return (await client.put(service, content=str(token))).text

    async def work() -> list[str]:
        async with httpx.AsyncClient(auth=send_token) as client:
            return [await put(client, 1), *await asyncio.gather(put(client, 5), put(client, 5))]

    assert asyncio.run(work()) == ["1", "5", "5"]
    assert accounts.floor(RESOURCE) == 5


# Paths


async def asgi_put(accounts: Accounts, url: str, token: int) -> httpx.Response:
    transport = httpx.ASGITransport(AsgiFence(asgi_app(accounts), accounts.writing))
    async with httpx.AsyncClient(transport=transport) as client:
        return await client.put(url, content="0", headers={"Fencing-Token": str(token)})


@pytest.mark.parametrize("resource", ["/kunden/Müller", "/kunden/Ärzte", "/kunden/Łódź", "/客户/1", "/a b", "/🚲"])
def test_a_path_in_any_script_is_one_resource_for_wsgi_and_asgi(
    resource: str, service: str, accounts: Accounts
) -> None:
    url = service.removesuffix(RESOURCE) + resource
    assert requests.put(url, data="1", headers={"Fencing-Token": "34"}, timeout=20).status_code == 200
    assert accounts.floor(resource) == 34
    refused = asyncio.run(asgi_put(accounts, url, 33))
    assert (refused.status_code, json.loads(refused.text)["resource"]) == (412, resource)


def test_a_token_that_is_signed_for_a_path_in_any_script_fits(accounts: Accounts) -> None:
    signer = TokenSigner(b"k" * 32)
    flask = importlib.import_module("flask")
    app = flask.Flask("service")
    app.put("/<path:name>")(lambda name: name)
    app.wsgi_app = WsgiFence(app.wsgi_app, accounts.writing, signer=signer)
    signed = str(signer.sign("/kunden/Ärzte", 7))
    client = app.test_client()
    assert client.put("/kunden/Ärzte", headers={"Fencing-Token": signed}).status_code == 200
    assert client.put("/kunden/Apotheken", headers={"Fencing-Token": signed}).status_code == 400


@pytest.mark.parametrize(
    ("environ", "path"),
    [
        ({"PATH_INFO": "/accounts/42"}, RESOURCE),
        ({"SCRIPT_NAME": "/accounts", "PATH_INFO": "/42"}, RESOURCE),
        ({"SCRIPT_NAME": "", "PATH_INFO": "/\xc3\x84rzte"}, "/Ärzte"),
        ({"PATH_INFO": "/\xc4rzte"}, "/Ärzte"),
        ({"PATH_INFO": "/Łódź"}, "/Łódź"),
        ({}, ""),
    ],
    ids=["plain", "mounted", "UTF-8", "not UTF-8", "decoded by the server", "none"],
)
def test_what_the_path_of_a_wsgi_request_is(environ: dict[str, str], path: str) -> None:
    assert wsgi_path(environ) == path


# Frameworks


def test_flask_runs_behind_it(accounts: Accounts) -> None:
    flask = importlib.import_module("flask")
    app = flask.Flask("service")

    @app.put("/accounts/<number>")  # type: ignore[untyped-decorator]
    def account(number: str) -> str:
        accounts.put(RESOURCE, flask.request.get_data(as_text=True))
        if number == "43":
            raise ZeroDivisionError  # Flask makes a 500 of it
        return "stored"

    app.wsgi_app = WsgiFence(app.wsgi_app, accounts.writing)
    client = app.test_client()
    assert client.put(RESOURCE, data="1", headers={"Fencing-Token": "5"}).status_code == 200
    assert client.put(RESOURCE, data="2", headers={"Fencing-Token": "4"}).status_code == 412
    assert client.put(RESOURCE, data="2").status_code == 428
    assert client.put("/accounts/43", data="2", headers={"Fencing-Token": "4"}).status_code == 500
    assert accounts.get(RESOURCE) == "1"
