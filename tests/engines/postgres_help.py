"""What the tests of the PostgreSQL engine share: a server for all of them, and a clock that can be moved."""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Protocol, TypeVar

from tests.engines.sql_help import fresh_namespace, soon, want
from tests.support.postgres_server import PASSWORD, PostgresServer

from leasehold.core.engine import Busy, Grant, Renewal, Want
from leasehold.core.worlds import run_blocking
from leasehold.engines.postgres import PostgresEngine, PostgresFamily, open_engine
from leasehold.wires.postgres_target import target_from_url

T = TypeVar("T")
MOVABLE_CLOCK = "public.test_clock()"


class MovableClock:
    """The server's clock as the statements of one family see it: it stands still until it is moved."""

    def __init__(self, server: PostgresServer, micros: int = 10**15) -> None:
        self._connection = server.superuser()
        self._connection.execute("CREATE TABLE IF NOT EXISTS public.test_time (micros bigint)")
        self._connection.execute("GRANT SELECT ON public.test_time TO leasehold")
        self._connection.execute(
            "CREATE OR REPLACE FUNCTION public.test_clock() RETURNS bigint LANGUAGE sql VOLATILE "
            "AS 'SELECT micros FROM public.test_time'"
        )
        self._connection.execute("TRUNCATE public.test_time")
        self._connection.execute("INSERT INTO public.test_time VALUES (%s)", (micros,))
        self.micros = micros

    def move(self, micros: int) -> None:
        self.micros += micros
        self._connection.execute("UPDATE public.test_time SET micros = %s", (self.micros,))

    def close(self) -> None:
        self._connection.close()


def family(url: str, *, namespace: str | None = None, clock: str | None = None) -> PostgresFamily:
    more = {} if clock is None else {"clock": clock}
    return PostgresFamily(target_from_url(url), fresh_namespace() if namespace is None else namespace, "test", **more)


@contextlib.contextmanager
def opened(url: str, *, namespace: str | None = None, clock: str | None = None) -> Iterator[PostgresEngine]:
    engine = family(url, namespace=namespace, clock=clock).blocking()
    try:
        yield engine
    finally:
        run_blocking(engine.close())


class Run(Protocol):
    """How a world runs an operation to its end."""

    def __call__(self, coroutine: Coroutine[Any, Any, T], /) -> T: ...


class Caller:
    """An engine of either world, called as plain functions that have a few seconds for each request."""

    def __init__(self, engine: PostgresEngine, run: Run, seconds: float) -> None:
        self.engine, self._run, self.seconds = engine, run, seconds

    def __getattr__(self, name: str) -> Callable[..., Any]:
        operation = getattr(self.engine, name)
        return lambda *given, **more: self._run(operation(*given, **{"until": soon(self.engine, self.seconds), **more}))

    def wait(self, wanted: Want, seconds: float) -> float:
        """Wait for a wake-up; returns how long that took."""
        started = self.engine.world.now()
        self._run(self.engine.wait(wanted, started + seconds))
        return self.engine.world.now() - started

    def handed(self, wanted: Want, seconds: float) -> Grant | None:
        """Wait for a wake-up; returns what came with it."""
        return self._run(self.engine.wait(wanted, self.engine.world.now() + seconds))


@contextlib.contextmanager
def calling(on: object, world: str, seconds: float = 5.0) -> Iterator[Caller]:
    """An engine in one of the worlds, with names that nobody else uses; closed at the end."""
    opened = open_engine(on, namespace=fresh_namespace(), client_label="test")
    assert isinstance(opened, PostgresFamily)
    with contextlib.ExitStack() as stack:
        run: Run = run_blocking if world == "blocking" else stack.enter_context(asyncio.Runner()).run
        engine = opened.blocking() if world == "blocking" else opened.asyncio()
        try:
            yield Caller(engine, run, seconds)
        finally:
            run(engine.close())


def exercise(engine: Caller) -> None:
    """The whole life of a contended lease, its wake-up included."""
    first, second = want("exercise", "a" * 32), want("exercise", "b" * 32)
    token = engine.take(first).token
    assert isinstance(engine.take(second, patience=30.0), Busy)
    assert engine.renew([Renewal("exercise", first.holder, token, 30.0)]) == [True]
    assert engine.release("exercise", first.holder) is True
    assert engine.wait(second, 20.0) < 10.0
    assert engine.take(second, patience=30.0).token > token
    assert engine.status("exercise").holders[0].about == second.about
    assert engine.release("exercise", second.holder) is True


def assert_hidden(error: BaseException, secret: str = PASSWORD) -> None:
    """No secret in an error, its causes, or their tracebacks with local variables (of our own code)."""
    seen: BaseException | None = error
    while seen is not None:
        assert secret not in str(seen) + repr(seen) + str(getattr(seen, "__notes__", ""))
        for frame in traceback.TracebackException.from_exception(seen, capture_locals=True).stack:
            if "/src/leasehold/" in frame.filename:
                assert secret not in str(frame.locals), f"{frame.filename}:{frame.lineno}"
        seen = seen.__cause__ or seen.__context__
