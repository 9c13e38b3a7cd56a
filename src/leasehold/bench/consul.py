"""What the benchmark knows of Consul: its floor, a lock by hand to compare with, its version, and how to clear up."""

from __future__ import annotations

import base64
import contextlib
import importlib
import json
import socket
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Final
from urllib.parse import quote

from leasehold.bench.places import Place
from leasehold.core.worlds import run_blocking
from leasehold.engines.consul_keys import namespace_start
from leasehold.errors import EngineError, EngineUnavailable
from leasehold.wires.consul import blocking_wire
from leasehold.wires.consul_address import address_from_url
from leasehold.wires.sockets import tune

WITHIN: Final = 10.0
SESSION: Final = {"TTL": "600s", "Behavior": "delete", "LockDelay": "0s"}
HOLDER: Final = base64.b64encode(b"0123456789abcdef0123456789abcdef").decode()


class BareLine:
    """HTTP on a bare socket: requests that were written beforehand, one at a time, and their answers as they are."""

    def __init__(self, place: Place) -> None:
        address = address_from_url(place.on)
        endpoint = address.endpoints[0]
        try:
            self._socket = socket.create_connection((endpoint.host, endpoint.port), WITHIN)
        except OSError as error:
            raise EngineUnavailable(f"consul at {endpoint} cannot be reached: {error}") from None
        tune(self._socket)
        if address.tls is not None:
            self._socket = address.tls.wrap_socket(self._socket, server_hostname=endpoint.host)
        self._headers = f"Host: {endpoint.host}\r\n"
        if address.token is not None:
            self._headers += f"X-Consul-Token: {address.token}\r\n"

    def packed(self, method: str, path: str, body: object = None) -> bytes:
        """A request as it is sent."""
        content = b"" if body is None else json.dumps(body).encode()
        head = f"{method} /v1/{path} HTTP/1.1\r\n{self._headers}Content-Length: {len(content)}\r\n\r\n"
        return head.encode() + content

    def ask(self, request: bytes) -> bytes:
        """Send one, and return the body of its answer."""
        self._socket.sendall(request)
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += self._received()
        head, _, body = answer.partition(b"\r\n\r\n")
        if b" 200 " not in head[:20]:
            raise EngineError(f"consul answered: {head[:60].decode('ascii', 'replace')}")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        while len(body) < length:
            body += self._received()
        return body

    def _received(self) -> bytes:
        data = self._socket.recv(65536)
        if not data:
            raise EngineError("consul has closed the connection")
        return data

    def close(self) -> None:
        """Hang up."""
        self._socket.close()


class RawConsul:
    """Two transactions on a bare socket: a key is hung on a session, and deleted. No lock can cost less."""

    def __init__(self, place: Place, name: str) -> None:
        self._line = BareLine(place)
        self._session = json.loads(self._line.ask(self._line.packed("PUT", "session/create", SESSION)))["ID"]
        key = f"{namespace_start(place.namespace).decode()}{name}/floor"
        self._take = self._operation("lock", key, Session=self._session, Value=HOLDER)
        self._release = self._operation("delete", key)

    def _operation(self, verb: str, key: str, **more: str) -> bytes:
        return self._line.packed("PUT", "txn", [{"KV": {"Verb": verb, "Key": key, **more}}])

    def __enter__(self) -> None:
        self._line.ask(self._take)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._line.ask(self._release)

    def close(self) -> None:
        """End the session and hang up."""
        self._line.ask(self._line.packed("PUT", f"session/destroy/{self._session}"))
        self._line.close()


class HandMade:
    """What Consul's guide tells people to write: one session, and a key that is acquired and released with it."""

    def __init__(self, place: Place, name: str, ttl: int) -> None:
        endpoint = address_from_url(place.on).endpoints[0]
        self._client: Any = importlib.import_module("consul").Consul(host=endpoint.host, port=endpoint.port)
        terms = {"ttl": max(ttl, 10), "behavior": "delete"}
        # A delay would be measured, not the hand-over.
        self._session = self._client.session.create(**terms, lock_delay=0)  # noqa: LH161
        self._key = f"{namespace_start(place.namespace).decode()}{name}-by-hand"

    def __enter__(self) -> None:
        index = None
        while not self._client.kv.put(self._key, "held", acquire=self._session):
            index, _entry = self._client.kv.get(self._key, index=index, wait="10s")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.kv.put(self._key, "free", release=self._session)

    def close(self) -> None:
        """End the session."""
        self._client.session.destroy(self._session)


@contextlib.contextmanager
def connected(place: Place) -> Iterator[BareLine]:
    """A line for as long as the block."""
    line = BareLine(place)
    try:
        yield line
    finally:
        line.close()


def version(place: Place) -> str:
    """The agent's own."""
    wire = blocking_wire(address_from_url(place.on))
    try:
        return str(run_blocking(wire.get("agent/self", wire.world.now() + WITHIN))["Config"]["Version"])
    finally:
        wire.close()


def clear(place: Place) -> None:
    """Remove what the benchmark has written."""
    with connected(place) as line:
        line.ask(line.packed("DELETE", f"kv/{quote(namespace_start(place.namespace), safe='/')}?recurse"))
