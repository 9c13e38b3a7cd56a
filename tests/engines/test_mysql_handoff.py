"""Handing a name over from one waiter to the next, in one round trip each; and statements that are prepared."""

from __future__ import annotations

import time

import pytest
from tests.engines.driving import eventually
from tests.engines.mysql_help import calling, opened
from tests.engines.sql_help import soon, want
from tests.support.mariadb_server import MariadbServer

from leasehold.core.engine import Busy, Grant
from leasehold.core.table import PROMPT
from leasehold.errors import EngineError
from leasehold.wires.mysql_packets import Prepared
from leasehold.wires.mysql_tables import text_at
from leasehold.wires.sql_table import Request, Statement

CLOSE = b"\x19"
"""Makes the server forget a prepared statement."""
FIRST, SECOND, THIRD = (want("n", letter * 32) for letter in "abc")


async def _not_needed(*_: object, **__: object) -> None:
    raise AssertionError("the long way was taken")


@pytest.mark.parametrize("world", ["blocking", "asyncio"])
def test_the_head_of_the_queue_is_woken_and_nobody_else_gets_its_turn(
    mariadb_server: MariadbServer, world: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with calling(mariadb_server.url, world) as (engine, run):
        token = run(engine.take(FIRST, until=soon(engine))).token
        for waiting in (SECOND, THIRD):
            assert isinstance(run(engine.take(waiting, until=soon(engine), patience=60.0)), Busy)
        time.sleep(PROMPT / 1e6)  # after which nobody is handed the name without asking again
        with monkeypatch.context() as short:
            short.setattr(engine, "_release_by_table", _not_needed)
            assert run(engine.release("n", FIRST.holder, until=soon(engine))) is True
        began = engine.world.now()
        assert run(engine.wait(SECOND, began + 30.0)) is None
        assert engine.world.now() < began + 20.0
        assert isinstance(run(engine.take(THIRD, until=soon(engine), patience=60.0)), Busy), "it is not its turn"
        monkeypatch.setattr(engine, "_take_by_table", _not_needed)
        monkeypatch.setattr(engine, "_release_by_table", _not_needed)
        for waiting in (SECOND, THIRD):
            answer = run(engine.take(waiting, until=soon(engine), patience=60.0))
            assert isinstance(answer, Grant)
            assert answer.token > token
            token = answer.token
            assert run(engine.release("n", waiting.holder, until=soon(engine))) is True
        # Nobody waits any more, so the name is as simple as before.
        assert run(engine.take(FIRST, until=soon(engine))).token > token
        assert run(engine.release("n", FIRST.holder, until=soon(engine))) is True


def test_a_head_that_nobody_hears_for_is_passed_by(mariadb_server: MariadbServer) -> None:
    with calling(mariadb_server.url, "blocking") as (engine, run), opened(mariadb_server.url) as deaf:
        deaf._leases, deaf._namespace = engine._leases, engine._namespace
        run(engine.take(FIRST, until=soon(engine)))
        assert isinstance(run(deaf.take(SECOND, until=soon(deaf), patience=60.0)), Busy)
        [[address]] = mariadb_server.sql(
            f"SELECT {text_at(6)} FROM leasehold.leasehold_lease WHERE namespace = %s", engine._namespace
        )
        run(deaf.close())
        # The server notices only when the wait is over that nobody listens there any more.
        eventually(lambda: mariadb_server.sql("SELECT IS_USED_LOCK(%s)", address) == [(None,)])
        assert isinstance(run(engine.take(THIRD, until=soon(engine), patience=60.0)), Busy)
        assert run(engine.release("n", FIRST.holder, until=soon(engine))) is True
        began = engine.world.now()
        run(engine.wait(THIRD, began + 30.0))
        assert engine.world.now() < began + 20.0
        assert isinstance(run(engine.take(THIRD, until=soon(engine), patience=60.0)), Grant)


def test_what_is_sent_again_is_prepared_and_means_the_same(mariadb_server: MariadbServer) -> None:
    with calling(mariadb_server.url, "blocking") as (engine, run):
        name, about, tokens = "n\u00e4me \\' \0\U0001f511 " + "x" * 180, "who " + "\u00e9" * 150, [0]
        for turn in range(4):
            one = want(name, f"{turn:032x}")._replace(about=about)
            tokens.append(run(engine.take(one, until=soon(engine))).token)
            assert run(engine.take(want(name, "f" * 32), until=soon(engine))).incumbent.about == about
            assert run(engine.release(name, "f" * 32, until=soon(engine))) is False
            assert run(engine.release(name, one.holder, until=soon(engine))) is True
        assert tokens == sorted(set(tokens))
        line = run(engine._wire.lend(soon(engine)))
        prepared = {statement.name for statement, one in line._prepared.items() if isinstance(one, Prepared)}
        assert {"take_known", "release_alone"} <= prepared
        engine._wire.give_back(line)


def test_what_is_not_prepared_is_sent_as_text(mariadb_server: MariadbServer) -> None:
    with calling(mariadb_server.url, "blocking") as (engine, run):
        line = run(engine._wire.lend(soon(engine)))
        good, bad = Statement("DO {0}", "good", (0,)), Statement("DO {0} FROM", "bad", (0,))
        for _ in range(2):
            assert run(line.ask(Request(good, (1,)), soon(engine))) == [(0, 0)]
        # A proxy may go on with another connection of its own, which knows nothing of it.
        run(line.stream.send(CLOSE + line._prepared[good]._head[1:5], soon(engine)))
        for _ in range(2):
            assert run(line.ask(Request(good, (1,)), soon(engine))) == [(0, 0)]
        for _ in range(3):
            with pytest.raises(EngineError, match="syntax"):
                run(line.ask(Request(bad, (1,)), soon(engine)))
        assert line._prepared[bad] is None
        engine._wire.give_back(line)


def test_what_another_connection_of_a_proxy_has_not_prepared_is_sent_as_text(mariadb_server: MariadbServer) -> None:
    together = ("queue", "incumbent", "hand_over", "tell_handed")
    with calling(mariadb_server.url, "blocking") as (engine, run):
        for turn in range(5):
            first, second = (want("n", f"{letter}{turn:031x}") for letter in "ab")
            token = run(engine.take(first, until=soon(engine))).token
            busy = run(engine.take(second, until=soon(engine), patience=60.0))
            assert busy.incumbent == (token, 0, first.ttl, first.about)
            line = run(engine._wire.lend(soon(engine)))
            ready = {statement.name: one for statement, one in line._prepared.items()}
            if turn in (2, 4):
                assert set(together) <= ready.keys()
            if turn == 2:
                for name in together:
                    line.stream.send_now(CLOSE + ready[name]._head[1:5])
            engine._wire.give_back(line)
            assert run(engine.release("n", first.holder, until=soon(engine))) is True
            answer = run(engine.wait(second, soon(engine))) or run(engine.take(second, until=soon(engine)))
            assert answer.token > token
            assert run(engine.release("n", second.holder, until=soon(engine))) is True


@pytest.mark.parametrize("world", ["blocking", "asyncio"])
def test_who_waits_for_several_answers_is_woken_once_and_hears_of_an_error_soon(
    mariadb_server: MariadbServer, world: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with calling(mariadb_server.url, world) as (engine, run):
        line = run(engine._wire.lend(soon(engine)))
        received: list[bool] = []
        receive = line.stream.receive

        def noted() -> bool:
            received.append(receive())
            return received[-1]

        monkeypatch.setattr(line.stream, "receive", noted)

        def times_woken(seconds: float) -> int:
            received.clear()
            short_naps = [Request(Statement(f"DO SLEEP({seconds})", "nap"))] * 4
            assert run(line.ask_all(short_naps, soon(engine), commits=False)) == [[(0, 0)]] * 4
            return sum(received)

        # On a machine that stands still for a moment something may be wrong, and is looked at.
        assert 1 in (times_woken(0.002) for _ in range(50))
        assert times_woken(0.03) > 1
        began = engine.world.now()
        with pytest.raises(EngineError, match="syntax"):
            run(
                line.ask_all(
                    [Request(Statement(text, "")) for text in ("DO 1", "DO", "DO 1")], soon(engine), commits=False
                )
            )
        assert engine.world.now() < began + 2.0
        engine._wire.give_back(line)
