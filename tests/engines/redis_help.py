"""What the tests of the Redis engine share."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from leasehold.core.engine import Mode, Want
from leasehold.core.worlds import run_blocking
from leasehold.engines.redis import RedisEngine, RedisFamily, open_engine

T = TypeVar("T")
_numbers = itertools.count(1)
ENGINES = ("redis", "valkey")


def family_at(url: str, *, namespace: str = "") -> RedisFamily:
    return open_engine(url, namespace=namespace, client_label="tests")


def fresh_name() -> str:
    return f"name-{next(_numbers)}"


def want(name: str, *, ttl: float = 10.0, mode: Mode = "exclusive", limit: int = 1, delay: float = 0.0) -> Want:
    number = next(_numbers)
    return Want(name, f"{number:032x}", ttl, mode, limit, delay, f"worker-{number}@host:1")


class Blocking:
    """An engine of the blocking world, called as plain functions that have a few seconds for each request."""

    def __init__(self, engine: RedisEngine, seconds: float = 5.0) -> None:
        self.engine, self.seconds = engine, seconds

    def __getattr__(self, name: str) -> Callable[..., Any]:
        operation = getattr(self.engine, name)

        def call(*arguments: Any, **settings: Any) -> Any:
            settings.setdefault("until", self.engine.world.now() + self.seconds)
            return run(operation(*arguments, **settings))

        return call

    def wait(self, wanted: Want, seconds: float) -> None:
        run(self.engine.wait(wanted, self.engine.world.now() + seconds))

    def close(self) -> None:
        run(self.engine.close())


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    return run_blocking(coroutine)
