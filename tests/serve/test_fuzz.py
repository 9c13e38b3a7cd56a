"""Requests made up from the API's own description, and from its opposite: whatever comes, the answer is as described.

Nothing may end in a mistake of ours (a 5xx), in an answer of another form than the description says, or in a server
that does not answer the next one.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlencode

import jsonschema  # type: ignore[import-untyped]
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from tests.serve.conftest import TOKEN, Answer, Served
from tests.serve.test_books import keep

from leasehold.events import Refused
from leasehold.patterns.jobs.book import Book, Missed
from leasehold.patterns.jobs.shelves import notes_with
from leasehold.serve.description import openapi
from leasehold.telemetry.journal import Journal

DOCUMENT = openapi("0")
OPERATIONS = [
    (method.upper(), path, operation) for path, item in DOCUMENT["paths"].items() for method, operation in item.items()
]
EXAMPLES = settings(
    max_examples=120, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
HOSTILE = [
    "", " ", "*", "a", "held", "<script>alert(1)</script>", "\"><img src=x onerror=alert(1)>", "' OR 1=1 --", "../..",
    "{{7*7}}", "%00", "\x00", "\r\nX: y", "\u202e", "\u2028", "\ufeff", "\U0001f512", "e\u0301", "x" * 255, "x" * 256,
    "é" * 128, "javascript:alert(1)", "$(id)", "0", "-1", "1e9", "NaN", "true", "null", "9" * 30,
]  # fmt: skip
anything = st.one_of(st.sampled_from(HOSTILE), st.text(max_size=300))


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in schema:
        schema = DOCUMENT["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return schema


def values_of(schema: dict[str, Any]) -> SearchStrategy[Any]:
    """Values that a schema of the description allows."""
    schema = resolved(schema)
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    match schema["type"]:
        case "integer":
            return st.integers(schema["minimum"], schema["maximum"])
        case "string":
            texts = st.text(min_size=schema.get("minLength", 0), max_size=schema.get("maxLength", 50))
            fitting = [t for t in HOSTILE if schema.get("minLength", 0) <= len(t) <= schema.get("maxLength", 50)]
            return st.one_of(st.sampled_from(fitting), texts)
        case "object":
            return st.fixed_dictionaries({name: values_of(one) for name, one in schema["properties"].items()})
        case other:
            raise AssertionError(f"the requests of the description have no {other}")


def parameters_of(operation: dict[str, Any]) -> SearchStrategy[dict[str, Any]]:
    required = {one["name"]: values_of(one["schema"]) for one in operation["parameters"] if one["required"]}
    optional = {one["name"]: values_of(one["schema"]) for one in operation["parameters"] if not one["required"]}
    return st.fixed_dictionaries(required, optional=optional)


def wrong_parameters_of(operation: dict[str, Any]) -> SearchStrategy[dict[str, str]]:
    names = [one["name"] for one in operation["parameters"]] or ["x"]
    return st.dictionaries(st.one_of(st.sampled_from(names), anything), anything, min_size=1, max_size=4)


class Line:
    """One connection that is used again and again, and opened anew when the server has closed it."""

    def __init__(self, served: Served) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=30)

    def ask(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> Answer:
        sent = {"Authorization": f"Bearer {TOKEN}", **headers}
        self._connection.request(method, path, body, sent)
        answer = self._connection.getresponse()
        found = {name.lower(): value for name, value in answer.getheaders()}
        if found["content-type"] == "text/event-stream":
            first = b""
            while b"\n\n" not in first and (some := answer.read1(1 << 16)):
                first += some
            answer.close()
            self.close()
            return Answer(answer.status, found, first)
        return Answer(answer.status, found, answer.read())

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def line(shared: Served) -> Iterator[Line]:
    one = Line(shared)
    yield one
    one.close()


def check(answer: Answer, operation: dict[str, Any]) -> None:
    """Whether an answer is one that the description knows."""
    assert answer.status < 500 or (answer.status == 503 and answer.code == "busy"), (answer.status, answer.body[:300])
    responses = operation["responses"]
    described = responses.get(str(answer.status), responses["default"])
    content = described.get("content", {})
    if not content:
        assert answer.body == b""
        return
    kind = answer.headers["content-type"].partition(";")[0]
    assert kind in content
    if kind == "application/json":
        document = {**DOCUMENT, **content[kind]["schema"]}
        jsonschema.validate(answer.data, document, cls=jsonschema.Draft202012Validator)
        assert not {*b"<>&"} & {*answer.body}
    assert TOKEN.encode() not in answer.body


IDS = [f"{method} {path}" for method, path, _ in OPERATIONS]


@pytest.mark.parametrize(("method", "path", "operation"), OPERATIONS, ids=IDS)
def test_what_the_description_allows_is_answered_as_it_says(
    line: Line, method: str, path: str, operation: dict[str, Any]
) -> None:
    described = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")

    @EXAMPLES
    @given(parameters_of(operation), values_of(described) if described else st.none())
    def ask(parameters: dict[str, Any], body: Any) -> None:
        query = f"?{urlencode(parameters, errors='surrogatepass')}" if parameters else ""
        content = json.dumps(body).encode() if described else None
        headers = {"Content-Type": "application/json"} if described else {}
        check(line.ask(method, path + query, content, headers), operation)

    ask()


@pytest.mark.parametrize(("method", "path", "operation"), OPERATIONS, ids=IDS)
def test_what_the_description_does_not_allow_is_refused_as_it_says(
    line: Line, method: str, path: str, operation: dict[str, Any]
) -> None:
    @EXAMPLES
    @given(wrong_parameters_of(operation), st.one_of(anything.map(str.encode), st.binary(max_size=300)))
    def ask(parameters: dict[str, str], body: bytes) -> None:
        query = f"?{urlencode(parameters, errors='surrogatepass')}"
        sends = method in ("POST", "DELETE")
        headers = {"Content-Type": "application/json"} if sends else {}
        check(line.ask(method, path + query, body if sends else None, headers), operation)

    ask()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | anything,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(anything, inner, max_size=3),
    max_leaves=8,
)


@EXAMPLES
@given(st.dictionaries(st.sampled_from(["name", "because", "x"]), json_values, max_size=3) | json_values)
@example({"name": "held", "because": "\ud800"})
@example({"name": "\ud800", "because": "x"})
def test_bodies_of_any_form_are_answered(line: Line, body: Any) -> None:
    operation = DOCUMENT["paths"]["/api/break"]["post"]
    check(line.ask("POST", "/api/break", json.dumps(body).encode(), {"Content-Type": "application/json"}), operation)


@EXAMPLES
@given(
    st.sampled_from(["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "X"]),
    st.one_of(st.sampled_from(list(DOCUMENT["paths"])), anything.map(lambda text: "/" + quote(text, errors="replace"))),
    st.dictionaries(
        st.sampled_from(
            ["Origin", "Cookie", "Accept", "Range", "If-None-Match", "X-CSRF-Token", "X-Forwarded-Host", "Referer"]
        ),
        st.text(st.characters(min_codepoint=32, max_codepoint=255, exclude_characters="\x7f"), max_size=100),
        max_size=4,
    ),
)
def test_any_method_path_and_headers(line: Line, method: str, path: str, headers: dict[str, str]) -> None:
    answer = line.ask(method, path, None, headers)
    assert answer.status < 500, (answer.status, answer.body[:300])
    if answer.status >= 400 and method != "HEAD":
        document = {**DOCUMENT, "$ref": "#/components/schemas/Error"}
        jsonschema.validate(answer.data, document, cls=jsonschema.Draft202012Validator)


PIECES = st.sampled_from(
    [b"GET ", b"POST ", b"/", b"/api/names", b" HTTP/1.1", b" HTTP/1.0", b"\r\n", b"\r\n\r\n", b"\n", b"\r", b" ",
     b"\x00", b"Host: ", b"HOST", b"Content-Length: ", b"5", b"-1", b"99999999999999999999", b":", b"?", b"a=b", b"&&",
     b"Transfer-Encoding: chunked", b"Authorization: Bearer ", b"\xff\xfe", b"%", b"%zz", b"Connection: close",
     b"Expect: 100-continue"]
)  # fmt: skip


@EXAMPLES
@given(st.lists(PIECES | st.binary(max_size=20), max_size=25).map(b"".join))
def test_bytes_of_any_form_do_no_harm(shared: Served, sent: bytes) -> None:
    with shared.connect() as connection:
        connection.sendall(sent.replace(b"HOST", f"127.0.0.1:{shared.port}".encode()))
        connection.shutdown(1)  # nothing more will come
        answer = b""
        try:
            while some := connection.recv(1 << 16):
                answer += some
        except ConnectionError:
            pass
    for part in answer.split(b"HTTP/1.1 ")[1:]:
        assert int(part[:3]) < 500 or part[:3] == b"501", part[:300]


@pytest.fixture(autouse=True, scope="module")
def still_there(shared: Served) -> Any:
    """A name that is held throughout, some jobs and refusals, and afterwards a server that is whole."""
    lease = shared.locks.lock("held", ttl=600).acquire()
    with contextlib.closing(notes_with(shared.locks._family, "test")) as notes, Journal(shared.locks) as journal:
        for name in HOSTILE[3:9]:
            keep(notes, name, Book(schedule=name, missed_in_all=1, missed=(Missed(name, name, 1, name, 0.0),)))
            journal(Refused(name, 1, "stale", 2))
    yield
    assert shared.ask("/api/overview").data["up"] is True
    assert threading.active_count() < 60
    assert lease.token > 0
