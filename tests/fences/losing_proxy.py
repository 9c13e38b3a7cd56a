"""A proxy on the loopback that can swallow one reply and hang up, as networks do."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self


class LosingProxy:
    """Passes everything on, to and from one server, until it is told to lose something."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._losing = threading.Event()
        self.lost = 0

    def lose_next_reply(self) -> None:
        """Let the next request through; swallow what the server says to it, and hang up."""
        self._losing.set()

    def passes(self, data: bytes, *, from_client: bool) -> None:
        """Is told of everything that is passed on, before it is."""

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                threading.Thread(target=self._requests, args=(client, server), daemon=True).start()
                threading.Thread(target=self._replies, args=(client, server), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                self.passes(data, from_client=True)
                server.sendall(data)
            server.shutdown(socket.SHUT_WR)

    def _replies(self, client: socket.socket, server: socket.socket) -> None:
        with client, server, contextlib.suppress(OSError):
            while data := server.recv(65536):
                if self._losing.is_set():
                    self._losing.clear()
                    self.lost += 1
                    client.shutdown(socket.SHUT_RDWR)
                    return
                self.passes(data, from_client=False)
                client.sendall(data)
