"""Who gets in, and who does not: tokens, sessions, hosts, other sites, and what must never be told."""

from __future__ import annotations

from urllib.parse import urlencode

import pytest
from tests.serve.conftest import TOKEN, Served, ServeIt

from leasehold import Leasehold
from leasehold.errors import Misuse
from leasehold.serve.description import OPERATIONS
from leasehold.serve.door import MOST_SESSIONS, Door
from leasehold.serve.http import Request

PATHS = sorted({*OPERATIONS, ("GET", "/api/openapi.json")})


@pytest.mark.parametrize(("method", "path"), PATHS)
@pytest.mark.parametrize(
    "authorization",
    [None, "", "Bearer", "Bearer ", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"Basic {TOKEN}", TOKEN, "Bearer \xe9"],
)
def test_nothing_is_told_without_the_token(shared: Served, method: str, path: str, authorization: str | None) -> None:
    headers = {} if authorization is None else {"Authorization": authorization}
    answer = shared.ask(
        path, method, {"name": "a", "because": "x"} if method == "POST" else None, token=None, **headers
    )
    assert (answer.status, answer.code) == (401, "unauthorized")
    assert answer.headers["www-authenticate"] == "Bearer"
    assert TOKEN not in str(answer)


def test_the_token_in_the_address_lets_nobody_in(shared: Served) -> None:
    for path in (f"/api/overview?token={TOKEN}", f"/api/overview?authorization={TOKEN}"):
        assert shared.ask(path, token=None).status == 401


def test_a_session_lets_a_browser_in(shared: Served) -> None:
    answer = shared.ask("/api/session", "POST")
    name, *attributes = answer.headers["set-cookie"].split("; ")
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(attributes)
    assert name.startswith(f"leasehold_{shared.port}=")
    assert TOKEN not in str(answer)
    assert shared.ask("/api/overview", token=None, Cookie=name).status == 200
    assert shared.ask("/api/overview", token=None, Cookie=f"other=1; {name}; more=2").status == 200
    assert shared.ask("/api/overview", token=None, Cookie=name + "x").status == 401
    assert shared.ask("/api/overview", token="wrong" * 10, Cookie=name).status == 401


def test_a_session_can_be_ended(shared: Served) -> None:
    session = shared.session()
    assert shared.ask("/api/session", "DELETE", token=None, **session).status == 204
    assert shared.ask("/api/overview", token=None, Cookie=session["Cookie"]).status == 401


def test_old_sessions_make_room_for_new_ones(shared: Served) -> None:
    first = shared.session()
    latest = [shared.session() for _ in range(MOST_SESSIONS)][-1]
    assert shared.ask("/api/overview", token=None, Cookie=first["Cookie"]).status == 401
    assert shared.ask("/api/overview", token=None, Cookie=latest["Cookie"]).status == 200


@pytest.mark.parametrize("csrf", [None, "", "x", TOKEN])
def test_a_change_needs_the_second_secret(shared: Served, csrf: str | None) -> None:
    session = shared.session()
    headers = {"Cookie": session["Cookie"]} | ({} if csrf is None else {"X_CSRF_Token": csrf})
    with shared.locks.lock("name", ttl=600):
        answer = shared.ask("/api/break", "POST", {"name": "name", "because": "x"}, token=None, **headers)
        assert (answer.status, answer.code) == (403, "csrf")
        other = shared.session()
        mixed = {"Cookie": session["Cookie"], "X_CSRF_Token": other["X_CSRF_Token"]}
        assert shared.ask("/api/break", "POST", {"name": "name", "because": "x"}, token=None, **mixed).code == "csrf"
        status = shared.locks.status("name")
        assert status is not None
        assert status.holders


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_a_change_is_json(shared: Served, kind: str) -> None:
    """What a form on another site could send is not enough, even with all secrets."""
    with shared.locks.lock("name", ttl=600):
        answer = shared.ask(
            "/api/break", "POST", {"name": "name", "because": "x"}, token=None, Content_Type=kind, **shared.session()
        )
        assert (answer.status, answer.code) == (415, "not_json")


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "http://[::1"},
        {"Origin": "file://127.0.0.1:{port}"},
        {"Origin": "http://127.0.0.1:{port}.evil.example"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ],
)
def test_pages_of_other_sites_get_nothing(shared: Served, headers: dict[str, str]) -> None:
    sent = {name: value.replace("{port}", str(shared.port)) for name, value in headers.items()}
    with shared.locks.lock("name", ttl=600):
        session = shared.session()
        change = shared.ask("/api/break", "POST", {"name": "name", "because": "x"}, token=None, **session, **sent)
        assert (change.status, change.code) == (403, "wrong_origin")
        look = shared.ask("/api/names", **sent)
        assert (look.status, look.code) == (403, "wrong_origin")
        for answer in (change, look):
            assert not [name for name in answer.headers if name.startswith("access-control")]


def test_its_own_page_gets_in(locks: Leasehold, serve: ServeIt) -> None:
    served = serve(can_break=True)
    lease = locks.lock("name", ttl=600).acquire()
    headers = {**served.session(), "Origin": f"http://127.0.0.1:{served.port}", "Sec_Fetch_Site": "same-origin"}
    answer = served.ask("/api/break", "POST", {"name": "name", "because": "x"}, token=None, **headers)
    assert (answer.status, int(answer.data["token"]) > lease.token) == (200, True)


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "localhost.evil.example:{port}", "", "0.0.0.0",
     "127.0.0.1:{port}.evil.example", "2130706433:{port}", "127.0.0.1:{port}@evil.example", "[::]:{port}"],
)  # fmt: skip
def test_a_foreign_name_that_points_here_gets_nothing(shared: Served, host: str) -> None:
    for path in ("/", "/app.js", "/api/names", "/metrics"):
        answer = shared.ask(path, Host=host.replace("{port}", str(shared.port)))
        assert (answer.status, answer.code) == (421, "wrong_host")


def test_hosts_that_were_named_are_served(serve: ServeIt) -> None:
    served = serve(hosts=("locks.example.com",))
    for host in ("locks.example.com", f"Locks.Example.com:{served.port}", f"localhost:{served.port}"):
        assert served.ask("/api/names", Host=host).status == 200
    assert served.ask("/api/names", Host="example.com").status == 421


def test_every_answer_is_guarded(shared: Served) -> None:
    for path in ("/", "/app.css", "/app.js", "/icon.svg", "/api/names", "/metrics", "/nothing", "/api/name?name=x"):
        headers = shared.ask(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert (headers["x-content-type-options"], headers["referrer-policy"]) == ("nosniff", "no-referrer")
        assert headers["cache-control"] in ("no-store", "no-cache")
        assert "server" not in headers


def test_names_cannot_become_markup(shared: Served) -> None:
    name = "</script><img src=x onerror=alert(1)>&\u00e9"
    with shared.locks.lock(name, ttl=600):
        answer = shared.ask(f"/api/name?{urlencode({'name': name})}")
        assert (answer.status, answer.data["name"]) == (200, name)
        assert not {*b"<>&"} & {*answer.body}
        assert answer.body.isascii()
    missing = shared.ask("/api/name?name=%3Cscript%3E")
    assert (missing.status, b"<" in missing.body) == (404, False)


@pytest.mark.parametrize("token", ["", "short", "x" * 31, "é" * 40, "x" * 20 + " " + "x" * 20, "x" * 40 + "\n"])
def test_a_weak_token_is_refused(token: str) -> None:
    with pytest.raises(Misuse, match="at least 32 printable") as refused:
        Door(token, port=1, hosts=())
    assert not token or token not in str(refused.value)


def test_a_session_ends_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    door = Door(TOKEN, port=1, hosts=())
    monkeypatch.setattr("leasehold.serve.door.SESSION_LASTS", 0.0)
    name, _ = door.open_session()
    assert door.session_of(Request("GET", "/", {}, {"cookie": f"{door.cookie}={name}"})) is None
