"""Passing a name on from one waiter to the next, in one round trip each."""

from __future__ import annotations

import time

import pytest
from tests.engines.driving import WORLDS
from tests.engines.postgres_help import calling
from tests.engines.sql_help import want
from tests.support.postgres_server import PostgresServer

from leasehold.core.engine import Busy, Grant
from leasehold.core.table import PROMPT
from leasehold.wires.lookout import Lookout

FIRST, SECOND, THIRD = (want("n", letter * 32) for letter in "abc")


async def _not_needed(*_: object, **__: object) -> None:
    raise AssertionError("the long way was taken")


@pytest.mark.parametrize("world", WORLDS)
def test_the_head_of_the_queue_is_woken_and_nobody_else_gets_its_turn(
    postgres_server: PostgresServer, world: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with calling(postgres_server.url, world) as engine:
        token = engine.take(FIRST).token
        for waiting in (SECOND, THIRD):
            assert isinstance(engine.take(waiting, patience=60.0), Busy)
        time.sleep(PROMPT / 1e6)  # after which nobody is handed the name without asking again
        with monkeypatch.context() as short:
            short.setattr(engine.engine, "_release_by_table", _not_needed)
            assert engine.release("n", FIRST.holder) is True
        assert engine.wait(SECOND, 30.0) < 20.0
        assert isinstance(engine.take(THIRD, patience=60.0), Busy), "it is not its turn"
        monkeypatch.setattr(engine.engine, "_take_by_table", _not_needed)
        monkeypatch.setattr(engine.engine, "_release_by_table", _not_needed)
        for waiting in (SECOND, THIRD):
            answer = engine.take(waiting, patience=60.0)
            assert isinstance(answer, Grant)
            assert answer.token > token
            token = answer.token
            assert engine.release("n", waiting.holder) is True
        # Nobody waits any more, so the name is as simple as before.
        assert engine.take(FIRST).token > token
        assert engine.release("n", FIRST.holder) is True


def test_a_head_that_nobody_hears_for_is_passed_by(postgres_server: PostgresServer) -> None:
    with calling(postgres_server.url, "blocking") as engine, calling(postgres_server.url, "blocking") as deaf:
        deaf.engine._leases, deaf.engine._namespace = engine.engine._leases, engine.engine._namespace
        engine.take(FIRST)
        assert isinstance(deaf.take(SECOND, patience=60.0), Busy)
        deaf._run(deaf.engine.close())
        assert isinstance(engine.take(THIRD, patience=60.0), Busy)
        assert engine.release("n", FIRST.holder) is True
        assert engine.wait(THIRD, 30.0) < 20.0
        assert isinstance(engine.take(THIRD, patience=60.0), Grant)


def test_hundreds_of_waiters_whose_process_is_gone_are_passed_by(postgres_server: PostgresServer) -> None:
    with (
        calling(postgres_server.url, "blocking", seconds=60.0) as engine,
        calling(postgres_server.url, "blocking") as deaf,
    ):
        deaf.engine._leases, deaf.engine._namespace = engine.engine._leases, engine.engine._namespace
        engine.take(FIRST)
        for number in range(600):
            assert isinstance(deaf.take(want("n", f"{number:032x}"), patience=600.0), Busy)
        deaf._run(deaf.engine.close())
        assert isinstance(engine.take(THIRD, patience=600.0), Busy)
        assert engine.release("n", FIRST.holder) is True
        assert engine.wait(THIRD, 30.0) < 20.0
        assert isinstance(engine.take(THIRD, patience=600.0), Grant)


@pytest.mark.parametrize("world", WORLDS)
def test_a_name_whose_row_was_forgotten_is_taken_all_the_same(postgres_server: PostgresServer, world: str) -> None:
    with calling(postgres_server.url, world) as engine:
        token = engine.take(FIRST).token
        assert engine.release("n", FIRST.holder) is True
        namespace = engine.engine._namespace
        forgotten = "DELETE FROM leasehold_lease WHERE namespace = %s RETURNING 1"
        assert postgres_server.sql(forgotten, namespace) == [(1,)]
        assert engine.take(SECOND).token > token
        assert engine.release("n", SECOND.holder) is True


@pytest.mark.parametrize(("world", "looks"), [("blocking", True), ("asyncio", False)])
def test_a_thread_looks_for_the_answer_before_it_sleeps_and_a_task_does_not(
    postgres_server: PostgresServer, world: str, looks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop of a task has other work to do meanwhile."""
    seen: list[float] = []
    monkeypatch.setattr(Lookout, "look", lambda _, since: seen.append(since))
    with calling(postgres_server.url, world) as engine:
        engine.take(FIRST)
        assert engine.release("n", FIRST.holder) is True
        assert bool(seen) is looks


def test_who_waits_for_a_turn_does_not_look_for_a_while(
    postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    dozed: set[int] = set()
    monkeypatch.setattr(Lookout, "doze", lambda looking: dozed.add(id(looking)))
    with calling(postgres_server.url, "blocking") as engine:
        engine.take(FIRST)
        assert isinstance(engine.take(SECOND, patience=60.0), Busy)
        assert not dozed
        engine.wait(SECOND, 0.05)
        assert dozed
