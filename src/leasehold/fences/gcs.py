"""Fences for objects in Google Cloud Storage: conditional writes on generations.

    fence = GcsFence(google.auth.transport.requests.AuthorizedSession(credentials), "a-bucket")
    fence.put("account/42", lease, b"100")
    assert fence.get("account/42", lease) == b"100"

A generation is the number of one version of an object's bytes and a metageneration that of its metadata; no two
versions ever have the same. So the floor is kept in the object's own metadata, the bytes are yours alone, and a write
asks for both numbers that it read, as ``ifGenerationMatch`` and ``ifMetagenerationMatch``.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Generator, Mapping
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

from leasehold.errors import Misuse, quoted
from leasehold.fences.objects import NOTHING, AsyncObjectFence, BlockingObjectFence, Found, ObjectFence
from leasehold.fences.rule import DAY, NEVER, Claim, Rule
from leasehold.fences.steps import drive, drive_async

T = TypeVar("T")

_SEEN, _WRITTEN, _DELETED = "leasehold-seen", "leasehold-written", "leasehold-deleted"
_MISSING, _OVERTAKEN = 404, frozenset({409, 412})
_MOST_READS = 100


class Request(NamedTuple):
    """One request of the JSON API."""

    method: str
    path: str
    query: Mapping[str, str]
    expected: frozenset[int]
    """Refusals that the fence wants to see; any other is raised as the client has it."""
    content: bytes = b""
    content_type: str = "application/json; charset=utf-8"


class Answer(NamedTuple):
    """What the store said."""

    status: int
    content: bytes


Steps = Generator[Request, Answer, T]


class _Fence(ObjectFence):
    """What the blocking and the asyncio fence share: everything but the waiting."""

    _ASYNC: bool

    def __init__(
        self,
        session: Any,
        bucket: str,
        *,
        endpoint: str = "https://storage.googleapis.com",
        jump_limit: int = DAY,
    ) -> None:
        """Nothing is sent yet. The session adds what proves who you are; `endpoint` is for other servers of the API."""
        _check_session(session, asyncio=self._ASYNC)
        self._session, self._endpoint, self._rule = session, endpoint.rstrip("/"), Rule(jump_limit)
        self._path = f"/storage/v1/b/{quote(bucket, safe='')}/o"

    def _find(self, key: str, *, whole: bool) -> Steps[Found]:
        path = f"{self._path}/{quote(key, safe='')}"
        for _ in range(_MOST_READS):
            answer = yield Request("GET", path, {}, frozenset({_MISSING}))
            if answer.status == _MISSING:
                return NOTHING
            found = _found(key, json.loads(answer.content))
            if not whole or found.deleted:
                return found
            generation, _ = found.version
            body = yield Request("GET", path, {"alt": "media", "generation": generation}, frozenset({_MISSING}))
            if body.status != _MISSING:  # else it was replaced meanwhile
                return found._replace(body=body.content)
        raise Misuse(f"object {quoted(key)} has metadata, and no bytes to read; may this session read objects?")

    def _put(
        self, key: str, found: Found, claim: Claim, payload: bytes | None, settings: Mapping[str, Any]
    ) -> Steps[bool]:
        wrong = {"name", "bucket"} & set(settings)
        if wrong:
            raise Misuse(f"{min(wrong)} is set by the fence; `settings` are further fields, such as contentType")
        marks = _marks(claim.token, max(found.written, claim.mark), deleted=payload is None)
        return (yield from self._upload(key, found, marks, payload or b"", settings))

    def _mark(self, key: str, found: Found, seen: int) -> Steps[bool]:
        marks = _marks(seen, found.written, deleted=found.deleted)
        if found.version is None:
            return (yield from self._upload(key, found, marks, b"", {}))
        content = json.dumps({"metadata": {**found.fields.get("metadata", {}), **marks}}).encode()
        path, refusals = f"{self._path}/{quote(key, safe='')}", _refusals(found)
        return (yield Request("PATCH", path, _condition(found), refusals, content)).status not in refusals

    def _upload(
        self, key: str, found: Found, marks: Mapping[str, str], payload: bytes, settings: Mapping[str, Any]
    ) -> Steps[bool]:
        fields = {**settings, "name": key, "metadata": {**settings.get("metadata", {}), **marks}}
        between = secrets.token_hex(16)
        content = b"".join(
            [
                f"--{between}\r\nContent-Type: application/json; charset=utf-8\r\n\r\n".encode(),
                json.dumps(fields).encode(),
                f"\r\n--{between}\r\n".encode(),
                f"Content-Type: {settings.get('contentType', 'application/octet-stream')}\r\n\r\n".encode(),
                payload,
                f"\r\n--{between}--\r\n".encode(),
            ]
        )
        query = {"uploadType": "multipart", "name": key, **_condition(found)}
        kind, refusals = f"multipart/related; boundary={between}", _refusals(found)
        answer = yield Request("POST", f"/upload{self._path}", query, refusals, content, kind)
        return answer.status not in refusals


def _condition(found: Found) -> dict[str, str]:
    """That the object is still the one that was read: generation 0 is that there is none."""
    if found.version is None:
        return {"ifGenerationMatch": "0"}
    generation, metageneration = found.version
    return {"ifGenerationMatch": generation, "ifMetagenerationMatch": metageneration}


def _refusals(found: Found) -> frozenset[int]:
    """What says that it is another object by now. One that was there can be missing; else it is the bucket."""
    return _OVERTAKEN if found.version is None else _OVERTAKEN | {_MISSING}


def _marks(seen: int, written: int, *, deleted: bool) -> dict[str, str]:
    return {_SEEN: str(seen), _WRITTEN: str(written), _DELETED: "yes" if deleted else "no"}


def _found(key: str, fields: dict[str, Any]) -> Found:
    """An object that no fence has written has no marks, and is one that nobody has touched."""
    marks = fields.get("metadata", {})
    try:
        seen, written = int(marks.get(_SEEN, NEVER)), int(marks.get(_WRITTEN, NEVER))
    except ValueError:
        raise Misuse(
            f"the metadata of {quoted(key)} has a floor that is no number; was it changed by others?"
        ) from None
    version = (str(fields["generation"]), str(fields["metageneration"]))
    return Found(seen, written, marks.get(_DELETED) == "yes", version, fields, b"")


class GcsFence(_Fence, BlockingObjectFence):
    """Checks tokens in conditional writes, by a session of requests (google-auth's is one) or a client of httpx.

    A resource is an object's name. Every method takes it and then the token, or what carries it; `settings` are further
    fields of the object, such as ``contentType``. To announce a token changes only the object's metadata.
    """

    _ASYNC = False

    def _do(self, steps: Steps[T]) -> T:
        return drive(steps, self._ask)

    def _ask(self, request: Request) -> Answer:
        response = self._session.request(**_arguments(self._session, self._endpoint, request))
        return _answer(response, request)


class AsyncGcsFence(_Fence, AsyncObjectFence):
    """The same as `GcsFence`, for an async client of httpx."""

    _ASYNC = True

    async def _do(self, steps: Steps[T]) -> T:
        return await drive_async(steps, self._ask)

    async def _ask(self, request: Request) -> Answer:
        response = await self._session.request(**_arguments(self._session, self._endpoint, request))
        return _answer(response, request)


def _arguments(session: Any, endpoint: str, request: Request) -> dict[str, Any]:
    """A request in the words of httpx, or of requests."""
    body = "content" if hasattr(session, "build_request") else "data"
    headers = {"Content-Type": request.content_type} if request.content else {}
    return {
        "method": request.method,
        "url": endpoint + request.path,
        "params": dict(request.query),
        "headers": headers,
        body: request.content,
    }


def _answer(response: Any, request: Request) -> Answer:
    if response.status_code not in request.expected:
        response.raise_for_status()
    return Answer(response.status_code, response.content)


def _check_session(session: Any, *, asyncio: bool) -> None:
    """Refuse what is no such session, or one of the other world."""
    if not hasattr(session, "request"):
        raise Misuse("give a session of requests, such as google-auth's AuthorizedSession, or a client of httpx")
    if hasattr(session, "aclose") is not asyncio:
        kind, right = ("blocking", "GcsFence") if asyncio else ("one for asyncio", "AsyncGcsFence")
        raise Misuse(f"this session is {kind}; give it to {right}")
