"""What the tests of the MySQL engine share: a clock that can be moved, and shorthand."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from tests.engines.sql_help import fresh_namespace
from tests.support.mariadb_server import MariadbServer

from leasehold.core.worlds import run_blocking
from leasehold.engines.mysql import MysqlEngine, MysqlFamily
from leasehold.wires.mysql_target import target_from_url

MOVABLE_CLOCK = "(SELECT micros FROM test_time)"
"""No stored function: within a statement that calls one, the server forgets what LAST_INSERT_ID was told."""


class MovableClock:
    """The server's clock as the statements of one family see it: it stands still until it is moved."""

    def __init__(self, server: MariadbServer, micros: int = 10**15) -> None:
        self.connection = server.superuser()
        self.connection.select_db("leasehold")
        self.sql("CREATE TABLE IF NOT EXISTS test_time (micros BIGINT)")
        self.sql("DELETE FROM test_time")
        self.sql(f"INSERT INTO test_time VALUES ({micros})")
        self.micros = micros

    def sql(self, query: str) -> list[tuple[object, ...]]:
        with self.connection.cursor() as cursor:
            cursor.execute(query)
            return list(cursor.fetchall())

    def move(self, micros: int) -> None:
        self.micros += micros
        self.sql(f"UPDATE test_time SET micros = {self.micros}")

    def close(self) -> None:
        self.connection.close()


def family(url: str, *, namespace: str | None = None, clock: str | None = None) -> MysqlFamily:
    more = {} if clock is None else {"clock": clock}
    return MysqlFamily(target_from_url(url), fresh_namespace() if namespace is None else namespace, "test", **more)


@contextlib.contextmanager
def opened(url: str, *, namespace: str | None = None, clock: str | None = None) -> Iterator[MysqlEngine]:
    engine = family(url, namespace=namespace, clock=clock).blocking()
    try:
        yield engine
    finally:
        run_blocking(engine.close())


Run = Callable[[Coroutine[Any, Any, Any]], Any]


@contextlib.contextmanager
def calling(url: str, world: str) -> Iterator[tuple[MysqlEngine, Run]]:
    """An engine in one of the worlds, and how its operations are run there."""
    if world == "blocking":
        with opened(url) as engine:
            yield engine, run_blocking
        return
    with asyncio.Runner() as runner:
        engine = family(url).asyncio()
        try:
            yield engine, runner.run
        finally:
            runner.run(engine.close())
