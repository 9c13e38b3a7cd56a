"""The lock that all listeners on a server wait for: who keeps it, and that interruptions do not hold each other up."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.engines.driving import eventually
from tests.engines.mysql_help import calling, opened
from tests.engines.sql_help import fresh_namespace, soon, want
from tests.support.mariadb_server import MariadbServer, running_mariadb

from leasehold.core.engine import Busy, Grant
from leasehold.core.worlds import run_blocking
from leasehold.engines.mysql import MysqlEngine
from leasehold.wires import mysql_ear
from leasehold.wires.mysql_ear import GATE

LISTENERS, NAMES_EACH, ROUNDS = 6, 2, 6
LONGEST = 0.9
"""Two interruptions that hold each other up take two seconds."""


@pytest.fixture(scope="module", params=["mariadb", "mysql"])
def own_server(request: pytest.FixtureRequest) -> Iterator[MariadbServer]:
    """A server at which nobody else listens."""
    with running_mariadb(engine=request.param) as server:
        yield server


def keeper(server: MariadbServer) -> int | None:
    """The connection that keeps the gate."""
    [[number]] = server.sql("SELECT IS_USED_LOCK(%s)", GATE)
    return None if number is None else int(number)


def queued(engine: MysqlEngine, name: str, holder: str) -> None:
    assert isinstance(run_blocking(engine.take(want(name, holder), until=soon(engine), patience=60.0)), Busy)


def test_interruptions_at_one_moment_do_not_hold_each_other_up(own_server: MariadbServer) -> None:
    """Several listeners, and each of them twice, are woken by several who free names, all at the same moment."""
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(2 * LISTENERS * NAMES_EACH) as threads:
        namespace = fresh_namespace()
        holder, *waiting = (
            stack.enter_context(opened(own_server.url, namespace=namespace)) for _ in range(1 + LISTENERS)
        )
        names = {f"n{number}": waiting[number % LISTENERS] for number in range(NAMES_EACH * LISTENERS)}
        at_once = threading.Barrier(len(names))

        def free(name: str, turn: int) -> float:
            at_once.wait(30)
            began = time.monotonic()
            assert run_blocking(holder.release(name, f"h{turn}-{name}", until=soon(holder)))
            return began

        def waited(name: str, turn: int) -> float:
            engine, mine = names[name], want(name, f"w{turn}-{name}")
            while not isinstance(run_blocking(engine.take(mine, until=soon(engine), patience=60.0)), Grant):
                run_blocking(engine.wait(mine, soon(engine, 20.0)))
            return time.monotonic()

        for turn in range(ROUNDS):
            for name, engine in names.items():
                assert isinstance(run_blocking(holder.take(want(name, f"h{turn}-{name}"), until=soon(holder))), Grant)
                queued(engine, name, f"w{turn}-{name}")
            woken = [threads.submit(waited, name, turn) for name in names]
            freed = [threads.submit(free, name, turn) for name in names]
            took = [end.result() - began.result() for end, began in zip(woken, freed, strict=True)]
            assert max(took) < LONGEST
            for name, engine in names.items():
                assert run_blocking(engine.release(name, f"w{turn}-{name}", until=soon(engine)))


def test_one_connection_keeps_the_gate_for_all(own_server: MariadbServer) -> None:
    eventually(lambda: not own_server.connections())
    with contextlib.ExitStack() as stack:
        engines = [stack.enter_context(opened(own_server.url, namespace="all")) for _ in range(3)]
        assert isinstance(run_blocking(engines[0].take(want("a", "h"), until=soon(engines[0]))), Grant)
        for number, engine in enumerate(engines):
            queued(engine, "a", f"w{number}")
        # Each has one for requests and one that listens.
        assert len(own_server.connections()) == 2 * len(engines) + 1
        assert keeper(own_server) in own_server.connections()
    eventually(lambda: not own_server.connections())
    assert keeper(own_server) is None


def test_a_forked_child_does_not_say_goodbye_for_the_keeper(own_server: MariadbServer) -> None:
    with opened(own_server.url) as engine:
        assert isinstance(run_blocking(engine.take(want("a", "h1"), until=soon(engine))), Grant)
        queued(engine, "a", "h2")
        before = keeper(own_server)
        child = os.fork()
        if child == 0:
            with contextlib.suppress(BaseException):
                engine.forked()
                run_blocking(engine.close())
            os._exit(0)
        os.waitpid(child, 0)
        time.sleep(0.1)
        assert before is not None
        assert keeper(own_server) == before


@pytest.mark.parametrize("world", ["blocking", "asyncio"])
def test_when_its_keeper_is_gone_a_listener_keeps_the_gate(own_server: MariadbServer, world: str) -> None:
    with calling(own_server.url, world) as (engine, run), opened(own_server.url) as first:
        first._leases, first._namespace = engine._leases, engine._namespace
        assert isinstance(run(engine.take(want("a", "h1"), until=soon(engine))), Grant)
        assert isinstance(run_blocking(first.take(want("b", "h1"), until=soon(first))), Grant)
        queued(first, "b", "h2")
        before = keeper(own_server)
        mine = want("a", "h2")
        assert isinstance(run(engine.take(mine, until=soon(engine), patience=60.0)), Busy)
        run_blocking(first.close())
        began = engine.world.now()
        run(engine.wait(mine, began + 20.0))
        assert engine.world.now() < began + 2.0, "it has to ask again, with another listener"
        assert isinstance(run(engine.take(mine, until=soon(engine), patience=60.0)), Busy)
        assert keeper(own_server) not in {None, before}
        assert run(engine.release("a", "h1", until=soon(engine)))
        began = engine.world.now()
        run(engine.wait(mine, began + 20.0))
        assert engine.world.now() < began + LONGEST
        assert isinstance(run(engine.take(mine, until=soon(engine), patience=60.0)), Grant)
        assert len(own_server.connections()) == 3
    eventually(lambda: not own_server.connections())


def test_when_its_keeper_is_gone_one_listener_is_replaced_and_no_more(own_server: MariadbServer) -> None:
    """The one that keeps the gate must not let go of it again: it would go from one to the next."""
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(LISTENERS) as threads:
        first, *others = (stack.enter_context(opened(own_server.url, namespace="few")) for _ in range(1 + LISTENERS))
        assert isinstance(run_blocking(first.take(want("a", "h"), until=soon(first))), Grant)
        for number, engine in enumerate([first, *others]):
            queued(engine, "a", f"w{number}")

        def waited(number: int) -> float:
            engine, began = others[number], time.monotonic()
            run_blocking(engine.wait(want("a", f"w{number + 1}"), soon(engine, 2.0)))
            return time.monotonic() - began

        waiting = [threads.submit(waited, number) for number in range(LISTENERS)]
        time.sleep(0.2)
        run_blocking(first.close())
        assert sum(one.result() < 1.9 for one in waiting) == 1


def test_who_has_to_keep_the_gate_is_not_passed_by_before_it_knows(
    own_server: MariadbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mysql_ear, "NAP", 30)  # nobody reads for a while, so a wait that is over is not begun again
    with (
        opened(own_server.url, namespace="place") as first,
        opened(own_server.url, namespace="place") as second,
        opened(own_server.url, namespace="place") as third,
    ):
        assert isinstance(run_blocking(third.take(want("a", "h"), until=soon(third))), Grant)
        assert isinstance(run_blocking(first.take(want("b", "h"), until=soon(first))), Grant)
        queued(first, "b", "w1")
        queued(second, "a", "w2")
        before = keeper(own_server)
        run_blocking(first.close())
        eventually(lambda: keeper(own_server) not in {None, before})
        queued(third, "a", "w3")
        assert run_blocking(third.release("a", "h", until=soon(third)))
        assert isinstance(run_blocking(third.take(want("a", "w3"), until=soon(third), patience=60.0)), Busy)
        run_blocking(second.wait(want("a", "w2"), soon(second)))
        assert isinstance(run_blocking(second.take(want("a", "w2"), until=soon(second), patience=60.0)), Grant)
