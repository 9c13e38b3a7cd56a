"""What the tests of the Consul engine share."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from typing import Any, Literal

from leasehold.core.engine import Engine, Mode, Want
from leasehold.core.worlds import run_blocking
from leasehold.engines.consul import ConsulFamily, open_engine
from leasehold.engines.consul_sessions import Place

World = Literal["blocking", "asyncio"]
WORLDS: tuple[World, ...] = ("blocking", "asyncio")
_numbers = itertools.count(1)


def family_at(url: str, *, namespace: str = "") -> ConsulFamily:
    return open_engine(url, namespace=namespace, client_label="tests")


def fresh_name() -> str:
    return f"name-{next(_numbers)}"


def want(name: str, *, ttl: float = 10.0, mode: Mode = "exclusive", limit: int = 1, delay: float = 0.0) -> Want:
    number = next(_numbers)
    return Want(name, f"{number:032x}", ttl, mode, limit, delay, f"worker-{number}@host:1")


class Driven:
    """An engine of either world, called as plain functions that have a few seconds for each request."""

    def __init__(self, family: ConsulFamily, world: World = "blocking", seconds: float = 5.0) -> None:
        self.family, self.seconds, self._closed = family, seconds, False
        self._runner = asyncio.Runner() if world == "asyncio" else None
        self.engine: Engine = family.blocking() if self._runner is None else self._runner.run(self._in_loop())

    async def _in_loop(self) -> Engine:
        return self.family.asyncio()

    def _run(self, coroutine: Any) -> Any:
        return run_blocking(coroutine) if self._runner is None else self._runner.run(coroutine)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        operation = getattr(self.engine, name)

        def call(*arguments: Any, **settings: Any) -> Any:
            settings.setdefault("until", self.engine.world.now() + self.seconds)
            return self._run(operation(*arguments, **settings))

        return call

    def place(self, wanted: Want) -> Place:
        """What the family knows of an attempt."""
        place = self.family.sessions.known(wanted.holder)
        assert place is not None
        return place

    def wait(self, wanted: Want, seconds: float) -> float:
        """Wait, and say how long that took."""
        since = time.monotonic()
        self._run(self.engine.wait(wanted, self.engine.world.now() + seconds))
        return time.monotonic() - since

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._run(self.engine.close())
        if self._runner is not None:
            self._runner.close()


def eventually(condition: Callable[[], bool], within: float) -> float:
    """Wait until the condition holds; fails when it does not in time. Returns how long it took."""
    since = time.monotonic()
    while not condition():
        assert time.monotonic() - since < within, f"not within {within} s"
        time.sleep(0.02)
    return time.monotonic() - since
