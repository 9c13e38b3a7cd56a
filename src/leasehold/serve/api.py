"""The answers: from a request that may come in to what it asked for."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import mimetypes
from functools import cache
from http import HTTPStatus
from importlib.resources import files
from typing import Any, Final

from leasehold.errors import EngineError, Misuse, quoted
from leasehold.roster import View, as_data
from leasehold.serve.description import OPERATIONS, openapi, read_body, read_parameters
from leasehold.serve.door import SESSION_LASTS, Door
from leasehold.serve.http import Refusal, Request, Response, as_json, json_in
from leasehold.serve.metrics import KIND, exposition
from leasehold.serve.watch import Viewer, Watch
from leasehold.telemetry.groups import Groups

PAGE: Final = {"/": "index.html", "/app.css": "app.css", "/app.js": "app.js", "/icon.svg": "icon.svg"}
_log = logging.getLogger("leasehold")


@cache
def asset(name: str) -> tuple[bytes, str, str]:
    """A file of the page, its kind and its tag."""
    content = files("leasehold.serve").joinpath("page", name).read_bytes()
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    kind = "text/javascript" if name.endswith(".js") else kind
    charset = "; charset=utf-8" if kind.startswith("text/") else ""
    return content, kind + charset, f'"{hashlib.sha256(content).hexdigest()[:16]}"'


class Api:
    """Everything that can be asked for, except the connection itself."""

    def __init__(self, watch: Watch, door: Door, *, can_break: bool, version: str) -> None:
        self.watch, self.door = watch, door
        self._can_break, self._version = can_break, version
        self._groups = Groups()

    async def answer(self, request: Request) -> Response | Viewer:
        """The answer; a `Viewer` when it goes on for as long as the client listens."""
        self.door.check_host(request)
        if request.path in PAGE:
            return self._page(request)
        if request.path == "/api/openapi.json" and request.method in ("GET", "HEAD"):
            self.door.check(request)
            return as_json(openapi(self._version))
        method = "GET" if request.method == "HEAD" else request.method
        operation = OPERATIONS.get((method, request.path))
        if operation is None:
            raise _nothing_there(request)
        if operation.bearer_only:
            self.door.check_token(request)
        else:
            self.door.check(request)
        given = read_parameters(operation, request.query)
        handler = getattr(self, f"_{operation.name}")
        if operation.body is not None:
            given |= read_body(operation, json_in(request))
        answer: Response | Viewer = await handler(request, **given)
        return answer

    @staticmethod
    def _page(request: Request) -> Response:
        if request.method not in ("GET", "HEAD"):
            raise _not_allowed("GET, HEAD")
        content, kind, tag = asset(PAGE[request.path])
        headers = {"Cache-Control": "no-cache", "ETag": tag}
        if request.header("if-none-match") == tag:
            return Response(HTTPStatus.NOT_MODIFIED, b"", kind, headers)
        return Response(HTTPStatus.OK, content, kind, headers)

    def view_data(self, viewer: Viewer) -> dict[str, Any]:
        """What an open page is shown, and which names are on its screen from now on."""
        names = self.watch.names(viewer.view, viewer.start, viewer.limit)
        viewer.shown = [row["name"] for row in names["names"]]
        return {"overview": self._overview_data(), "names": names}

    def _overview_data(self) -> dict[str, Any]:
        return self.watch.overview(can_break=self._can_break, version=self._version)

    async def _overview(self, _request: Request) -> Response:
        return as_json(self._overview_data())

    async def _names(self, _request: Request, *, text: str, only: Any, order: Any, start: int, limit: int) -> Response:
        return as_json(self.watch.names(View(text, only, order), start, limit))

    async def _events(self, _request: Request, *, text: str, only: Any, order: Any, start: int, limit: int) -> Viewer:
        return Viewer(View(text, only, order), start, limit)

    async def _name(self, _request: Request, *, name: str) -> Response:
        status = await self._asked(lambda: self.watch.locks.status(name))
        if status is None:
            text = f"the engine knows nothing of {quoted(name)}: it is free, or was never held"
            raise Refusal(HTTPStatus.NOT_FOUND, "unknown_name", text)
        queue = [{"at": round(at, 1), "waiters": waiters} for at, waiters in self.watch.roster.queue_over_time(name)]
        return as_json({**as_data(status), "queue": queue})

    async def _jobs(self, _request: Request, *, text: str, start: int, limit: int) -> Response:
        return as_json(self.watch.books.page(text, start, limit))

    async def _job(self, _request: Request, *, name: str) -> Response:
        job = self.watch.books.job(name)
        if job is None:
            raise Refusal(
                HTTPStatus.NOT_FOUND, "unknown_job", f"no job {quoted(name)} was asked for here, so far as is known"
            )
        return as_json(job)

    async def _session(self, request: Request) -> Response:
        session = self.door.session_of(request)
        if session is None:
            text = "this is not a browser's session; the token itself needs none"
            raise Refusal(HTTPStatus.NOT_FOUND, "no_session", text)
        return as_json({"csrf": session.csrf, "can_break": self._can_break})

    async def _open_session(self, _request: Request) -> Response:
        name, session = self.door.open_session()
        cookie = f"{self.door.cookie}={name}; Path=/; HttpOnly; SameSite=Strict; Max-Age={SESSION_LASTS:.0f}"
        data = {"csrf": session.csrf, "can_break": self._can_break}
        return as_json(data, HTTPStatus.CREATED, **{"Set-Cookie": cookie})

    async def _end_session(self, request: Request) -> Response:
        self.door.end_session(request)
        cookie = f"{self.door.cookie}=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0"
        return Response(HTTPStatus.NO_CONTENT, headers={"Set-Cookie": cookie})

    async def _break_name(self, request: Request, *, name: str, because: str) -> Response:
        if not self._can_break:
            text = "releasing by force is not allowed here; start with: leasehold serve --allow-break"
            raise Refusal(HTTPStatus.FORBIDDEN, "not_allowed", text)
        locks = self.watch.locks
        status = await self._asked(lambda: locks.status(name))
        if status is None or not status.holders:
            text = f"nobody holds {quoted(name)}; there is nothing to break"
            raise Refusal(HTTPStatus.CONFLICT, "not_held", text)
        _log.warning("force release of %s is asked for from %s, through the page", ascii(name), request.client)
        token = await self._asked(lambda: locks.force_release(name, because=because))
        self.watch.roster.broken(status)
        self.watch.hurry()
        holders = [one.about for one in status.holders]
        return as_json({"name": name, "token": str(token), "because": because, "holders": holders})

    async def _metrics(self, _request: Request) -> Response:
        return Response(body=exposition(self.watch, self._groups).encode(), kind=KIND)

    @staticmethod
    async def _asked(question: Any) -> Any:
        """What the engine says; that it cannot be asked now is an answer, too."""
        try:
            return await asyncio.to_thread(question)
        except Misuse as error:
            raise Refusal(HTTPStatus.BAD_REQUEST, "invalid", str(error)) from None
        except EngineError as error:
            raise Refusal(HTTPStatus.SERVICE_UNAVAILABLE, "engine", str(error)) from None


def _nothing_there(request: Request) -> Refusal:
    allowed = sorted(method for method, path in OPERATIONS if path == request.path)
    if allowed:
        return _not_allowed(", ".join(allowed))
    return Refusal(HTTPStatus.NOT_FOUND, "not_found", "there is nothing here; /api/openapi.json says what there is")


def _not_allowed(allowed: str) -> Refusal:
    return Refusal(HTTPStatus.METHOD_NOT_ALLOWED, "method", f"allowed here: {allowed}")
