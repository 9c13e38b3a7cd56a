"""The engines that the contract suite runs on, each on a real server (or file) of the tests' own."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from tests.support.redis_server import RedisServer, running
from tests.support.server_process import memory_folder

import servers
from leasehold.testing import EngineUnderTest

SOME_INTERRUPTIONS = 100
"""The embedded engine is interrupted everywhere; a server behind a socket takes too long for that."""


@contextlib.contextmanager
def sqlite(folder: Path) -> Iterator[EngineUnderTest]:
    """A file. It is paused by somebody who keeps a transaction open; there is no server to restart."""
    path = folder / "leases.db"
    blockers: list[sqlite3.Connection] = []

    def pause() -> None:
        blocker = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        blocker.execute("BEGIN IMMEDIATE")
        blockers.append(blocker)

    def resume() -> None:
        blockers.pop().close()

    yield EngineUnderTest(url=f"sqlite:///{path}", pause=pause, resume=resume)


def _redis(program: str) -> Callable[[Path], AbstractContextManager[EngineUnderTest]]:
    @contextlib.contextmanager
    def run(_folder: Path) -> Iterator[EngineUnderTest]:
        given = servers.given_url(program)
        if given:
            yield EngineUnderTest(url=given, interruptions=SOME_INTERRUPTIONS)
            return
        durable = ("--appendonly", "yes", "--appendfsync", "always")
        with memory_folder() as memory, running(RedisServer(program, memory, *durable)) as server:
            yield EngineUnderTest(
                url=server.url,
                pause=server.pause,
                resume=server.resume,
                restart=server.restart,
                wipe=lambda: server.ask("FLUSHALL"),
                address=("127.0.0.1", server.port),
                url_at=lambda host, port: f"redis://{host}:{port}",
                interruptions=SOME_INTERRUPTIONS,
            )

    return run


ENGINES: dict[str, Callable[[Path], AbstractContextManager[EngineUnderTest]]] = {
    "sqlite": sqlite,
    "redis": _redis("redis"),
    "valkey": _redis("valkey"),
}
