"""Engines of either world, called as plain functions; and shorthand for what tests want of them."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from typing import Any, Generic, Literal, Protocol, TypeVar

from leasehold.core.engine import Engine, Mode, Want
from leasehold.core.worlds import run_blocking

World = Literal["blocking", "asyncio"]
WORLDS: tuple[World, ...] = ("blocking", "asyncio")
EngineT_co = TypeVar("EngineT_co", bound=Engine, covariant=True)
_numbers = itertools.count(1)


def fresh_name() -> str:
    return f"name-{next(_numbers)}"


def want(name: str, *, ttl: float = 10.0, mode: Mode = "exclusive", limit: int = 1, delay: float = 0.0) -> Want:
    """An attempt by somebody whom there was not before."""
    number = next(_numbers)
    return Want(name, f"{number:032x}", ttl, mode, limit, delay, f"worker-{number}@host:1")


def eventually(condition: Callable[[], bool], within: float = 10.0) -> float:
    """Wait until the condition holds; fails when it does not in time. Returns how long it took."""
    since = time.monotonic()
    while not condition():
        assert time.monotonic() - since < within, f"not within {within} s"
        time.sleep(0.01)
    return time.monotonic() - since


class Family(Protocol[EngineT_co]):
    """Whatever has an engine in each world."""

    def blocking(self) -> EngineT_co: ...

    def asyncio(self) -> EngineT_co: ...


FamilyT = TypeVar("FamilyT", bound=Family[Any])


class Driven(Generic[FamilyT]):
    """An engine of either world, called as plain functions that have a few seconds for each request."""

    def __init__(self, family: FamilyT, world: World = "blocking", seconds: float = 5.0) -> None:
        self.family, self.seconds, self._is_over = family, seconds, False
        self._runner = asyncio.Runner() if world == "asyncio" else None
        self.engine: Any = family.blocking() if self._runner is None else self._runner.run(self._in_loop())

    async def _in_loop(self) -> Any:
        return self.family.asyncio()

    def run(self, coroutine: Any) -> Any:
        """Run something of the engine's to its end."""
        return run_blocking(coroutine) if self._runner is None else self._runner.run(coroutine)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        operation = getattr(self.engine, name)

        def call(*arguments: Any, **settings: Any) -> Any:
            settings.setdefault("until", self.engine.world.now() + self.seconds)
            return self.run(operation(*arguments, **settings))

        return call

    def wait(self, wanted: Want, seconds: float) -> float:
        """Wait, and say how long that took."""
        since = time.monotonic()
        self.run(self.engine.wait(wanted, self.engine.world.now() + seconds))
        return time.monotonic() - since

    def close(self) -> None:
        """Close the engine. In blocking code it may be used again, and closed again; an event loop ends with it."""
        if self._is_over:
            return
        self.run(self.engine.close())
        if self._runner is not None:
            self._runner.close()
            self._is_over = True
