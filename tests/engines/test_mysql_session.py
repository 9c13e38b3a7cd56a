"""Named locks that live and die with a connection: who ends them, who is told, and what is forgotten."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from tests.engines.driving import eventually
from tests.engines.sql_help import fresh_namespace, soon, want
from tests.support.mariadb_server import MariadbServer

from leasehold import Capability, Leasehold, LeaseLost, NotAcquired, NotSupported
from leasehold.core.engine import Busy, Grant
from leasehold.core.worlds import run_blocking
from leasehold.engines import mysql_session, sql_session
from leasehold.engines.mysql_session import MysqlSessionFamily, key_of
from leasehold.engines.sql_session import STAYS_BUSY
from leasehold.wires.mysql_target import target_from_url
from leasehold.wires.sql_table import Request

HOLDING = """
import sys
from leasehold import Leasehold
lease = Leasehold(sys.argv[1], namespace=sys.argv[2]).lock("n", ttl=60).acquire()
print(lease.token, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def url(mariadb_server: MariadbServer) -> str:
    return mariadb_server.url.replace("://", "+session://", 1)


def holder(server: MariadbServer, namespace: str) -> int | None:
    """The connection that holds the lock on `n`."""
    [[number]] = server.sql("SELECT IS_USED_LOCK(%s)", key_of(namespace, "n"))
    return None if number is None else int(number)


def test_the_lock_is_the_servers_own(url: str, mariadb_server: MariadbServer) -> None:
    """Anybody who asks IS_USED_LOCK sees it, and whoever asks for it by hand is excluded."""
    namespace = fresh_namespace()
    with Leasehold(url, namespace=namespace) as locks:
        with locks.lock("n"):
            assert holder(mariadb_server, namespace) is not None
            assert mariadb_server.sql("SELECT GET_LOCK(%s, 0)", key_of(namespace, "n")) == [(0,)]
        assert holder(mariadb_server, namespace) is None


async def _not_needed(*_: object) -> None:
    raise AssertionError("the long way was taken")


def test_a_lock_is_taken_again_in_one_statement_and_once(
    url: str, mariadb_server: MariadbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server counts how often a connection takes a lock: one release would not free what was taken twice.

    MySQL takes the long way, and is not asked for the short one for ever.
    """
    namespace, tokens = fresh_namespace(), [0]
    engine = MysqlSessionFamily(target_from_url(url), namespace, "test").blocking()
    for turn in range(12):
        grant = run_blocking(engine.take(want("n", f"{turn:032x}"), until=soon(engine)))
        assert isinstance(grant, Grant)
        tokens.append(grant.token)
        assert holder(mariadb_server, namespace) is not None
        assert run_blocking(engine.release("n", f"{turn:032x}", until=soon(engine))) is True
        assert holder(mariadb_server, namespace) is None
        if mariadb_server.engine == "mariadb":
            monkeypatch.setattr(engine, "_lock", _not_needed)
    assert tokens == sorted(set(tokens))
    assert (engine._short_tries == 0) == (mariadb_server.engine == "mysql")
    run_blocking(engine.close())


def test_a_connection_that_the_server_may_end_any_moment_is_not_used_again(
    url: str, mariadb_server: MariadbServer
) -> None:
    namespace = fresh_namespace()
    engine = MysqlSessionFamily(target_from_url(url), namespace, "test").blocking()
    numbers = []
    for turn, pause in enumerate((0.0, 0.6, 1.5)):
        time.sleep(pause)
        one = want("n", f"{turn:032x}", ttl=1.0)
        assert isinstance(run_blocking(engine.take(one, until=soon(engine))), Grant)
        numbers.append(holder(mariadb_server, namespace))
        assert run_blocking(engine.release("n", one.holder, until=soon(engine))) is True
    assert len(set(numbers)) == 3
    run_blocking(engine.close())


def test_who_finds_a_busy_name_queues_for_it_at_once_from_then_on(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (mysql_session, sql_session):
        monkeypatch.setattr(module, "HEARD_LATELY", 60.0)  # or a busy machine may be slower than that
    namespace = fresh_namespace()
    first, second = (MysqlSessionFamily(target_from_url(url), namespace, "test").blocking() for _ in range(2))
    tokens = [0]
    for turn in range(4):
        mine, theirs = want("n", f"{turn:032x}"), want("n", f"{turn + 100:032x}")
        grant = run_blocking(first.take(mine, until=soon(first)))
        assert isinstance(grant, Grant)
        assert isinstance(run_blocking(second.take(theirs, until=soon(second), patience=20.0)), Busy)
        timer = threading.Timer(0.05, run_blocking, [first.release("n", mine.holder, until=soon(first, 20.0))])
        timer.start()
        run_blocking(second.wait(theirs, soon(second, 20.0)))
        handed = run_blocking(second.take(theirs, until=soon(second), patience=20.0))
        timer.join()
        assert isinstance(handed, Grant)
        tokens += [grant.token, handed.token]
        assert run_blocking(second.release("n", theirs.holder, until=soon(second))) is True
    assert tokens == sorted(set(tokens))
    assert second._busy["n"] < STAYS_BUSY, "it did not ask each time"
    assert isinstance(run_blocking(second.take(want("n", "f" * 32), until=soon(second))), Grant), "who cannot wait asks"
    for engine in (first, second):
        run_blocking(engine.close())


def test_a_wait_that_was_interrupted_brings_nothing(
    url: str, mariadb_server: MariadbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What mints the token goes out with the wait, so the server carries it out however the wait has ended."""
    for module in (mysql_session, sql_session):
        monkeypatch.setattr(module, "HEARD_LATELY", 60.0)  # or a busy machine may be slower than that
    namespace = fresh_namespace()
    first, second = (MysqlSessionFamily(target_from_url(url), namespace, "test").blocking() for _ in range(2))
    for turn in range(3):  # the third time what mints is prepared
        mine, theirs = want("n", f"{turn:032x}"), want("n", f"{turn + 100:032x}")
        assert isinstance(run_blocking(first.take(mine, until=soon(first))), Grant)
        assert isinstance(run_blocking(second.take(theirs, until=soon(second), patience=20.0)), Busy)
        timer = threading.Timer(0.05, run_blocking, [first.release("n", mine.holder, until=soon(first, 20.0))])
        timer.start()
        assert run_blocking(second.wait(theirs, soon(second, 20.0))) is not None
        timer.join()
        assert run_blocking(second.release("n", theirs.holder, until=soon(second))) is True
    mine, theirs = want("n", "mine"), want("n", "theirs")
    grant = run_blocking(first.take(mine, until=soon(first)))
    assert isinstance(grant, Grant)

    def interrupt() -> None:
        waits = "SELECT id FROM information_schema.processlist WHERE state = 'User lock'"
        eventually(lambda: mariadb_server.sql(waits) != [])
        mariadb_server.sql(f"KILL QUERY {mariadb_server.sql(waits)[0][0]}")

    timer = threading.Timer(0.0, interrupt)
    timer.start()
    assert run_blocking(second.wait(theirs, soon(second, 20.0))) is None
    timer.join()
    status = run_blocking(second.status("n", until=soon(second)))
    assert status is not None
    assert (status.token, [one.token for one in status.holders]) == (grant.token, [grant.token])
    assert run_blocking(first.release("n", mine.holder, until=soon(first))) is True
    for engine in (first, second):
        run_blocking(engine.close())


def test_only_the_session_that_took_a_lock_gives_it_back(url: str, mariadb_server: MariadbServer) -> None:
    """A proxy may have put another session in its place, whose word for it counts for nothing."""
    namespace = fresh_namespace()
    engine = MysqlSessionFamily(target_from_url(url), namespace, "test").blocking()
    one = want("n", "one")
    assert isinstance(run_blocking(engine.take(one, until=soon(engine))), Grant)
    pin, number = engine._pins.get("one"), holder(mariadb_server, namespace)
    assert pin is not None
    assert number is not None
    unlock = engine._statements["unlock"]
    for _ in range(3):  # also when it is prepared
        [[found, _]] = run_blocking(pin.line.ask(Request(unlock, (pin.key, number + 1)), soon(engine)))
        assert (found, holder(mariadb_server, namespace)) == (0, number)
    with pytest.raises(ValueError, match="given back once"):
        engine._was_held(pin, [(2, 0)])
    assert run_blocking(engine.release("n", "one", until=soon(engine))) is True
    assert holder(mariadb_server, namespace) is None
    run_blocking(engine.close())


def test_a_holder_whose_connection_is_killed_is_told_at_once(url: str, mariadb_server: MariadbServer) -> None:
    namespace = fresh_namespace()
    with Leasehold(url, namespace=namespace) as locks, Leasehold(url, namespace=namespace) as others:
        lease = locks.lock("n", ttl=60).acquire()
        mariadb_server.sql(f"KILL {holder(mariadb_server, namespace)}")
        assert lease.wait_lost(10.0), "long before its TTL"
        with pytest.raises(LeaseLost):
            lease.release()
        with others.lock("n", wait=5) as next_one:
            assert next_one.token > lease.token


def test_who_stops_waiting_ends_nobody_elses_connection(url: str, mariadb_server: MariadbServer) -> None:
    """A server that was restarted since gives the number of a waiter's old connection to somebody else."""
    namespace = fresh_namespace()
    waiter, theirs = MysqlSessionFamily(target_from_url(url), namespace, "test"), want("n", "waiter")
    with Leasehold(url, namespace=namespace) as locks, locks.lock("n", ttl=60) as lease:
        number = holder(mariadb_server, namespace)
        assert number is not None
        waiter.waiting[theirs.holder] = number
        engine = waiter.blocking()
        assert run_blocking(engine.release("n", theirs.holder, until=soon(engine))) is False
        assert waiter.waiting == {}
        run_blocking(engine.close())
        lease.extend()
        assert holder(mariadb_server, namespace) == number


def test_who_stops_waiting_leaves_the_servers_queue(url: str, mariadb_server: MariadbServer) -> None:
    namespace = fresh_namespace()
    with Leasehold(url, namespace=namespace) as locks, Leasehold(url, namespace=namespace) as others:
        with locks.lock("n", ttl=60):
            assert others.lock("n", wait=0.3).try_acquire() is None
            with pytest.raises(NotAcquired):
                others.lock("n", wait=0.3).acquire()
            status = locks.status("n")
            assert status is not None
            eventually(lambda: locks.status("n").waiters == ())  # type: ignore[union-attr]
        assert holder(mariadb_server, namespace) is None


def test_the_lock_of_a_killed_process_is_free_at_once(url: str) -> None:
    namespace = fresh_namespace()
    command = [sys.executable, "-c", HOLDING, url, namespace]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        token = int(process.stdout.readline())
        os.kill(process.pid, signal.SIGKILL)
        process.wait(10)
    with Leasehold(url, namespace=namespace) as locks, locks.lock("n", wait=10) as lease:
        assert lease.token > token


def test_the_server_ends_a_connection_that_is_silent_for_a_ttl(url: str, mariadb_server: MariadbServer) -> None:
    """Nothing else would free the lock of a host that vanished."""
    namespace = fresh_namespace()
    command = [sys.executable, "-c", HOLDING.replace("ttl=60", "ttl=2"), url, namespace]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        token = int(process.stdout.readline())
        time.sleep(3)
        assert holder(mariadb_server, namespace) is not None, "it is renewed"
        os.kill(process.pid, signal.SIGSTOP)
        try:
            with Leasehold(url, namespace=namespace) as locks, locks.lock("n", wait=20) as lease:
                assert lease.token > token
        finally:
            process.kill()


def test_the_server_hands_it_to_who_waits(url: str) -> None:
    with Leasehold(url, namespace=fresh_namespace(), label="waiting") as locks:
        got: list[int] = []

        def take() -> None:
            with locks.lock("n", wait=20) as lease:
                got.append(lease.token)

        with locks.lock("n") as lease:
            waiter = threading.Thread(target=take)
            waiter.start()
            eventually(lambda: bool((status := locks.status("n")) and status.waiters))
            status = locks.status("n")
            assert status is not None
            assert status.waiters[0].about.startswith("waiting@")
        waiter.join(20)
        assert got[0] > lease.token


def test_a_release_by_force_ends_the_holders_connection(url: str, mariadb_server: MariadbServer) -> None:
    namespace = fresh_namespace()
    with Leasehold(url, namespace=namespace) as locks:
        lease = locks.lock("n", ttl=60).acquire()
        assert locks.force_release("n", because="test") > lease.token
        assert holder(mariadb_server, namespace) is None
        assert lease.wait_lost(10.0)


def test_names_that_nobody_uses_are_forgotten_and_their_tokens_do_not_fall(
    url: str, mariadb_server: MariadbServer
) -> None:
    namespace = fresh_namespace()
    engine = MysqlSessionFamily(target_from_url(url), namespace, "test").blocking()
    tokens = {}
    for name in ("idle", "held", "fresh"):
        grant = run_blocking(engine.take(want(name, name * 8), until=soon(engine)))
        assert isinstance(grant, Grant)
        tokens[name] = grant.token
        if name != "held":
            assert run_blocking(engine.release(name, name * 8, until=soon(engine)))
    far_ahead = tokens["idle"] + 10**12
    mariadb_server.sql("UPDATE leasehold.leasehold_session SET token = %s WHERE name = 'idle'", far_ahead)
    mariadb_server.sql("UPDATE leasehold.leasehold_session SET since = 0 WHERE name <> 'fresh'")
    run_blocking(engine._sweep(soon(engine)))
    kept = mariadb_server.sql("SELECT name FROM leasehold.leasehold_session WHERE namespace = %s", namespace)
    assert sorted(kept) == [(b"fresh",), (b"held",)]
    grant = run_blocking(engine.take(want("idle", "again" * 8), until=soon(engine)))
    assert isinstance(grant, Grant)
    assert grant.token > far_ahead, "also when clocks are behind the last token"
    for name, who in (("idle", "again"), ("held", "held")):
        run_blocking(engine.release(name, who * 8, until=soon(engine)))
    run_blocking(engine.close())


def test_the_names_of_locks_are_short_and_told_apart() -> None:
    """The same on every machine, within 64 characters, the same in any case, and not running into each other."""
    keys = {key_of("a", "b:c"), key_of("a:b", "c"), key_of("", "a:b:c"), key_of("1:a", "b"), key_of("", "A:b:c")}
    assert len(keys) == 5
    assert all(len(key) == 64 and key == key.lower() for key in keys)


def test_what_a_lock_of_the_server_cannot_do_is_not_declared(url: str) -> None:
    with Leasehold(url) as locks:
        assert Capability.SHARED not in locks.facts.capabilities
        with pytest.raises(NotSupported):
            locks.shared("n").acquire()
