"""What the tests of the ZooKeeper engine share."""

from __future__ import annotations

import asyncio
import itertools
import socket
import time
from collections.abc import Callable
from typing import Any, Literal

from tests.support.zookeeper_server import ZooKeeperServer

from leasehold.core.engine import Mode, Want
from leasehold.core.worlds import run_blocking
from leasehold.engines.zookeeper import ZooKeeperEngine, ZooKeeperFamily, open_engine
from leasehold.engines.zookeeper_places import Place
from leasehold.wires import zookeeper_messages as messages
from leasehold.wires.zookeeper_session import Session

World = Literal["blocking", "asyncio"]
WORLDS: tuple[World, ...] = ("blocking", "asyncio")
_numbers = itertools.count(1)


def family_at(url: str, *, namespace: str = "") -> ZooKeeperFamily:
    return open_engine(url, namespace=namespace, client_label="tests")


def fresh_name() -> str:
    return f"name-{next(_numbers)}"


def want(name: str, *, ttl: float = 10.0, mode: Mode = "exclusive", limit: int = 1) -> Want:
    number = next(_numbers)
    return Want(name, f"{number:032x}", ttl, mode, limit, 0.0, f"worker-{number}@host:1")


class Driven:
    """An engine of either world, called as plain functions that have a few seconds for each request."""

    def __init__(self, family: ZooKeeperFamily, world: World = "blocking", seconds: float = 5.0) -> None:
        self.family, self.seconds = family, seconds
        self._runner = asyncio.Runner() if world == "asyncio" else None
        self.engine: ZooKeeperEngine = family.blocking() if self._runner is None else self._runner.run(self._in_loop())

    async def _in_loop(self) -> ZooKeeperEngine:
        return self.family.asyncio()

    def run(self, coroutine: Any) -> Any:
        return run_blocking(coroutine) if self._runner is None else self._runner.run(coroutine)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        operation = getattr(self.engine, name)

        def call(*arguments: Any, **settings: Any) -> Any:
            settings.setdefault("until", self.engine.world.now() + self.seconds)
            return self.run(operation(*arguments, **settings))

        return call

    def ask(self, *requests: Any) -> Any:
        """Send requests of the tests' own, on the session for questions."""
        return self.run(self.engine._nodes.ask(requests, self.engine.world.now() + self.seconds))

    def folder(self, name: str) -> str:
        return self.engine._nodes.folder(name)

    def place(self, wanted: Want) -> Place:
        """What the family knows of an attempt."""
        place = self.family.places.known(wanted.holder)
        assert place is not None
        return place

    def wait(self, wanted: Want, seconds: float) -> float:
        """Wait, and say how long that took."""
        since = time.monotonic()
        self.run(self.engine.wait(wanted, self.engine.world.now() + seconds))
        return time.monotonic() - since

    def close(self) -> None:
        self.run(self.engine.close())
        if self._runner is not None:
            self._runner.close()


def eventually(condition: Callable[[], bool], within: float) -> float:
    """Wait until the condition holds; fails when it does not in time. Returns how long it took."""
    since = time.monotonic()
    while not condition():
        assert time.monotonic() - since < within, f"not within {within} s"
        time.sleep(0.02)
    return time.monotonic() - since


def expire(server: ZooKeeperServer, session: Session) -> None:
    """Have the server end a session, as when nothing was heard of it for too long."""
    _, timeout, number, password = session.hello()
    with socket.create_connection(("127.0.0.1", server.port), timeout=5.0) as connection:
        connection.sendall(messages.connect(seen=0, timeout=timeout, session=number, password=password))
        connection.recv(4096)
        connection.sendall(messages.framed(1, messages.CLOSE))
        assert connection.recv(4096)
