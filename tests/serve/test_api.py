"""The API: what it tells is so, has the form that its description says, and changes nothing that it may not."""

from __future__ import annotations

import http.client
import json
import logging
import threading
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import openapi_spec_validator
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.serve.conftest import TOKEN, Served, ServeIt, wait_for

from leasehold import Leasehold
from leasehold.serve.description import OPERATIONS, openapi


def check_form(answer: Any, schema: str) -> None:
    """Whether an answer has the form of a schema in the description."""
    document = {**openapi("0"), "$ref": f"#/components/schemas/{schema}"}
    jsonschema.validate(answer, document, cls=jsonschema.Draft202012Validator)


def start_waiter(path: Path, name: str, label: str) -> threading.Thread:
    def wait() -> None:
        with Leasehold(path, label=label) as locks:
            locks.lock(name, wait=60).acquire().release()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def seen(served: Served, **totals: int) -> Any:
    """The overview once it shows these totals."""

    def look() -> Any:
        overview = served.ask("/api/overview").data
        return overview if all(overview["totals"][name] == value for name, value in totals.items()) else None

    return wait_for(look, f"{totals}")


def test_the_description_is_valid_and_complete(shared: Served) -> None:
    document = shared.ask("/api/openapi.json").data
    openapi_spec_validator.validate(document)
    assert document["openapi"].startswith("3.1")
    described = {(method.upper(), path) for path, item in document["paths"].items() for method in item}
    assert described == set(OPERATIONS)


def test_every_answer_has_the_form_that_its_description_says(locks: Leasehold, serve: ServeIt, tmp_path: Path) -> None:
    served = serve(can_break=True, elections=("led", "unknown"), namespace="")
    with locks.lock("led", ttl=600), locks.shared("crew/members", ttl=600), locks.lock("crew/7", ttl=600):
        waiter = start_waiter(tmp_path / "leases.db", "led", "waiter")
        overview = seen(served, holders=3, waiters=1)
        check_form(overview, "Overview")
        assert (overview["engine"], overview["up"], overview["problem"]) == ("sqlite", True, None)
        [led, unknown] = overview["elections"]
        assert (led["leader"][:7], unknown["leader"], led["candidates"][0][:7]) == ("holder@", None, "waiter@")
        [crew] = overview["partitions"]
        assert (crew["group"], [one["partitions"] for one in crew["members"]]) == ("crew", [[7]])
        names = served.ask("/api/names").data
        check_form(names, "Names")
        assert [row["name"] for row in names["names"]] == ["led", "crew/7", "crew/members"]
        assert (names["names"][0]["waiters"], names["names"][2]["mode"], names["matching"]) == (1, "shared", 3)
        one = served.ask("/api/name?name=led").data
        check_form(one, "Name")
        assert one["holders"][0]["token"] == one["token"]
        assert [point["waiters"] for point in one["queue"]][-1] == 1
    waiter.join(30)
    check_form(served.ask("/api/name?name=never").data, "Error")
    check_form(served.ask("/api/session", "POST").data, "Session")
    check_form(served.ask("/api/session", token=None, **served.session()).data, "Session")


def test_names_are_found_and_paged(locks: Leasehold, served: Served) -> None:
    leases = [locks.lock(f"Name {number:02}", ttl=600).acquire() for number in range(30)]
    seen(served, holders=30)
    page = served.ask("/api/names?text=name&order=name&start=10&limit=5").data
    assert [row["name"] for row in page["names"]] == [f"Name {number}" for number in range(10, 15)]
    assert (page["matching"], page["start"]) == (30, 10)
    assert served.ask("/api/names?text=*").data["matching"] == 30
    assert served.ask("/api/names?text=name%202*").data["matching"] == 10
    assert served.ask("/api/names?only=waited").data == {"names": [], "matching": 0, "start": 0}
    assert served.ask("/api/names?start=1000").data["names"] == []
    for lease in leases:
        lease.release()
    seen(served, names=0)


@pytest.mark.parametrize(
    "query",
    ["limit=0", "limit=1001", "limit=x", "limit=1.5", "limit=", "start=-1", "only=some", "order=", "nothing=1",
     "text=" + "x" * 256, "limit=1&limit=2", "text", "a=%ff", "limit=%D9%A3"],
)  # fmt: skip
def test_parameters_that_cannot_be_right_are_refused(shared: Served, query: str) -> None:
    answer = shared.ask(f"/api/names?{query}")
    assert (answer.status, answer.code) == (400, "invalid")
    check_form(answer.data, "Error")


@pytest.mark.parametrize("name", ["%00", "%20", "a%0Ab", "%E2%80%AEx", "e%CC%81", "x" * 255 + "%C3%A9"])
def test_names_that_cannot_be_are_refused(shared: Served, name: str) -> None:
    assert (shared.ask(f"/api/name?name={name}").status, shared.ask("/api/name?name=").status) == (400, 400)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/nothing", 404), ("GET", "/api", 404), ("GET", "/../etc/passwd", 404), ("GET", "/app.js/../x", 404),
     ("POST", "/", 405), ("PUT", "/api/names", 405), ("GET", "/api/break", 405), ("DELETE", "/metrics", 405),
     ("OPTIONS", "/api/break", 405), ("GET", "/%2e%2e/%2e%2e/etc/passwd", 404), ("BREW", "/api/pot", 404)],
)  # fmt: skip
def test_what_is_not_there(shared: Served, method: str, path: str, status: int) -> None:
    answer = shared.ask(path, method)
    assert answer.status == status
    check_form(answer.data, "Error")


# Releasing by force


def test_breaking_is_not_allowed_by_default(locks: Leasehold, served: Served) -> None:
    with locks.lock("name", ttl=600):
        for headers in ({}, served.session()):
            token = TOKEN if not headers else None
            answer = served.ask("/api/break", "POST", {"name": "name", "because": "x"}, token=token, **headers)
            assert (answer.status, answer.code) == (403, "not_allowed")
        status = locks.status("name")
        assert status is not None
        assert status.holders


def test_breaking_ends_the_lease_and_is_logged(
    locks: Leasehold, serve: ServeIt, caplog: pytest.LogCaptureFixture
) -> None:
    served = serve(can_break=True)
    lease = locks.lock("name", ttl=600).acquire()
    seen(served, holders=1)
    with caplog.at_level(logging.WARNING, "leasehold"):
        answer = served.ask(
            "/api/break", "POST", {"name": "name", "because": "its host is gone"}, token=None, **served.session()
        )
    assert answer.status == 200
    check_form(answer.data, "Broken")
    assert int(answer.data["token"]) > lease.token
    assert answer.data["holders"][0].startswith("holder@")
    assert "force release of 'name' is asked for from 127.0.0.1" in caplog.text
    assert "because 'its host is gone'" in caplog.text
    assert TOKEN not in caplog.text
    [event] = seen(served, holders=0)["events"]
    assert (event["kind"], event["name"], event["token"]) == ("broken", "name", str(lease.token))
    again = served.ask("/api/break", "POST", {"name": "name", "because": "x"})
    assert (again.status, again.code) == (409, "not_held")
    with locks.lock("name", ttl=600, wait=10) as after:
        assert after.token > int(answer.data["token"])


@pytest.mark.parametrize(
    "body",
    [{}, [], None, 1, "x", {"name": "a"}, {"name": "a", "because": ""}, {"name": "", "because": "x"},
     {"name": 1, "because": "x"}, {"name": "a", "because": "x", "more": 1}, {"name": "a", "because": "x\ny"},
     {"name": "a", "because": "x" * 256}, {"name": ["a"], "because": "x"}, b"{", b"\xff", b"[" * 50_000],
)  # fmt: skip
def test_bodies_that_cannot_be_right_are_refused(shared: Served, body: object) -> None:
    with shared.locks.lock("a", ttl=600):
        answer = shared.ask("/api/break", "POST", b"null" if body is None else body)
        assert (answer.status, answer.code) == (400, "invalid")


# News


def read_events(answer: http.client.HTTPResponse, count: int) -> list[Any]:
    events: list[Any] = []
    while len(events) < count:
        line = answer.readline()
        assert line, "the stream has ended"
        if line.startswith(b"data: "):
            events.append(json.loads(line[6:]))
    return events


def test_news_come_by_themselves(locks: Leasehold, served: Served) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=30)
    connection.request("GET", "/api/events?text=new*&limit=10", headers={"Authorization": f"Bearer {TOKEN}"})
    answer = connection.getresponse()
    assert (answer.status, answer.getheader("content-type")) == (200, "text/event-stream")
    [first] = read_events(answer, 1)
    check_form(first["overview"], "Overview")
    assert first["names"]["names"] == []
    with locks.lock("newly-held", ttl=600), locks.lock("other", ttl=600):
        while not (event := read_events(answer, 1)[0])["names"]["names"]:
            pass
        check_form(event["names"], "Names")
        assert [row["name"] for row in event["names"]["names"]] == ["newly-held"]
    while read_events(answer, 1)[0]["names"]["names"]:
        pass
    assert len(served.server.api.watch.viewers) == 1
    answer.close()
    connection.close()
    wait_for(lambda: not served.server.api.watch.viewers, "the viewer is gone")


def test_an_engine_that_does_not_answer_is_told(tmp_path: Path, serve: ServeIt) -> None:
    served = serve(on="redis://:hunter22-secret@127.0.0.1:1/0")
    overview = wait_for(lambda: (one := served.ask("/api/overview").data)["problem"] and one, "it is told")
    check_form(overview, "Overview")
    assert (overview["up"], "hunter22" in json.dumps(overview)) == (False, False)
    answer = served.ask("/api/name?name=a")
    assert (answer.status, answer.code, b"hunter22" in answer.body) == (503, "engine", False)
    assert "leasehold_engine_up{" in served.ask("/metrics").body.decode()


def test_a_round_that_fails_is_told_and_does_not_end_the_others(
    locks: Leasehold, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("planted-detail")

    with monkeypatch.context() as planted:
        planted.setattr(served.server.api.watch._scout, "look", broken)
        problem = wait_for(lambda: served.ask("/api/overview").data["problem"], "it is told")
        assert ("RuntimeError" in problem, "planted" in problem) == (True, False)
    with locks.lock("name", ttl=600):
        assert seen(served, holders=1)["problem"] is None


def test_metrics_can_be_read(locks: Leasehold, served: Served, tmp_path: Path) -> None:
    hostile = 'a"b\\c} 9'
    with locks.lock("jobs/1", ttl=600), locks.lock("jobs/2", ttl=600), locks.lock(hostile, ttl=600):
        waiter = start_waiter(tmp_path / "leases.db", "jobs/2", "waiter")
        seen(served, holders=3, waiters=1)
        answer = served.ask("/metrics")
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        samples = {
            (one.name, one.labels.get("group")): one.value
            for family in text_string_to_metric_families(answer.body.decode())
            for one in family.samples
        }
        assert samples["leasehold_engine_up", None] == 1
        assert samples["leasehold_engine_names", None] == 3
        assert samples["leasehold_engine_holders", "jobs"] == 2
        assert samples["leasehold_engine_waiters", "jobs"] == 1
        assert samples["leasehold_engine_holders", hostile.partition(" ")[0]] == 1
        assert 0 < samples["leasehold_engine_least_left_seconds", None] <= 600
    waiter.join(30)
