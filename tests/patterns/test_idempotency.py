"""One key, one execution, one result: with callers at the same time, crashes, stalls, and payloads that differ."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.patterns.conftest import PATIENT

from leasehold import FailedBefore, InProgress, KeyReused, Misuse, Quarantined, StaleToken
from leasehold.patterns.idempotency import (
    STRIPE,
    Idempotency,
    RedisKeys,
    Run,
    SqlKeys,
    Store,
    fingerprint_of,
)

_tables = itertools.count()


@pytest.fixture
def keys(store: Store) -> Idempotency:
    return Idempotency(store, scope="payments")


class Counted:
    """An operation that counts how often it was carried out."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.runs, self._seconds = 0, seconds

    def __call__(self, run: Run) -> dict[str, int]:
        self.runs += 1
        time.sleep(self._seconds)
        return {"charged": 10, "token": run.token}


def test_the_second_caller_gets_the_result_of_the_first(keys: Idempotency) -> None:
    charge = Counted()
    first = keys.once("order-1", charge, payload={"amount": 10})
    assert keys.once("order-1", charge, payload={"amount": 10}) == first
    assert charge.runs == 1


def test_a_hundred_callers_at_once_and_one_execution(keys: Idempotency) -> None:
    charge = Counted(seconds=0.3)
    with ThreadPoolExecutor(100) as pool:
        results = list(
            pool.map(lambda _: keys.once("order-1", charge, payload={"amount": 10}, wait=PATIENT), range(100))
        )
    assert charge.runs == 1
    assert all(result == results[0] for result in results)


def test_a_result_is_given_again_while_others_write_to_the_file(tmp_path: Path) -> None:
    store = SqlKeys(tmp_path / "app.db")
    store.create()
    keys = Idempotency(store, scope="payments")
    assert keys.once("order-1", lambda _run: "paid") == "paid"
    with contextlib.closing(sqlite3.connect(tmp_path / "app.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert keys.once("order-1", lambda _run: pytest.fail("it was done before")) == "paid"
    store.close()


def test_who_does_not_wait_is_told_that_it_is_under_way(keys: Idempotency) -> None:
    began, go_on = threading.Event(), threading.Event()

    def slow(_run: Run) -> str:
        began.set()
        assert go_on.wait(20)
        return "done"

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(keys.once, "order-1", slow)
        assert began.wait(20)
        with pytest.raises(InProgress) as refused:
            keys.once("order-1", slow)
        assert 0 < refused.value.retry_after <= 60
        go_on.set()
        assert running.result(20) == "done"


def test_the_same_key_with_another_payload_is_refused(keys: Idempotency) -> None:
    charge = Counted()
    keys.once("order-1", charge, payload={"amount": 10})
    with pytest.raises(KeyReused):
        keys.once("order-1", charge, payload={"amount": 11})
    with pytest.raises(KeyReused):
        keys.once("order-1", charge, payload=b"other bytes")
    assert charge.runs == 1


def test_one_scope_never_sees_the_results_of_another(store: Store) -> None:
    charge = Counted()
    mine, other = Idempotency(store, scope="tenant-1"), Idempotency(store, scope="tenant-2")
    assert mine.once("order-1", charge) != other.once("order-1", charge)
    assert charge.runs == 2
    assert Idempotency(store, scope="tenant").once("-1:order-1", charge) is not None
    assert charge.runs == 3


def test_a_crashed_run_is_taken_over_and_its_late_completion_is_refused(store: Store) -> None:
    keys = Idempotency(store, scope="payments", lease=0.2)
    tokens = []

    def stalls(run: Run) -> str:
        tokens.append(run.token)
        time.sleep(0.5)
        assert keys.once("order-1", takes_over, wait=5) == "by the second"
        return "by the first"

    def takes_over(run: Run) -> str:
        tokens.append(run.token)
        return "by the second"

    with pytest.raises(StaleToken) as refused:
        keys.once("order-1", stalls)
    assert tokens[0] < tokens[1]
    assert refused.value.token == tokens[0]
    assert keys.once("order-1", stalls) == "by the second"


@pytest.mark.parametrize("keep", [3600.0, 0.6])
def test_a_run_that_shows_that_it_lives_is_not_taken_over(store: Store, keep: float) -> None:
    keys = Idempotency(store, scope="payments", lease=0.6, keep=keep)
    began = threading.Event()

    def long(run: Run) -> str:
        began.set()
        for _ in range(12):
            time.sleep(0.1)
            run.renew()
        return "done"

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(keys.once, "order-1", long)
        assert began.wait(20)
        time.sleep(0.9)
        with pytest.raises(InProgress):
            keys.once("order-1", long)
        if isinstance(store, SqlKeys):
            assert keys.sweep() == 0
        assert running.result(20) == "done"


def test_a_result_is_kept_from_when_it_was_stored(store: Store) -> None:
    keys = Idempotency(store, scope="payments", lease=2.0, keep=2.0)
    charge = Counted(seconds=1.4)
    first = keys.once("order-1", charge)
    time.sleep(0.9)  # since it was begun, longer than it is kept
    assert keys.once("order-1", charge) == first


def test_a_recovery_point_tells_the_next_run_how_far_the_crashed_one_came(store: Store) -> None:
    keys = Idempotency(store, scope="payments", lease=0.2)
    charged = []

    def steps(run: Run) -> str:
        if run.point is None:
            charged.append("a card")
            run.reach("charged", {"receipt": 7})
            raise KeyboardInterrupt  # as good as a crash
        assert run.point == "charged"
        return f"receipt {run.data['receipt']}"

    with pytest.raises(KeyboardInterrupt):
        keys.once("order-1", steps)
    assert keys.once("order-1", steps, wait=5) == "receipt 7"
    assert charged == ["a card"]


class Declined(Exception):
    """The card was."""


@pytest.mark.parametrize(
    ("policy", "after", "runs"),
    [("release", Declined, 2), ("replay", FailedBefore, 1), ("quarantine", Quarantined, 1), (STRIPE, FailedBefore, 1)],
)
def test_a_failure_is_forgotten_kept_or_looked_at(store: Store, policy: Any, after: type[Exception], runs: int) -> None:
    keys = Idempotency(store, scope="payments", on_error=policy)
    attempts = []

    def decline(_run: Run) -> None:
        attempts.append(1)
        raise Declined("not enough money")

    with pytest.raises(Declined):
        keys.once("order-1", decline)
    with pytest.raises(after, match="not enough money"):
        keys.once("order-1", decline)
    assert len(attempts) == runs


def test_somebody_who_has_looked_lets_it_run_again(store: Store) -> None:
    keys = Idempotency(store, scope="payments", on_error={Declined: "quarantine"})
    attempts = []

    def sometimes(_run: Run) -> str:
        attempts.append(1)
        if len(attempts) == 1:
            raise Declined
        return "paid"

    with pytest.raises(Declined):
        keys.once("order-1", sometimes)
    assert keys.forget("order-1", because="nothing was charged")
    assert keys.once("order-1", sometimes) == "paid"
    assert not keys.forget("unknown", because="a mistake")


def test_a_result_that_cannot_be_kept_is_no_reason_to_run_again(store: Store) -> None:
    keys = Idempotency(store, scope="payments", largest_result=100)
    runs = []

    def verbose(_run: Run) -> str:
        runs.append(1)
        return "x" * 101

    with pytest.raises(Misuse, match="at most 100"):
        keys.once("order-1", verbose)
    with pytest.raises(FailedBefore):
        keys.once("order-1", verbose)
    assert len(runs) == 1
    with pytest.raises(Misuse, match="neither bytes nor JSON"):
        keys.once("order-2", lambda _run: object())


@pytest.mark.parametrize("result", [None, True, 1.5, "text ✓", ["a", {"b": None}], b"\x00\xff bytes"])
def test_results_come_back_as_they_were(keys: Idempotency, result: object) -> None:
    assert keys.once("order-1", lambda _run: result) == result
    assert keys.once("order-1", lambda _run: pytest.fail("it ran again")) == result


def test_what_was_kept_for_long_enough_is_forgotten(store: Store) -> None:
    keys = Idempotency(store, scope="payments", lease=0.05, keep=0.1)
    charge, tokens = Counted(), []
    tokens.append(keys.once("order-1", charge, payload=1)["token"])
    time.sleep(0.3)
    tokens.append(keys.once("order-1", charge, payload=2)["token"])
    time.sleep(0.3)
    if not isinstance(store, RedisKeys):  # which forgets by itself
        assert keys.sweep() == 1
        assert keys.sweep() == 0
    tokens.append(keys.once("order-1", charge, payload=3)["token"])
    assert charge.runs == 3
    assert tokens == sorted(set(tokens)), "tokens rise even when the record is gone"


def test_the_decorator_names_calls_by_their_arguments(keys: Idempotency) -> None:
    sent = []

    @keys.idempotent(key=lambda order, to="customer": f"mail/{order}")
    def send(order: int, to: str = "customer") -> str:
        sent.append((order, to))
        return f"mail for {order}"

    assert [send(1), send(1), send(2, to="customer")] == ["mail for 1", "mail for 1", "mail for 2"]
    assert sent == [(1, "customer"), (2, "customer")]
    with pytest.raises(KeyReused):
        send(1, to="somebody else")


def test_the_result_commits_with_the_callers_own_transaction(store: Store, request: pytest.FixtureRequest) -> None:
    if not isinstance(store, SqlKeys):
        with pytest.raises(Misuse, match="SQL"):
            Idempotency(store, scope="s").once("k", lambda run: run.complete(1, on=None))
        return
    own = store.connections.connect()
    own.rollback()
    table = f"paid_{os.getpid()}_{next(_tables)}"
    cursor = own.cursor()
    cursor.execute(f"CREATE TABLE {table} (n INTEGER)")
    own.commit()
    keys = Idempotency(store, scope="payments", lease=0.2)

    def pay(run: Run, then: Callable[[], None]) -> str:
        cursor.execute(f"INSERT INTO {table} VALUES (1)")
        run.complete("paid", on=own)
        then()
        return "paid"

    def crash() -> None:
        own.rollback()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        keys.once("order-1", lambda run: pay(run, crash))
    assert keys.once("order-1", lambda run: pay(run, own.commit), wait=5) == "paid"
    assert keys.once("order-1", lambda _run: pytest.fail("it ran again")) == "paid"
    cursor.execute(f"SELECT count(*) FROM {table}")
    assert cursor.fetchone() == (1,)
    own.rollback()
    own.close()


def test_a_refused_result_does_not_wait_for_the_callers_own_transaction(store: Store) -> None:
    if not isinstance(store, SqlKeys):
        return
    own = store.connections.connect()
    own.rollback()
    table = f"paid_{os.getpid()}_{next(_tables)}"
    own.cursor().execute(f"CREATE TABLE {table} (n INTEGER)")
    own.commit()
    keys = Idempotency(store, scope="payments", lease=0.2)

    def pay_late(run: Run) -> None:
        assert keys.once("order-1", lambda _run: "paid by another", wait=5) == "paid by another"
        own.cursor().execute(f"INSERT INTO {table} VALUES (1)")  # on SQLite, whoever writes now has to wait
        run.complete("paid", on=own)

    with pytest.raises(StaleToken):
        keys.once("order-1", pay_late)
    own.rollback()
    own.close()
    assert keys.once("order-1", lambda _run: pytest.fail("it ran again")) == "paid by another"


WORKER = """
import pathlib, sys, time
from leasehold.patterns.idempotency import Idempotency, SqlKeys

keys = Idempotency(SqlKeys(pathlib.Path(sys.argv[1])), scope="s", lease=0.5)
def work(run):
    print("running", run.token, flush=True)
    time.sleep(60)
keys.once("job", work)
"""


def test_a_killed_process_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    store = SqlKeys(path)
    store.create()
    process = subprocess.Popen([sys.executable, "-c", WORKER, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    token = int(process.stdout.readline().split()[1])
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=PATIENT)
    assert Idempotency(store, scope="s").once("job", lambda run: run.token, wait=PATIENT) > token
    store.close()


def test_a_late_failure_does_not_disturb_the_one_who_took_over(store: Store) -> None:
    keys = Idempotency(store, scope="payments", lease=0.2)
    took_over, go_on = threading.Event(), threading.Event()

    def slow(_run: Run) -> str:
        took_over.set()
        for _ in range(400):
            if go_on.wait(0.05):
                return "by the second"
            _run.renew()
        pytest.fail("nobody let it go on")

    def fails_late(_run: Run) -> None:
        time.sleep(0.4)
        running.append(pool.submit(keys.once, "order-1", slow, wait=5))
        assert took_over.wait(20)
        raise Declined

    running = list[Any]()
    with ThreadPoolExecutor(1) as pool:
        with pytest.raises(Declined):
            keys.once("order-1", fails_late)
        with pytest.raises(InProgress):
            keys.once("order-1", lambda _run: pytest.fail("it runs beside the second"))
        go_on.set()
        assert running[0].result(20) == "by the second"
    assert keys.once("order-1", slow) == "by the second"


def test_what_is_wrong_is_refused_at_once(tmp_path: Path) -> None:
    store = SqlKeys(tmp_path / "app.db")
    for settings in (
        {"scope": ""},
        {"scope": "s", "lease": 0},
        {"scope": "s", "lease": 10, "keep": 5},
        {"scope": "s", "on_error": "retry"},
        {"scope": "s", "on_error": {KeyboardInterrupt: "release"}},
        {"scope": "s", "largest_result": 0},
    ):
        with pytest.raises(Misuse):
            Idempotency(store, **settings)
    keys = Idempotency(store, scope="s")
    for key in ("", "a\nb", 7, "x" * 256):
        with pytest.raises(Misuse):
            keys.once(key, lambda _run: None)  # type: ignore[arg-type]
    with pytest.raises(Misuse, match="payload"):
        keys.once("k", lambda _run: None, payload={1, 2})
    for table in ("a b", "x; drop", "", 5):
        with pytest.raises(Misuse):
            SqlKeys(tmp_path / "app.db", table=table)  # type: ignore[arg-type]
    with pytest.raises(Misuse):
        SqlKeys("app.db")  # type: ignore[arg-type]
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        keys.once("k", lambda _run: pytest.fail("it ran without its claim"))


def test_fingerprints_differ_when_payloads_do() -> None:
    payloads = [1, "1", b"1", [1], {"a": 1}, {"a": "1"}, True, 1.5, b'json:"1"']
    assert len({fingerprint_of(payload) for payload in payloads}) == len(payloads)
    assert fingerprint_of(None) == ""
