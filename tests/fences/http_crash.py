"""A service that is killed in the middle of a request: ``python -m tests.fences.http_crash wsgi|asgi PATH TOKEN``."""

from __future__ import annotations

import os
import signal
import sys

import httpx
from tests.fences.http_guard import HttpGuard, Things, asgi_app, wsgi_app


class Dying(Things):
    """Dies after the check and the write, and before the commit."""

    def respond(self, method: str, resource: str, body: bytes) -> tuple[str, bytes]:
        answer = super().respond(method, resource, body)
        os.kill(os.getpid(), signal.SIGKILL)
        return answer


if __name__ == "__main__":
    world, path, token = sys.argv[1:]
    things = Dying(path)
    guard = HttpGuard(f"http://service#{path}", "thing", in_asyncio=world == "asgi")
    guard.client = httpx.Client(transport=httpx.WSGITransport(wsgi_app(things)), auth=guard.client.auth)
    guard.transport = httpx.ASGITransport(asgi_app(things))
    guard.write(int(token), "half done")
    print("survived")
