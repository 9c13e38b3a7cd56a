"""What can be asked for over HTTP, as data: requests are checked against it, and it is published as OpenAPI.

There is one source: a parameter that the description does not have is refused, and one that it has is read by the
schema that readers see.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

from leasehold.errors import quoted
from leasehold.names import LONGEST_NAME_BYTES
from leasehold.roster import ONLY, ORDERS, STATES
from leasehold.serve.books import JOB_STATES, RUN_STATES
from leasehold.serve.http import Refusal
from leasehold.telemetry.journal import REASONS

Schema = dict[str, Any]

MOST_ROWS: Final = 1000
_TEXT: Final[Schema] = {"type": "string"}
_SECONDS: Final[Schema] = {"type": "number", "minimum": 0, "description": "seconds"}
_COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
_TIME: Final[Schema] = {"type": "number", "description": "seconds since 1970"}
_TOKEN: Final[Schema] = {
    "type": "string",
    "pattern": "^[0-9]{1,19}$",
    "description": "a fencing token; text, because many readers of JSON cannot keep 63 bits of a number",
}
_NAME: Final[Schema] = {"type": "string", "minLength": 1, "maxLength": LONGEST_NAME_BYTES}
_MODE: Final[Schema] = {"enum": ["exclusive", "shared", "permit"]}


def _record(**properties: Schema) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


_NULLABLE_SECONDS: Final[Schema] = {"type": ["number", "null"], "minimum": 0, "description": "seconds"}

SCHEMAS: Final[dict[str, Schema]] = {
    "Error": _record(error=_record(code=_TEXT, message=_TEXT)),
    "Row": _record(
        name=_TEXT,
        state={"enum": list(STATES), "description": "overdue: a lease is held, but its renewal is late"},
        token=_TOKEN,
        holder={**_TEXT, "description": "who holds it; of several, the one whose lease ends first"},
        mode={"enum": ["exclusive", "shared", "permit", None]},
        holders=_COUNT,
        held_for=_SECONDS,
        expires_in=_NULLABLE_SECONDS,
        waiters=_COUNT,
        longest_wait=_SECONDS,
        closed_for=_SECONDS,
    ),
    "Totals": _record(
        names=_COUNT,
        unseen={**_COUNT, "description": "names that were listed but not looked at yet"},
        holders=_COUNT,
        waiters=_COUNT,
        waited_for={**_COUNT, "description": "names that somebody waits for"},
        overdue=_COUNT,
        closed=_COUNT,
        longest_wait=_SECONDS,
        least_left=_NULLABLE_SECONDS,
        lost={**_COUNT, "description": "leases that were seen to run out unreleased since the start"},
    ),
    "Event": _record(at=_TIME, kind={"enum": ["ran out", "broken"]}, name=_TEXT, token=_TOKEN, holder=_TEXT),
    "Sample": _record(at=_TIME, names=_COUNT, holders=_COUNT, waiters=_COUNT, overdue=_COUNT),
    "Election": _record(
        name=_TEXT,
        leader={"type": ["string", "null"]},
        term={**_TOKEN, "type": ["string", "null"]},
        expires_in=_NULLABLE_SECONDS,
        candidates=_list(_TEXT),
    ),
    "Partitions": _record(
        group=_TEXT,
        members=_list(_record(member=_TEXT, partitions=_list(_COUNT))),
        waited_for=_list(_COUNT),
    ),
    "JobRow": _record(
        name=_TEXT,
        schedule=_TEXT,
        state={"enum": list(JOB_STATES), "description": "silent: nothing was heard of its run in time"},
        by={**_TEXT, "description": "who runs it, or ran it last"},
        running_for=_NULLABLE_SECONDS,
        ended_ago=_NULLABLE_SECONDS,
        took=_NULLABLE_SECONDS,
        error={**_TEXT, "description": "of the last run that has ended"},
        behind={"type": ["integer", "null"], "minimum": 0, "description": "ticks that are due and not settled"},
        overruns={**_COUNT, "description": "of the last runs, those that took longer than until the next tick"},
        missed={**_COUNT, "description": "ticks that were ever reported as missed"},
        recent={**_list({"enum": list(RUN_STATES)}), "description": "the last runs, the oldest first"},
    ),
    "JobTotals": _record(
        jobs=_COUNT,
        more={"type": "boolean", "description": "whether there are more jobs than are kept"},
        under_way=_COUNT,
        behind={**_COUNT, "description": "jobs for which more than one tick is due"},
        overruns=_COUNT,
        missed=_COUNT,
    ),
    "Refused": _record(
        stale=_COUNT,
        used=_COUNT,
        jump=_COUNT,
        last=_list(
            _record(
                at=_TIME,
                resource=_TEXT,
                token=_TOKEN,
                seen={**_TOKEN, "type": ["string", "null"]},
                reason={"enum": list(REASONS)},
                by=_TEXT,
            )
        ),
    ),
    "Overview": _record(
        engine=_TEXT,
        address=_TEXT,
        namespace=_TEXT,
        version=_TEXT,
        up={"type": "boolean", "description": "whether the engine answered the latest round"},
        problem={"type": ["string", "null"], "description": "what it said or did instead"},
        complete={"type": "boolean", "description": "whether each name was looked at once"},
        more={"type": "boolean", "description": "whether there are more names than are kept"},
        at=_TIME,
        round_seconds=_SECONDS,
        can_break={"type": "boolean"},
        totals=_ref("Totals"),
        samples=_list(_ref("Sample")),
        events=_list(_ref("Event")),
        elections=_list(_ref("Election")),
        partitions=_list(_ref("Partitions")),
        jobs={**_list(_ref("JobRow")), "description": "those that need somebody first; /api/jobs has all"},
        job_totals=_ref("JobTotals"),
        books_problem={"type": ["string", "null"], "description": "why jobs and refused writes cannot be read"},
        refused={
            "anyOf": [_ref("Refused"), {"type": "null"}],
            "description": "writes that fences refused, as told by processes with a journal; null: none has told any",
        },
    ),
    "Jobs": _record(jobs=_list(_ref("JobRow")), matching=_COUNT, start=_COUNT),
    "Names": _record(names=_list(_ref("Row")), matching=_COUNT, start=_COUNT),
    "Name": _record(
        name=_TEXT,
        token=_TOKEN,
        closed_for=_SECONDS,
        holders=_list(
            _record(holder=_TEXT, token=_TOKEN, mode=_MODE, held_for=_SECONDS, expires_in={"type": "number"})
        ),
        waiters=_list(_record(waiter=_TEXT, mode=_MODE, waited_for=_SECONDS, patience_left={"type": "number"})),
        queue=_list(_record(at=_TIME, waiters=_COUNT)),
    ),
    "Job": {},  # below, since it is a row with more to it
    "Session": _record(csrf=_TEXT, can_break={"type": "boolean"}),
    "Break": _record(
        name=_NAME, because={**_NAME, "description": "why; it is logged, so it is one line of printable text"}
    ),
    "Broken": _record(name=_TEXT, token=_TOKEN, because=_TEXT, holders=_list(_TEXT)),
}
SCHEMAS["Job"] = _record(
    **SCHEMAS["JobRow"]["properties"],
    settled={"type": ["string", "null"], "description": "ticks up to this one are done, or were reported as missed"},
    runs=_list(
        _record(
            tick=_TEXT,
            state={"enum": [one for one in RUN_STATES if one != "overran"]},
            by=_TEXT,
            began=_TIME,
            ended=_TIME,
            attempt=_COUNT,
            error=_TEXT,
            overran={"type": "boolean"},
        )
    ),
    reports=_list(_record(first=_TEXT, last=_TEXT, count=_COUNT, why=_TEXT, at=_TIME)),
)


@dataclass(frozen=True)
class Operation:
    """One thing that can be asked for."""

    name: str
    says: str
    """What it is for, in one line."""
    parameters: Mapping[str, Schema] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    body: str | None = None
    """The schema of what is sent."""
    answer: str | None = None
    """The schema of what is answered; None for an answer that is not JSON."""
    kind: str = "application/json"
    status: HTTPStatus = HTTPStatus.OK
    bearer_only: bool = False


_VIEW: Final[dict[str, Schema]] = {
    "text": {
        "type": "string",
        "maxLength": LONGEST_NAME_BYTES,
        "default": "",
        "description": "names that contain it, in whatever case; with a * at its end, that begin with it",
    },
    "only": {"enum": list(ONLY), "default": "all"},
    "order": {"enum": list(ORDERS), "default": "attention"},
    "start": {"type": "integer", "minimum": 0, "maximum": 1_000_000, "default": 0},
    "limit": {"type": "integer", "minimum": 1, "maximum": MOST_ROWS, "default": 100},
}

OPERATIONS: Final[dict[tuple[str, str], Operation]] = {
    ("GET", "/api/overview"): Operation(
        "overview", "How much there is, over time, and what happened.", answer="Overview"
    ),
    ("GET", "/api/names"): Operation("names", "Names, a page at a time.", _VIEW, answer="Names"),
    ("GET", "/api/name"): Operation(
        "name", "One name as it is now, asked of the engine.", {"name": _NAME}, ("name",), answer="Name"
    ),
    ("GET", "/api/jobs"): Operation(
        "jobs",
        "Jobs, a page at a time, those that need somebody first.",
        {name: _VIEW[name] for name in ("text", "start", "limit")}
        | {"text": {**_VIEW["text"], "description": "jobs whose name contains it, in whatever case"}},
        answer="Jobs",
    ),
    ("GET", "/api/job"): Operation(
        "job", "One job with its last runs and what it missed.", {"name": _NAME}, ("name",), answer="Job"
    ),
    ("GET", "/api/events"): Operation(
        "events",
        "The overview and a page of names, now and after each round: server-sent events of the type `view`, whose data "
        "is an object with the members `overview` and `names`.",
        _VIEW,
        kind="text/event-stream",
    ),
    ("GET", "/api/session"): Operation("session", "The session of this browser.", answer="Session"),
    ("POST", "/api/session"): Operation(
        "open_session",
        "Trade the token for a session in a cookie.",
        answer="Session",
        status=HTTPStatus.CREATED,
        bearer_only=True,
    ),
    ("DELETE", "/api/session"): Operation(
        "end_session", "Forget the session of this browser.", status=HTTPStatus.NO_CONTENT
    ),
    ("POST", "/api/break"): Operation(
        "break_name",
        "Release a name by force. Needs `leasehold serve --allow-break`.",
        body="Break",
        answer="Broken",
    ),
    ("GET", "/metrics"): Operation("metrics", "Gauges in the text format of Prometheus.", kind="text/plain"),
}


def read_parameters(operation: Operation, query: Mapping[str, str]) -> dict[str, Any]:
    """The parameters of a request, checked and completed by the description."""
    unknown = next((name for name in query if name not in operation.parameters), None)
    if unknown is not None:
        known = ", ".join(operation.parameters) or "none"
        raise _invalid(f"there is no parameter {quoted(unknown)}; known are: {known}")
    missing = next((name for name in operation.required if name not in query), None)
    if missing is not None:
        raise _invalid(f"the parameter {missing} is missing")
    found: dict[str, Any] = {}
    for name, schema in operation.parameters.items():
        found[name] = _read(name, query[name], schema) if name in query else schema["default"]
    return found


def _read(name: str, text: str, schema: Schema) -> Any:
    value: Any = text
    if schema.get("type") == "integer":
        if not re.fullmatch(r"-?[0-9]{1,9}", text, re.ASCII):
            raise _invalid(f"{name} is a whole number, not {quoted(text)}")
        value = int(text)
    check_value(name, value, schema)
    return value


def check_value(name: str, value: Any, schema: Schema) -> None:
    """Refuse a value that its schema does not allow. Knows the few words that the schemas of requests use."""
    if "enum" in schema and value not in schema["enum"]:
        raise _invalid(f"{name} is one of {', '.join(map(str, schema['enum']))}, not {quoted(value)}")
    if schema.get("type") == "string":
        if type(value) is not str:
            raise _invalid(f"{name} is a text, not {quoted(value)}")
        least, most = schema.get("minLength", 0), schema.get("maxLength", 1 << 16)
        if not least <= len(value) <= most:
            raise _invalid(f"{name} has from {least} to {most} characters, not {len(value)}")
    if schema.get("type") == "integer":
        least, most = schema["minimum"], schema["maximum"]
        if not least <= value <= most:
            raise _invalid(f"{name} is a number from {least} to {most}, not {quoted(value)}")


def read_body(operation: Operation, value: Any) -> dict[str, Any]:
    """The members of a body, checked by the description."""
    assert operation.body is not None
    schema = SCHEMAS[operation.body]
    if type(value) is not dict:
        raise _invalid(f"the body is an object with the members {', '.join(schema['required'])}")
    unknown = next((name for name in value if name not in schema["properties"]), None)
    if unknown is not None:
        raise _invalid(f"there is no member {quoted(unknown)}; known are: {', '.join(schema['properties'])}")
    for name in schema["required"]:
        if name not in value:
            raise _invalid(f"the member {name} is missing")
        check_value(name, value[name], schema["properties"][name])
    return dict(value)


def _invalid(message: str) -> Refusal:
    return Refusal(HTTPStatus.BAD_REQUEST, "invalid", message)


def openapi(version: str) -> dict[str, Any]:
    """The description as an OpenAPI 3.1 document."""
    paths: dict[str, Any] = {}
    for (method, path), operation in OPERATIONS.items():
        paths.setdefault(path, {})[method.lower()] = _described(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Leasehold",
            "version": version,
            "summary": "Who holds what, and who waits for it.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": SCHEMAS,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "printed by `leasehold serve`"},
                "session": {
                    "type": "apiKey",
                    "in": "cookie",
                    "name": "leasehold_PORT",
                    "description": "of a browser; changes also need the header X-CSRF-Token",
                },
            },
        },
        "security": [{"token": []}, {"session": []}],
    }


def _described(operation: Operation) -> dict[str, Any]:
    ok: dict[str, Any] = {"description": operation.says}
    if operation.answer is not None:
        ok["content"] = {operation.kind: {"schema": _ref(operation.answer)}}
    elif operation.status != HTTPStatus.NO_CONTENT:
        ok["content"] = {operation.kind: {"schema": _TEXT}}
    problem = {"description": "What was wrong.", "content": {"application/json": {"schema": _ref("Error")}}}
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.says,
        "parameters": [
            {"name": name, "in": "query", "required": name in operation.required, "schema": schema}
            for name, schema in operation.parameters.items()
        ],
        "responses": {str(operation.status.value): ok, "default": problem},
    }
    if operation.body is not None:
        content = {"application/json": {"schema": _ref(operation.body)}}
        described["requestBody"] = {"required": True, "content": content}
    if operation.bearer_only:
        described["security"] = [{"token": []}]
    return described
