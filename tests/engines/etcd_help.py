"""What the tests of the etcd engine share."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from leasehold.core.engine import Engine, Mode, Want
from leasehold.core.worlds import run_blocking
from leasehold.engines.etcd import EtcdFamily, open_engine
from leasehold.engines.etcd_sessions import Place
from leasehold.wires.etcd_lines import Line

if TYPE_CHECKING:
    import grpc
    from tests.support.etcd_server import EtcdNode

World = Literal["blocking", "asyncio"]
WORLDS: tuple[World, ...] = ("blocking", "asyncio")
_numbers = itertools.count(1)


def family_at(url: str, *, namespace: str = "") -> EtcdFamily:
    return open_engine(url, namespace=namespace, client_label="tests")


def fresh_name() -> str:
    return f"name-{next(_numbers)}"


def want(name: str, *, ttl: float = 10.0, mode: Mode = "exclusive", limit: int = 1) -> Want:
    number = next(_numbers)
    return Want(name, f"{number:032x}", ttl, mode, limit, 0.0, f"worker-{number}@host:1")


class Driven:
    """An engine of either world, called as plain functions that have a few seconds for each request."""

    def __init__(self, family: EtcdFamily, world: World = "blocking", seconds: float = 5.0) -> None:
        self.family, self.seconds = family, seconds
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
        self._run(self.engine.close())
        if self._runner is not None:
            self._runner.close()


class Counted:
    """Counts what a line's methods are called for, and passes it on."""

    def __init__(self, line: Line) -> None:
        self.made: list[str] = []
        self.sent: list[bytes] = []
        for method, call in line.calls.items():
            line.calls[method] = _Counting(call, method.rpartition("/")[2], self)  # type: ignore[assignment]


class _Counting:
    def __init__(self, call: grpc.UnaryUnaryMultiCallable[bytes, bytes], name: str, counted: Counted) -> None:
        self._call, self._name, self._counted = call, name, counted

    def _count(self, request: bytes) -> None:
        self._counted.made.append(self._name)
        self._counted.sent.append(request)

    def __call__(self, request: bytes, **settings: Any) -> bytes:
        self._count(request)
        return self._call(request, **settings)

    def future(self, request: bytes, **settings: Any) -> Any:
        self._count(request)
        return self._call.future(request, **settings)


def counted(family: EtcdFamily) -> Counted:
    """Count the requests of a family from now on."""
    return Counted(family._lines.current())


def eventually(condition: Callable[[], bool], within: float) -> float:
    """Wait until the condition holds; fails when it does not in time. Returns how long it took."""
    since = time.monotonic()
    while not condition():
        assert time.monotonic() - since < within, f"not within {within} s"
        time.sleep(0.02)
    return time.monotonic() - since


def keys_of(server: EtcdNode, name: str) -> list[str]:
    return [key for key in server.keys() if f"/{name}/" in key]  # noqa: SIM118
