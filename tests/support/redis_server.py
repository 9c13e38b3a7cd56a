"""Redis, Valkey and Sentinel servers of the tests' own: on free loopback ports, in their own folders, ended by pid."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hiredis
from tests.support.programs import program_of
from tests.support.server_process import ServerProcess

from leasehold.testing.ports import free_port


class RawClient:
    """A few lines that talk to a server, so that tests do not lean on what they test."""

    def __init__(self, port: int, *, resp3: bool = False) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=10)
        self._reader = hiredis.Reader()
        if resp3:
            self("HELLO", "3")

    def __call__(self, *command: str | bytes | int) -> Any:
        """Send a command and return its reply; an error reply is raised."""
        self.send(*command)
        reply = self.receive()
        if isinstance(reply, Exception):
            raise reply
        return reply

    def all(self, *commands: tuple[str | bytes | int, ...]) -> list[Any]:
        """Send a pipeline and return its replies; error replies are among them."""
        self._socket.sendall(b"".join(map(hiredis.pack_command, commands)))  # type: ignore[arg-type]
        return [self.receive() for _ in commands]

    def send(self, *command: str | bytes | int) -> None:
        """Send a command."""
        self._socket.sendall(hiredis.pack_command(command))  # type: ignore[arg-type]

    def receive(self) -> Any:
        """Wait for the next reply or push."""
        while (reply := self._reader.gets()) is False:
            received = self._socket.recv(65536)
            if not received:
                raise ConnectionResetError
            self._reader.feed(received)
        return reply

    def close(self) -> None:
        self._socket.close()


class RedisServer(ServerProcess):
    """One server process in a folder. What `start` finds there is what the last run left."""

    def __init__(self, engine: str, folder: Path, *settings: str) -> None:
        self.engine, self.folder, self.port = engine, folder, free_port()
        super().__init__(engine, folder / f"{self.port}.log")
        self._program, self._settings = str(program_of(engine)), settings

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        listens = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder), "--save", ""]
        self._run([self._program, *listens, *self._settings])

    def _run(self, command: list[str]) -> None:
        self.launch(command)
        self.wait_until(self._answers)

    def _answers(self) -> bool:
        try:
            with contextlib.closing(RawClient(self.port)) as client:
                client("PING")
        except hiredis.ReplyError as error:  # it wants a password: it is there
            return str(error).startswith(("NOAUTH", "NOPERM"))
        except OSError:
            return False
        return True

    def client(self, *, resp3: bool = False) -> RawClient:
        """A connection of the test's own."""
        return RawClient(self.port, resp3=resp3)

    def ask(self, *command: str | bytes | int) -> Any:
        """One command on a connection of its own."""
        with contextlib.closing(self.client()) as client:
            return client(*command)

    def restart(self) -> None:
        """Crash it, and start it on the same port."""
        self.kill()
        self.start()


class Sentinel(RedisServer):
    """A Sentinel that watches primaries. It writes to its own configuration."""

    def __init__(self, engine: str, folder: Path, *lines: str) -> None:
        super().__init__(engine, folder)
        self._lines = lines

    def start(self) -> None:
        path = self.folder / "sentinel.conf"
        path.write_text("\n".join([f"port {self.port}", "bind 127.0.0.1", f"dir {self.folder}", *self._lines, ""]))
        self._run([self._program, str(path), "--sentinel"])


@contextlib.contextmanager
def running(server: RedisServer) -> Iterator[RedisServer]:
    """Run a server for as long as the block."""
    try:
        server.start()
        yield server
    finally:
        server.kill()
