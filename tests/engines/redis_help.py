"""What the tests of the Redis engine share."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from leasehold.core.engine import Mode, Want
from leasehold.core.worlds import run_blocking
from leasehold.engines.redis import RedisEngine, RedisFamily, open_engine

T = TypeVar("T")
_numbers = itertools.count(1)
ENGINES = ("redis", "valkey")
WORLDS = ("blocking", "asyncio")


def family_at(on: object, *, namespace: str = "") -> RedisFamily:
    return open_engine(on, namespace=namespace, client_label="tests")


def fresh_name() -> str:
    return f"name-{next(_numbers)}"


def want(name: str, *, ttl: float = 10.0, mode: Mode = "exclusive", limit: int = 1, delay: float = 0.0) -> Want:
    number = next(_numbers)
    return Want(name, f"{number:032x}", ttl, mode, limit, delay, f"worker-{number}@host:1")


class Run(Protocol):
    """How a world runs an operation to its end."""

    def __call__(self, coroutine: Coroutine[Any, Any, T], /) -> T: ...


class Caller:
    """An engine of either world, called as plain functions that have a few seconds for each request."""

    def __init__(self, engine: RedisEngine, run: Run, seconds: float = 5.0) -> None:
        self.engine, self.run, self.seconds = engine, run, seconds

    @property
    def until(self) -> float:
        return self.engine.world.now() + self.seconds

    def __getattr__(self, name: str) -> Callable[..., Any]:
        operation = getattr(self.engine, name)

        def call(*arguments: Any, **settings: Any) -> Any:
            return self.run(operation(*arguments, **{"until": self.until, **settings}))

        return call

    def wait(self, wanted: Want, seconds: float) -> float:
        """Wait for a wake-up; returns how long that took."""
        started = self.engine.world.now()
        self.run(self.engine.wait(wanted, started + seconds))
        return self.engine.world.now() - started

    def pause(self, seconds: float) -> None:
        """Let time pass, in which an event loop may see what came."""
        self.run(self.engine.world.sleep(seconds))

    def close(self) -> None:
        self.run(self.engine.close())


@contextmanager
def calling(family: RedisFamily, world: str, seconds: float = 5.0) -> Iterator[Caller]:
    """An engine of the family in one of the worlds, closed at the end."""
    if world == "blocking":
        caller = Caller(family.blocking(), run_blocking, seconds)
        try:
            yield caller
        finally:
            caller.close()
        return
    with asyncio.Runner() as runner:
        caller = Caller(family.asyncio(), runner.run, seconds)
        try:
            yield caller
        finally:
            caller.close()
