"""A bare socket that speaks RESP: the floor under every Redis client, and how the benchmark asks the server."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from types import TracebackType
from typing import Self, cast
from urllib.parse import parse_qs, unquote, urlsplit

Reply = bytes | int | None | list["Reply"]

PORT = 6379
CONNECT_WITHIN = 5.0


class ServerSaidNo(Exception):
    """The server answered with an error."""


def packed(*words: str | bytes | int) -> bytes:
    """A command as it goes over the wire."""
    parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"".join([b"*%d\r\n" % len(parts), *(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)])


class BareSocket:
    """One connection, one command at a time. It understands URLs of one server; not Sentinel, not Cluster."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.socket = _connected(parts.scheme, parts.hostname or "127.0.0.1", parts.port or PORT, parts.path)
        self._file = self.socket.makefile("rb")
        if parts.password is not None:
            user = [unquote(parts.username)] if parts.username else []
            self.ask("AUTH", *user, unquote(parts.password))
        number = parse_qs(parts.query).get("db", [parts.path.strip("/")])[0]
        if number.isdigit() and number != "0":
            self.ask("SELECT", number)

    def ask(self, *words: str | bytes | int) -> Reply:
        """Send a command and return its reply; an error is raised."""
        self.socket.sendall(packed(*words))
        return self.read()

    def read(self) -> Reply:
        """The next reply, or what the server sends unasked."""
        line = self._file.readline()
        if not line:
            raise ConnectionError("the server closed the connection")
        kind, rest = line[:1], line[1:-2]
        if kind == b"-":
            raise ServerSaidNo(rest.decode(errors="replace"))
        if kind == b"+":
            return rest
        if kind == b":":
            return int(rest)
        size = int(rest)
        if size < 0:
            return None
        if kind == b"$":
            return self._file.read(size + 2)[:-2]
        return [self.read() for _ in range(2 * size if kind == b"%" else size)]

    def info(self, section: str) -> dict[str, str]:
        """The server's answer to INFO, as names and values."""
        text = self.ask("INFO", section)
        assert isinstance(text, bytes)
        lines = (line.partition(":") for line in text.decode().splitlines())
        return {name: value for name, colon, value in lines if colon}

    def scan(self, pattern: str) -> Iterator[bytes]:
        """Every key that matches, found page by page."""
        cursor: Reply = b"0"
        while True:
            page = self.ask("SCAN", cast("bytes", cursor), "MATCH", pattern, "COUNT", 1000)
            cursor, keys = cast("list[Reply]", page)
            yield from cast("list[bytes]", keys)
            if cursor == b"0":
                return

    def close(self) -> None:
        """Close the connection."""
        self._file.close()
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _connected(scheme: str, host: str, port: int, path: str) -> socket.socket:
    if scheme.endswith("unix"):
        local = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        local.settimeout(CONNECT_WITHIN)
        local.connect(unquote(path))
        return local
    plain = socket.create_connection((host, port), timeout=CONNECT_WITHIN)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if scheme in ("rediss", "valkeys"):
        return ssl.create_default_context().wrap_socket(plain, server_hostname=host)
    return plain
