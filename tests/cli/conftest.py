"""Real engines for the command: an embedded file, and a Redis server that the tests start."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.tool import Command, Heart
from tests.support.programs import program_of

from leasehold.testing.ports import free_port
from leasehold.testing.processes import freeze


class Server:
    """A Redis server that can be frozen; it is ended by its process id."""

    def __init__(self, folder: Path) -> None:
        program = program_of("redis")
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        listens = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", ""]
        self._process = subprocess.Popen([str(program), *listens], stdout=subprocess.DEVNULL)
        self._wait_until_it_answers()

    def _wait_until_it_answers(self) -> None:
        for _ in range(500):
            try:
                with socket.create_connection(("127.0.0.1", self.port), 1) as connection:
                    connection.sendall(b"PING\r\n")
                    if connection.recv(16).startswith(b"+PONG"):
                        return
            except OSError:
                pass
            time.sleep(0.02)
        pytest.fail("the redis server did not start")

    def freeze(self) -> None:
        freeze(self._process.pid)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        self._process.kill()
        self._process.wait(20)


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("redis"))
    yield server
    server.end()


@pytest.fixture
def server(shared_server: Server) -> Iterator[Server]:
    """The shared server, awake again afterwards whatever happened to it."""
    yield shared_server
    shared_server.thaw()


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/leases.db"


@pytest.fixture
def leasehold(sqlite_url: str, tmp_path: Path) -> Iterator[Command]:
    """The command on an embedded file of this test's own."""
    command = Command(sqlite_url, tmp_path)
    yield command
    command.end_all()


@pytest.fixture(params=["sqlite", "redis"])
def each(request: pytest.FixtureRequest, sqlite_url: str, tmp_path: Path) -> Iterator[Command]:
    """The command on each engine."""
    url = sqlite_url if request.param == "sqlite" else request.getfixturevalue("server").url
    command = Command(url, tmp_path)
    yield command
    command.end_all()


@pytest.fixture
def heart(tmp_path: Path) -> Heart:
    return Heart(tmp_path)
