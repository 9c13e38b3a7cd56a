"""Locks that live and die with a connection: who ends them, who is told, and what is refused."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from typing import cast

import pytest
from tests.engines.driving import eventually
from tests.engines.postgres_help import assert_hidden
from tests.engines.sql_help import fresh_namespace, soon, want
from tests.support.pgbouncer import running_pgbouncer
from tests.support.postgres_server import PostgresServer
from tests.support.programs import stopped

from leasehold import Capability, EngineError, Leasehold, LeaseLost, NotSupported, OutcomeUnknown
from leasehold.core.engine import Busy, Grant, Renewal
from leasehold.core.worlds import run_blocking
from leasehold.engines import postgres_session, sql_session
from leasehold.engines.postgres_session import PostgresSessionFamily, Ready, Settings, key_of
from leasehold.wires.postgres_line import Line
from leasehold.wires.postgres_target import target_from_url
from leasehold.wires.sockets import BlockingSockets
from leasehold.wires.sql_table import Request, Statement

HOLDING = """
import sys
from leasehold import Leasehold
lease = Leasehold(sys.argv[1], namespace=sys.argv[2]).lock("n", ttl=60).acquire()
print(lease.token, flush=True)
sys.stdin.read()
"""


def session(url: str) -> str:
    return url.replace("postgresql", "postgresql+session", 1)


@pytest.fixture
def url(postgres_server: PostgresServer) -> str:
    return session(postgres_server.url)


def holders(server: PostgresServer, namespace: str) -> list[int]:
    """The processes of the server that hold the lock on `n`."""
    key = key_of(namespace, "n")
    query = (
        "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1 "
        "AND ((classid::bigint << 32) | objid::bigint) = %s"
    )
    return [pid for [pid] in server.sql(query, key)]


def test_the_lock_is_the_servers_own(url: str, postgres_server: PostgresServer) -> None:
    """Anybody who looks into pg_locks sees it, and whoever asks for the same key by hand is excluded."""
    namespace = fresh_namespace()
    with Leasehold(url, namespace=namespace) as locks:
        with locks.lock("n"):
            assert len(holders(postgres_server, namespace)) == 1
            assert postgres_server.sql("SELECT pg_try_advisory_lock(%s)", key_of(namespace, "n")) == [(False,)]
        assert holders(postgres_server, namespace) == []


def test_a_holder_whose_session_is_ended_is_told_at_once(url: str, postgres_server: PostgresServer) -> None:
    namespace = fresh_namespace()
    with Leasehold(url, namespace=namespace) as locks, Leasehold(url, namespace=namespace) as others:
        lease = locks.lock("n", ttl=60).acquire()
        [pid] = holders(postgres_server, namespace)
        postgres_server.terminate(pid)
        assert lease.wait_lost(10.0), "long before its TTL"
        with pytest.raises(LeaseLost):
            lease.release()
        assert others.lock("n", wait=5).acquire().token > lease.token


def test_the_lock_of_a_killed_process_is_free_at_once(url: str, postgres_server: PostgresServer) -> None:
    namespace = fresh_namespace()
    command = [sys.executable, "-c", HOLDING, url, namespace]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        token = int(process.stdout.readline())
        os.kill(process.pid, signal.SIGKILL)
        process.wait(10)
    with Leasehold(url, namespace=namespace) as locks, locks.lock("n", wait=10) as lease:
        assert lease.token > token


def test_the_server_ends_a_session_that_is_silent_for_a_ttl(url: str, postgres_server: PostgresServer) -> None:
    """Nothing else would free the lock of a host that vanished."""
    namespace = fresh_namespace()
    command = [sys.executable, "-c", HOLDING.replace("ttl=60", "ttl=1.5"), url, namespace]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        token = int(process.stdout.readline())
        time.sleep(2.5)
        assert len(holders(postgres_server, namespace)) == 1, "it is renewed"
        os.kill(process.pid, signal.SIGSTOP)
        try:
            with Leasehold(url, namespace=namespace) as locks, locks.lock("n", wait=20) as lease:
                assert lease.token > token
        finally:
            process.kill()


def test_the_server_ends_a_silent_session_also_after_a_wait_in_vain(url: str, postgres_server: PostgresServer) -> None:
    """It may have got the lock just as its time ran out, and whoever would close it stands still."""
    namespace = fresh_namespace()
    waiting = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    command = [sys.executable, "-c", HOLDING.replace("ttl=60", "ttl=1.5, wait=2"), url, namespace]
    with (
        Leasehold(url, namespace=namespace) as locks,
        locks.lock("n", ttl=60),
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process,
    ):
        try:
            eventually(lambda: bool(postgres_server.sql(waiting)), within=30.0)
            [[pid]] = postgres_server.sql(waiting)
            os.kill(process.pid, signal.SIGSTOP)
            ended = "SELECT 1 FROM pg_stat_activity WHERE pid = %s"
            eventually(lambda: not postgres_server.sql(ended, pid), within=20.0)
        finally:
            process.kill()


def test_the_server_hands_it_to_who_waits(url: str, postgres_server: PostgresServer) -> None:
    namespace = fresh_namespace()
    with Leasehold(url, namespace=namespace, label="waiting") as locks:
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


def test_a_lost_connection_is_told_of_while_the_answer_of_another_is_awaited(
    url: str, postgres_server: PostgresServer
) -> None:
    """Heartbeats go out together, and their answers are fetched one after the other."""
    a, b = "a" * 32, "b" * 32
    family = PostgresSessionFamily(target_from_url(url), fresh_namespace(), "test")

    async def lose_one() -> None:
        engine, told = family.asyncio(), list[str]()
        engine.when_lost(told.append)
        leases = []
        for name, holder in (("one", a), ("two", b)):
            grant = await engine.take(want(name, holder, ttl=60.0), until=soon(engine))
            assert isinstance(grant, Grant)
            leases.append(Renewal(name, holder, grant.token, 60.0))
        pins = [pin for pin in map(family.pins.get, (a, b)) if pin]
        with stopped(pins[0].pid):
            with stopped(pins[1].pid):
                renewing = asyncio.create_task(engine.renew(leases, until=soon(engine, 40.0)))
                await asyncio.to_thread(eventually, lambda: all(pin.posted for pin in pins))
                assert postgres_server.sql("SELECT pg_terminate_backend(%s)", pins[1].pid) == [(True,)]
            await asyncio.to_thread(eventually, lambda: bool(told), within=20.0)
            assert told == [b]
            assert not renewing.done()
        assert await renewing == [True, False]
        assert await engine.release("one", a, until=soon(engine))
        await engine.close()

    asyncio.run(lose_one())


def test_a_heartbeat_for_a_shorter_ttl_does_not_prove_a_longer_one(url: str) -> None:
    """Two who renew at once share an answer only if the server keeps the connection for as long as both ask."""
    family = PostgresSessionFamily(target_from_url(url), fresh_namespace(), "test")
    engine, limit = family.blocking(), Request(Statement("SELECT current_setting('idle_session_timeout')", "limit"))
    grant = run_blocking(engine.take(want("n", "a" * 32, ttl=20.0), until=soon(engine)))
    assert isinstance(grant, Grant)
    pin = family.pins.get("a" * 32)
    assert pin is not None
    began_at = engine.world.now()
    for ttl, idle_limit in ((20.0, "20s"), (60.0, "1min"), (20.0, "1min")):
        lease = Renewal("n", "a" * 32, grant.token, ttl)
        assert run_blocking(engine._keep(lease, began_at, soon(engine))) is True
        assert pin.proved.ttl >= ttl
        assert run_blocking(pin.line.ask(limit, soon(engine))) == [(idle_limit,)]
    assert run_blocking(engine.release("n", "a" * 32, until=soon(engine)))
    run_blocking(engine.close())


def test_a_renewal_that_waited_for_a_release_asks_nothing_on_the_connection_of_another(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = PostgresSessionFamily(target_from_url(url), fresh_namespace(), "test")
    engine = family.blocking()
    grant = run_blocking(engine.take(want("n", "a" * 32), until=soon(engine)))
    assert isinstance(grant, Grant)
    [pin] = family.pins.all
    assert run_blocking(pin.claim(BlockingSockets(), soon(engine)))  # as a release does
    answers: list[list[bool | None]] = []
    renewal = Renewal("n", "a" * 32, grant.token, 30.0)
    posted: list[Request] = []
    monkeypatch.setattr(Line, "post", lambda _line, request: posted.append(request))
    renews = threading.Thread(target=lambda: answers.append(run_blocking(engine.renew([renewal], until=soon(engine)))))
    renews.start()
    time.sleep(0.01)
    assert run_blocking(engine._unlock(pin, soon(engine)))
    family.pins.unpin(pin, clean=True)
    assert isinstance(run_blocking(engine.take(want("m", "b" * 32), until=soon(engine))), Grant)
    [other] = family.pins.all
    assert other.line is pin.line
    pin.free()
    renews.join(10)
    assert answers == [[False]]
    assert posted == []
    assert run_blocking(engine.release("m", "b" * 32, until=soon(engine))) is True
    run_blocking(engine.close())


def test_a_connection_that_does_not_answer_is_not_asked_again_and_again(url: str) -> None:
    """The lock came while its holder waited, and then its connection was silent for a TTL: a new one finds out more."""
    a, b = "a" * 32, "b" * 32
    family = PostgresSessionFamily(target_from_url(url), fresh_namespace(), "test")
    engine = family.blocking()
    assert isinstance(run_blocking(engine.take(want("n", a), until=soon(engine))), Grant)
    waiter = threading.Thread(target=lambda: run_blocking(engine.wait(want("n", b, ttl=6.0), soon(engine, 30.0))))
    waiter.start()
    eventually(lambda: bool((status := run_blocking(engine.status("n", until=soon(engine)))) and status.waiters))
    run_blocking(engine.release("n", a, until=soon(engine)))
    waiter.join(30)
    pin = family.pins.get(b)
    assert pin is not None
    assert isinstance(run_blocking(engine.take(want("n", b, ttl=6.0), until=soon(engine))), Grant)

    def is_busy() -> bool:
        with contextlib.suppress(OutcomeUnknown):
            return isinstance(run_blocking(engine.take(want("n", b, ttl=6.0), until=soon(engine, 0.5))), Busy)
        return False

    with stopped(pin.pid):
        with pytest.raises(OutcomeUnknown):
            run_blocking(engine.take(want("n", b, ttl=6.0), until=soon(engine, 1.0)))
        eventually(is_busy, within=40.0)
    eventually(lambda: isinstance(run_blocking(engine.take(want("n", b), until=soon(engine))), Grant))
    assert run_blocking(engine.release("n", b, until=soon(engine)))
    run_blocking(engine.close())


def test_who_gives_back_what_the_servers_timer_has_just_ended_is_told(url: str) -> None:
    """Its request was on its way already, and the server says why it did not read it: that is no lost answer."""
    family = PostgresSessionFamily(target_from_url(url), fresh_namespace(), "test")
    engine, holder, held = family.blocking(), "a" * 32, list[bool]()
    assert isinstance(run_blocking(engine.take(want("n", holder, ttl=0.5), until=soon(engine))), Grant)
    pin = family.pins.get(holder)
    assert pin is not None
    with stopped(pin.pid):
        giving_back = threading.Thread(
            target=lambda: held.append(run_blocking(engine.release("n", holder, until=soon(engine, 30.0))))
        )
        giving_back.start()
        time.sleep(1.0)
        assert giving_back.is_alive()
    giving_back.join(30)
    assert held == [False]
    assert isinstance(run_blocking(engine.take(want("n", "b" * 32), until=soon(engine))), Grant)
    assert run_blocking(engine.release("n", "b" * 32, until=soon(engine)))
    run_blocking(engine.close())


@pytest.mark.parametrize("ttl", [300.0, 1.0])
def test_what_a_short_wait_has_brought_is_a_lease_since_the_wait_began(url: str, ttl: float) -> None:
    """After a long one the server is asked, for its own timer may be about to end the connection."""
    family = PostgresSessionFamily(target_from_url(url), fresh_namespace(), "test")
    engine, other, holder = family.blocking(), "b" * 32, "a" * 32
    assert isinstance(run_blocking(engine.take(want("n", other), until=soon(engine))), Grant)
    giving_back = threading.Timer(0.2, lambda: run_blocking(engine.release("n", other, until=soon(engine))))
    giving_back.start()
    began = engine.world.now()
    handed = run_blocking(engine.wait(want("n", holder, ttl=ttl), soon(engine, 30.0)))
    giving_back.join()
    pin = family.pins.get(holder)
    assert pin is not None
    if ttl == 300.0:
        assert handed is not None
        assert handed.token == pin.token
        assert handed.since == pytest.approx(began, abs=0.05)
    else:
        assert handed is None
    assert run_blocking(engine.take(want("n", holder, ttl=ttl), until=soon(engine))) == Grant(pin.token)
    assert pin.proved.sent_at > began
    assert run_blocking(engine.release("n", holder, until=soon(engine)))
    run_blocking(engine.close())


def test_two_names_of_one_key_are_refused_and_not_confused(postgres_server: PostgresServer) -> None:
    target = target_from_url(session(postgres_server.url))
    # Not the same number each time that this is run, for a name that was locked keeps its row.
    key = key_of(fresh_namespace(), "any")
    family = PostgresSessionFamily(target, fresh_namespace(), "test", key_of=lambda _namespace, _name: key)
    engine = family.blocking()
    assert isinstance(run_blocking(engine.take(want("one", "a" * 32), until=soon(engine))), Grant)
    for held in (True, False):
        with pytest.raises(EngineError, match=r"'two' and 'one' .* have the same key .* rename one of them"):
            run_blocking(engine.take(want("two", "b" * 32), until=soon(engine)))
        if held:
            assert run_blocking(engine.release("one", "a" * 32, until=soon(engine)))
    assert isinstance(run_blocking(engine.take(want("one", "c" * 32), until=soon(engine))), Grant)
    assert isinstance(run_blocking(engine.take(want("one", "d" * 32), until=soon(engine))), Busy)
    run_blocking(engine.release("one", "c" * 32, until=soon(engine)))
    run_blocking(engine.close())


def test_keys_are_those_of_a_strong_hash() -> None:
    """The same on every machine and in every process, and names do not run into namespaces."""
    assert key_of("", "nightly-export") == key_of("", "nightly-export")
    assert len({key_of("a", "b:c"), key_of("a:b", "c"), key_of("", "a:b:c"), key_of("1:a", "b")}) == 4
    assert all(-(2**63) <= key_of("", str(number)) < 2**63 for number in range(1000))
    assert min(key_of("", str(number)) for number in range(1000)) < 0


def test_a_pooler_in_transaction_mode_is_refused(postgres_server: PostgresServer) -> None:
    """Through it, nobody would be excluded."""
    with running_pgbouncer(postgres_server, "transaction") as pooled:
        family = PostgresSessionFamily(target_from_url(session(pooled)), "", "test")
        engine = family.blocking()
        with pytest.raises(EngineError, match=r"a pooler stands before .*nobody .* excluded.*pooler=session") as told:
            run_blocking(engine.take(want("n", "h"), until=soon(engine)))
        assert_hidden(told.value)


def test_a_pooler_in_session_mode_is_taken_at_its_word(postgres_server: PostgresServer) -> None:
    namespace = fresh_namespace()
    with (
        running_pgbouncer(postgres_server, "session") as pooled,
        Leasehold(f"{session(pooled)}?pooler=session", namespace=namespace) as locks,
        Leasehold(session(postgres_server.url), namespace=namespace) as others,
    ):
        with locks.lock("n", ttl=2):
            time.sleep(2.5)
            assert others.lock("n", wait=0).try_acquire() is None
        others.lock("n", wait=5).acquire().release()


def test_what_sessions_cannot_do_is_refused(url: str) -> None:
    with Leasehold(url) as locks:
        assert Capability.OUTLIVES_CONNECTION not in locks.facts.capabilities
        with pytest.raises(NotSupported):
            locks.shared("n").acquire()


def test_nothing_is_left_behind(url: str, postgres_server: PostgresServer) -> None:
    with Leasehold(url, namespace=fresh_namespace(), label="leftover") as locks:
        for _ in range(3):
            with locks.lock("n"):
                assert locks.lock("n", wait=0.2).try_acquire() is None
        assert postgres_server.backends("leasehold:leftover%")
    eventually(lambda: not postgres_server.backends("leasehold:leftover%"))


def test_who_was_refused_waits_by_one_request_more(
    url: str, postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the wait needs was set by the request that was refused."""
    first, second = (PostgresSessionFamily(target_from_url(url), "one more", "test").blocking() for _ in range(2))
    holding, waiting = want("n", "a" * 32), want("n", "b" * 32, ttl=20.0)
    run_blocking(first.take(holding, until=soon(first)))
    assert isinstance(run_blocking(second.take(waiting, until=soon(second), patience=5.0)), Busy)
    asked: list[str] = []
    ask = Line.ask

    async def noting(line: Line, request: Request, until: float, *, commits: bool = True) -> list[tuple[object, ...]]:
        asked.append(request.statement.name)
        return await ask(line, request, until, commits=commits)

    monkeypatch.setattr(Line, "ask", noting)
    monkeypatch.delattr(Line, "ask_all")
    thread = threading.Thread(target=lambda: run_blocking(second.wait(waiting, soon(second, 4.85))))
    thread.start()
    key = key_of("one more", "n")
    waits = f"SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND objid = {key & 0xFFFFFFFF}"
    eventually(lambda: bool(postgres_server.sql(waits)))
    [[name]] = postgres_server.sql(f"SELECT application_name FROM pg_stat_activity WHERE pid IN ({waits})")
    assert name == waiting.about[:63]
    assert run_blocking(first.release("n", holding.holder, until=soon(first))) is True
    thread.join(10)
    assert asked == ["leasehold_lock", "leasehold_unlock"]
    assert isinstance(run_blocking(second.take(waiting, until=soon(second), patience=5.0)), Grant)
    assert run_blocking(second.release("n", waiting.holder, until=soon(second))) is True
    for engine in (first, second):
        run_blocking(engine.close())


@pytest.mark.parametrize("heard_lately", [60.0, 0.0])
def test_who_had_to_wait_queues_at_once_from_then_on(
    url: str, monkeypatch: pytest.MonkeyPatch, heard_lately: float
) -> None:
    """A change of holders is one request of each; more only on a connection that has not been heard of lately."""
    for module in (postgres_session, sql_session):
        monkeypatch.setattr(module, "HEARD_LATELY", heard_lately)
    for allowed in ("EARLIER_MS", "MOST_EARLIER_MS"):  # on a busy machine more of the time is gone than usual
        monkeypatch.setattr(postgres_session, allowed, 2000)
    namespace = fresh_namespace()
    first, second = (PostgresSessionFamily(target_from_url(url), namespace, "test").blocking() for _ in range(2))
    asked: list[str] = []
    ask = Line.ask

    async def noting(line: Line, request: Request, until: float, *, commits: bool = True) -> list[tuple[object, ...]]:
        if line in second._pins._open:
            asked.append(request.statement.name.removeprefix("leasehold_"))
        return await ask(line, request, until, commits=commits)

    monkeypatch.setattr(Line, "ask", noting)
    tokens = [0]
    for turn in range(3):
        mine = want("n", f"{turn:032x}")
        theirs = want("n", f"{turn + 100:032x}")._replace(about="they@here:1")
        grant = run_blocking(first.take(mine, until=soon(first)))
        assert isinstance(grant, Grant)
        asked.clear()
        assert isinstance(run_blocking(second.take(theirs, until=soon(second), patience=5.15)), Busy)
        timer = threading.Timer(0.05, run_blocking, [first.release("n", mine.holder, until=soon(first, 20.0))])
        timer.start()
        run_blocking(second.wait(theirs, soon(second, 5.0)))
        handed = run_blocking(second.take(theirs, until=soon(second), patience=5.15))
        timer.join()
        assert isinstance(handed, Grant)
        tokens += [grant.token, handed.token]
        assert run_blocking(second.release("n", theirs.holder, until=soon(second))) is True
        if heard_lately:
            assert asked == (["lock", "unlock_only"] if turn else ["try_first", "lock", "unlock_only"])
        else:
            assert asked == ["try_first", "patience", "lock", "unlock_only"]
    assert tokens == sorted(set(tokens))
    assert isinstance(run_blocking(second.take(want("n", "f" * 32), until=soon(second))), Grant), "who cannot wait asks"
    for engine in (first, second):
        run_blocking(engine.close())


def test_a_connection_that_the_server_may_end_any_moment_is_not_used_again(url: str) -> None:
    """Where somebody has waited, the server's timer stays on, for the next wait."""
    family = PostgresSessionFamily(target_from_url(url), fresh_namespace(), "test")
    engine = family.blocking()
    now = engine.world.now()
    run_blocking(engine.take(want("n", "a" * 32), until=soon(engine)))
    [pin] = family.pins.all
    assert run_blocking(engine.release("n", "a" * 32, until=soon(engine))) is True
    line = cast(Line, pin.line)
    assert family._is_fit(line, now + 3600), "its timer is off"
    line.is_set_for = Ready(Settings(5000, "me", "2000"), now)
    assert family._is_fit(line, now + 1.4)
    assert not family._is_fit(line, now + 1.6)
    run_blocking(engine.close())


def test_a_heartbeat_for_another_ttl_unsets_what_was_set_for_a_wait(url: str) -> None:
    """Else a session would wait under the limit for silence of an earlier lease."""
    family = PostgresSessionFamily(target_from_url(url), fresh_namespace(), "test")
    engine = family.blocking()
    grant = run_blocking(engine.take(want("n", "a" * 32, ttl=10.0), until=soon(engine)))
    assert isinstance(grant, Grant)
    [pin] = family.pins.all
    line = cast(Line, pin.line)
    for ttl, stays in ((10.0, True), (20.0, False)):
        line.is_set_for = Ready(Settings(5000, "me", "10000"), engine.world.now())
        renewal = Renewal("n", "a" * 32, grant.token, ttl)
        assert run_blocking(engine.renew([renewal], until=soon(engine))) == [True]
        assert (line.is_set_for is not None) is stays
    assert run_blocking(engine.release("n", "a" * 32, until=soon(engine))) is True
    run_blocking(engine.close())


def test_settings_of_another_wait_do_not_do() -> None:
    needed = Settings(5000, "me", "30000")
    assert Settings(5000, "me", "30000").suffice(needed)
    assert Settings(4990, "me", "30000").suffice(needed), "the server gives up a little sooner"
    for other in (
        Settings(5001, "me", "30000"),
        Settings(4000, "me", "30000"),
        Settings(5000, "you", "30000"),
        Settings(5000, "me", "31000"),
    ):
        assert not other.suffice(needed)
