"""A Redis or Valkey server of the tests' own, on a free port of the loopback, ended by its process id."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from tests.support.programs import program_of

from leasehold.testing.ports import free_port


class LocalServer:
    """One server process in a folder; `start` after `kill` finds what the folder kept."""

    def __init__(self, engine: str, folder: Path, *settings: str) -> None:
        program = program_of(engine)
        self.port = free_port()
        listens = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", ""]
        self._command = [str(program), *listens, *settings]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        give_up_at = time.monotonic() + 20
        with contextlib.closing(redis.Redis.from_url(self.url)) as client:
            while not self._answers(client):
                if self._process.poll() is not None or time.monotonic() > give_up_at:
                    pytest.fail(f"{self._command[0]} did not start")
                time.sleep(0.02)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(timeout=20)

    def _answers(self, client: redis.Redis) -> bool:
        try:
            return bool(client.ping())
        except redis.ConnectionError:  # also: still loading what it kept
            return False


@contextlib.contextmanager
def running(engine: str, folder: Path, *settings: str) -> Iterator[LocalServer]:
    """Run a server for as long as the block."""
    server = LocalServer(engine, folder, *settings)
    try:
        server.start()
        yield server
    finally:
        server.kill()
