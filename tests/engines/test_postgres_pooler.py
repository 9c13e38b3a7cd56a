"""Behind pgbouncer: what it breaks is told, and the rest works."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from tests.engines.driving import WORLDS
from tests.engines.postgres_help import calling, exercise
from tests.engines.sql_help import want
from tests.support.pgbouncer import running_pgbouncer
from tests.support.postgres_server import PostgresServer

from leasehold import GuaranteeWarning, Leasehold
from leasehold.core.engine import Busy, Renewal
from leasehold.engines.postgres import lock_in_transaction
from leasehold.wires import postgres as wire


@pytest.fixture(params=WORLDS)
def world(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(autouse=True)
def warned_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each address is warned of once in a process."""
    monkeypatch.setattr(wire, "_warned", set())


@pytest.fixture(scope="module")
def by_transactions(postgres_server: PostgresServer) -> Iterator[str]:
    with running_pgbouncer(postgres_server, "transaction") as url:
        yield url


def test_transaction_mode_serves_leases_and_says_that_nobody_is_woken(by_transactions: str, world: str) -> None:
    with calling(by_transactions, world) as engine:
        first, second = want("n", "a" * 32), want("n", "b" * 32)
        token = engine.take(first).token
        with pytest.warns(GuaranteeWarning, match=r"a pooler stands before .*\?listen=host:port"):
            assert isinstance(engine.take(second, patience=30.0), Busy)
        assert engine.wait(second, 20.0) < 2.0  # it asks again by itself, soon
        assert engine.renew([Renewal("n", first.holder, token, 30.0)]) == [True]
        assert engine.release("n", first.holder) is True
        assert engine.take(second, patience=30.0).token > token


def test_sessions_behind_it_are_left_as_they_were(by_transactions: str, postgres_server: PostgresServer) -> None:
    """They serve others, whose searches and waits must not end because of us."""
    with calling(by_transactions, "blocking") as engine:
        for number in range(20):
            engine.take(want(f"n{number}", "a" * 32))
            engine.status(f"n{number}")
            engine.release(f"n{number}", "a" * 32)
    with psycopg.connect(by_transactions, autocommit=True) as other:
        for _ in range(20):
            settings = other.execute(
                "SELECT current_setting('search_path'), current_setting('lock_timeout'), "
                "current_setting('idle_in_transaction_session_timeout')"
            ).fetchone()
            assert settings == ('"$user", public', "0", "0")


def test_listening_past_it_wakes_people_up(by_transactions: str, postgres_server: PostgresServer, world: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", GuaranteeWarning)
        with calling(f"{by_transactions}?listen=127.0.0.1:{postgres_server.port}", world) as engine:
            exercise(engine)


@pytest.mark.filterwarnings("ignore:a pooler stands before")
def test_many_clients_share_few_sessions(by_transactions: str) -> None:
    """Whatever session serves a request: no two hold at once, and tokens rise."""
    held, most, tokens = 0, 0, []

    def work() -> None:
        nonlocal held, most
        with Leasehold(by_transactions, namespace="shared") as locks:
            for _ in range(5):
                with locks.lock("n", wait=60) as lease:
                    held += 1
                    most = max(most, held)
                    tokens.append(lease.token)
                    time.sleep(0.001)
                    held -= 1

    with ThreadPoolExecutor(6) as workers:
        for worker in [workers.submit(work) for _ in range(6)]:
            worker.result(90)
    assert most == 1
    assert len(tokens) == 30
    assert tokens == sorted(set(tokens))


def test_a_callers_own_transaction_passes_it(by_transactions: str) -> None:
    with psycopg.connect(by_transactions) as connection:
        connection.prepare_threshold = None
        first = lock_in_transaction(connection, "own", namespace="pooled")
        connection.commit()
        assert lock_in_transaction(connection, "own", namespace="pooled") > first


def test_session_mode_is_taken_at_its_word(postgres_server: PostgresServer, world: str) -> None:
    with running_pgbouncer(postgres_server, "session") as url, warnings.catch_warnings():
        warnings.simplefilter("error", GuaranteeWarning)
        with calling(f"{url}?pooler=session", world) as engine:
            exercise(engine)
