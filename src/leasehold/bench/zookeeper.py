"""What the benchmark knows of ZooKeeper: its floor, its version, and how to clear up."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from types import TracebackType
from typing import Final

from leasehold.bench.places import Place
from leasehold.engines import zookeeper_queue as layout
from leasehold.errors import EngineError
from leasehold.wires import zookeeper_messages as messages
from leasehold.wires.sockets import tune
from leasehold.wires.urls import Endpoint
from leasehold.wires.zookeeper_address import address_from_url
from leasehold.wires.zookeeper_errors import unreachable
from leasehold.wires.zookeeper_messages import Reply, Request

WITHIN: Final = 10.0
SESSION_TIMEOUT: Final = 30.0
HOLDER: Final = b"0123456789abcdef0123456789abcdef"
LONGEST: Final = 2**24


class BareSession:
    """A session on a bare socket: one request at a time, and nothing is handled but the answer."""

    def __init__(self, place: Place) -> None:
        address = address_from_url(place.on)
        self.space = f"{address.chroot}/{layout.FOLDER}/{layout.encoded(place.namespace)}"
        self.folders = [f"{address.chroot}/{layout.FOLDER}", self.space]
        endpoint = address.endpoints[0]
        self._socket = _connected(endpoint)
        if address.tls is not None:
            self._socket = address.tls.wrap_socket(self._socket, server_hostname=endpoint.host)
        self._received = bytearray()
        self.permissions = messages.OPEN if address.login is None else messages.CREATOR_ONLY
        self._exchange(messages.connect(seen=0, timeout=SESSION_TIMEOUT, session=0, password=b""))
        if address.login is not None:
            self._exchange(messages.log_in("digest", address.login.encode()))

    def _exchange(self, message: bytes) -> bytes:
        self._socket.sendall(message)
        while (answer := messages.frame_in(self._received, LONGEST)) is None:
            data = self._socket.recv(65536)
            if not data:
                raise EngineError("ZooKeeper has closed the connection")
            self._received += data
        return answer

    def ask(self, request: Request) -> Reply:
        """Send one request, and wait for its answer."""
        return messages.reply_in(self._exchange(messages.framed(1, request)))[1]

    def close(self) -> None:
        """End the session."""
        with self._socket:
            self.ask(messages.CLOSE)


def _connected(endpoint: Endpoint) -> socket.socket:
    try:
        connection = socket.create_connection((endpoint.host, endpoint.port), WITHIN)
    except OSError as error:
        raise unreachable(str(endpoint), error) from None
    tune(connection)
    return connection


@contextlib.contextmanager
def connected(place: Place) -> Iterator[BareSession]:
    """A session for as long as the block."""
    session = BareSession(place)
    try:
        yield session
    finally:
        session.close()


class RawZooKeeper:
    """Two requests on a bare socket: an ephemeral node is created, and deleted. No lock can cost less."""

    def __init__(self, place: Place, name: str) -> None:
        self._session = BareSession(place)
        folder = f"{self._session.space}/{layout.encoded(name)}-floor"
        for path in (*self._session.folders, folder):
            self._session.ask(messages.create_container(path, self._session.permissions))
        path = f"{folder}/floor"
        self._take = messages.create(path, HOLDER, self._session.permissions, messages.EPHEMERAL)
        self._release = messages.delete(path)

    def __enter__(self) -> None:
        if self._session.ask(self._take).error != messages.OK:
            raise RuntimeError("the floor's own node was taken")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._session.ask(self._release)

    def close(self) -> None:
        """End the session."""
        self._session.close()


def version(place: Place) -> str:
    """The server's own, where it tells: by a word of four letters, which plain connections only answer."""
    address = address_from_url(place.on)
    if address.tls is not None:
        return "not told over TLS"
    with _connected(address.endpoints[0]) as connection:
        connection.sendall(b"srvr")
        told = b"".join(iter(lambda: connection.recv(65536), b"")).decode("ascii", "replace")
    return told.partition("version: ")[2].partition("-")[0].partition(",")[0] or "not told"


def clear(place: Place) -> None:
    """Remove what the benchmark has written."""
    with connected(place) as session:
        for name in _children(session, session.space):
            _remove(session, f"{session.space}/{name}")
        session.ask(messages.delete(session.space))
        for name in _children(session, "/"):
            if name.startswith(place.namespace):  # a peer's
                _remove(session, f"/{name}")


def _children(session: BareSession, folder: str) -> list[str]:
    listed = session.ask(messages.get_children(folder))
    return list(messages.children_in(listed.body)[0]) if listed.error == messages.OK else []


def _remove(session: BareSession, folder: str) -> None:
    for node in _children(session, folder):
        session.ask(messages.delete(f"{folder}/{node}"))
    session.ask(messages.delete(folder))
