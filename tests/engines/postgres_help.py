"""What the tests of the PostgreSQL engine share: a server for all of them, and a clock that can be moved."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator

from tests.support.postgres_server import PostgresServer

from leasehold.core.engine import Engine, Want
from leasehold.core.worlds import run_blocking
from leasehold.engines.postgres import PostgresEngine, PostgresFamily
from leasehold.wires.postgres_target import target_from_url

MOVABLE_CLOCK = "public.test_clock()"
_numbers = itertools.count(1)


def fresh_namespace() -> str:
    return f"test-{next(_numbers)}"


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


def soon(engine: Engine, seconds: float = 5.0) -> float:
    return engine.world.now() + seconds


def want(name: str, holder: str, ttl: float = 30.0) -> Want:
    return Want(name, holder, ttl, about=f"{holder}@here:1")


def eventually(condition: Callable[[], bool], within: float = 10.0) -> None:
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)
