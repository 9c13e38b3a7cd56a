"""The Redis engine and what real servers do to it: restart, forget, hang, run out of memory, refuse."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.engines.redis_help import ENGINES, WORLDS, Caller, calling, family_at, fresh_name, want
from tests.support.redis_server import RedisServer, running

from leasehold.core.engine import Busy, Grant, Renewal
from leasehold.core.table import PROMPT
from leasehold.engines.redis_keys import keys_of
from leasehold.errors import EngineError, EngineUnavailable, OutcomeUnknown
from leasehold.testing.ports import free_port


@pytest.fixture(scope="module", params=ENGINES)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    folder = tmp_path_factory.mktemp(request.param)
    with running(RedisServer(request.param, folder, "--appendonly", "yes")) as server:
        yield server


@pytest.fixture(params=WORLDS)
def engine(request: pytest.FixtureRequest, server: RedisServer) -> Iterator[Caller]:
    with calling(family_at(server.url), request.param) as caller:
        yield caller


def waiting_keys(server: RedisServer, name: str) -> list[str]:
    """The keys of a name's queue that are there."""
    return [key for key in keys_of("", name)[3:] if server.ask("EXISTS", key)]


def test_a_request_that_is_carried_out_twice_gives_the_same_token_and_starts_the_ttl_anew(engine: Caller) -> None:
    mine = want(fresh_name(), ttl=2.0)
    first = engine.take(mine)
    time.sleep(0.3)
    assert engine.take(mine) == first
    (holder,) = engine.status(mine.name).holders
    assert holder.token == first.token
    assert holder.expires_in > 1.8
    assert holder.held_for >= 0.3


def test_only_the_holder_can_release_and_renew(engine: Caller) -> None:
    mine, other = want(fresh_name()), want("x")
    token = engine.take(mine).token
    assert engine.release(mine.name, other.holder) is False
    assert engine.renew([Renewal(mine.name, other.holder, token, 10.0)]) == [False]
    assert engine.renew([Renewal(mine.name, mine.holder, token - 1, 10.0)]) == [False]
    assert engine.renew([Renewal(mine.name, mine.holder, token, 10.0)]) == [True]
    assert engine.release(mine.name, mine.holder) is True
    assert engine.release(mine.name, mine.holder) is False


def test_tokens_increase_over_release_expiry_and_force(engine: Caller) -> None:
    name, tokens = fresh_name(), []
    for _ in range(3):
        mine = want(name, ttl=0.05)
        tokens.append(engine.take(mine).token)
        engine.release(name, mine.holder)
        tokens.append(engine.take(want(name, ttl=0.05)).token)
        tokens.append(engine.force_release(name))
        engine.take(want(name, ttl=0.05))
        time.sleep(0.06)
    assert tokens == sorted(set(tokens))


def test_every_key_of_a_lock_ends_by_itself(engine: Caller, server: RedisServer) -> None:
    name = fresh_name()
    engine.take(want(name, ttl=30.0))
    engine.take(want(name), patience=5.0)
    engine.take(want("readers-" + name, mode="shared"))
    keys = [key for one in (name, "readers-" + name) for key in keys_of("", one) if server.ask("EXISTS", key)]
    assert {key[-1] for key in keys} == set("lsequw")
    day = 24 * 3600 * 1000
    for key in keys:
        left = server.ask("PTTL", key)
        assert 0 < left < 4 * day, key
    engine.force_release(name)
    assert day - 60_000 < server.ask("PTTL", keys_of("", name)[0]) <= day


@pytest.mark.parametrize("forget", ["SCRIPT FLUSH", "restart"])
def test_scripts_are_brought_along_when_the_server_does_not_know_them(
    engine: Caller, server: RedisServer, forget: str
) -> None:
    held = want(fresh_name())
    waiting = want(held.name)
    token = engine.take(held).token

    def make_it_forget() -> None:
        if forget == "restart":
            server.restart()
        else:
            server.ask(*forget.split())
        engine.pause(0.01)

    make_it_forget()
    assert engine.renew([Renewal(held.name, held.holder, token, 9.0)] * 3) == [True] * 3
    make_it_forget()
    assert engine.status(held.name).token == token
    make_it_forget()
    assert isinstance(engine.take(waiting, patience=3.0), Busy)
    make_it_forget()
    assert engine.release(waiting.name, waiting.holder) is False
    make_it_forget()
    assert engine.release(held.name, held.holder) is True
    make_it_forget()
    assert engine.force_release(held.name) > token
    make_it_forget()
    assert engine.take(held).token > token


def test_an_idle_line_that_the_server_closed_is_replaced_before_anything_is_sent(
    engine: Caller, server: RedisServer
) -> None:
    first = engine.take(want(fresh_name()))
    server.restart()
    engine.pause(0.05)
    assert engine.take(want(fresh_name())).token > first.token
    server.ask("CLIENT", "KILL", "TYPE", "pubsub")
    engine.pause(0.05)
    assert isinstance(engine.take(want(fresh_name())), Grant)


def test_tokens_stay_above_those_seen_when_the_server_lost_its_data_and_its_clock_is_behind(
    server: RedisServer,
) -> None:
    family = family_at(server.url)
    with calling(family, "blocking") as engine:
        name = fresh_name()
        engine.take(want(name))
        ahead = 10 * 60 * 1_000_000
        server.ask("SET", keys_of("", name)[0], str(int(engine.status(name).token) + ahead))
        high = engine.take(want(name)).token
        server.ask("FLUSHALL")
        with calling(family, "asyncio") as other_engine_of_this_process:
            assert other_engine_of_this_process.take(want(name)).token > high
    with calling(family_at(server.url), "blocking") as other_process:
        server.ask("FLUSHALL")
        assert other_process.take(want(name)).token < high  # what the guarantee says that it does not give


@pytest.mark.parametrize("operation", ["take", "queue", "renew", "release", "status", "names", "force_release"])
def test_a_hanging_server_costs_no_more_than_the_time_given(
    engine: Caller, server: RedisServer, operation: str
) -> None:
    mine = want(fresh_name())
    engine.take(mine)
    server.pause()
    try:
        started = time.monotonic()
        with pytest.raises(OutcomeUnknown):
            _do(engine, operation, mine.name, seconds=0.3)
        assert 0.25 < time.monotonic() - started < 1.5
    finally:
        server.resume()
    assert engine.take(mine).token  # whatever happened to that request, another one works


def _do(engine: Caller, operation: str, name: str, seconds: float) -> None:
    until = engine.engine.world.now() + seconds
    match operation:
        case "take":
            engine.take(want(name), until=until)
        case "queue":
            engine.take(want(name), until=until, patience=1.0)
        case "renew":
            engine.renew([Renewal(name, "x", 1, 1.0)] * 1000, until=until)
        case "release":
            engine.release(name, "x", until=until)
        case "names":
            engine.names(after=None, limit=10, until=until)
        case _:
            getattr(engine, operation)(name, until=until)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("redis://127.0.0.1:{port}", "Connection refused"),
        ("redis://no-such-host.invalid:{port}", "known"),
        (f"redis://{'a' * 64}.invalid:{{port}}", "known"),
        ("redis+unix:///no/such/socket", "No such file"),
        ("redis+sentinel://127.0.0.1:{port},[::1]:{port}/main", "no Sentinel could name the primary"),
    ],
)
@pytest.mark.filterwarnings("ignore::leasehold.errors.GuaranteeWarning")
def test_a_server_that_is_not_there_is_told_as_such(world: str, url: str, why: str) -> None:
    with calling(family_at(url.format(port=free_port())), world) as engine:
        with pytest.raises(EngineUnavailable, match=why) as told:
            engine.take(want("n"))
        assert "\n" not in str(told.value)


def test_a_name_that_nobody_resolves_does_not_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    end = threading.Event()

    def never_in_time(*_arguments: object, **_settings: object) -> list[object]:
        end.wait(20)
        return []

    monkeypatch.setattr("socket.getaddrinfo", never_in_time)
    with pytest.warns(UserWarning, match="plain TCP"):
        family = family_at("redis://black-hole.example")
    with calling(family, "blocking", seconds=0.2) as engine:
        started = time.monotonic()
        with pytest.raises(EngineUnavailable, match="no answer in time"):
            engine.take(want("n"))
        assert time.monotonic() - started < 2.0
    end.set()


def test_a_waiter_whose_process_is_gone_is_skipped_at_the_release(engine: Caller, server: RedisServer) -> None:
    name = fresh_name()
    holder, waiter = want(name), want(name)
    engine.take(holder)
    with calling(family_at(server.url), "blocking") as other_process:
        other_process.take(want(name, ttl=30.0), patience=30.0)
        engine.take(waiter, patience=30.0)
        for line in list(other_process.engine._wire._lines):  # type: ignore[attr-defined]
            line.close()
        time.sleep(0.05)
        engine.release(name, holder.holder)
        assert engine.wait(waiter, 5.0) < 1.0
        assert isinstance(engine.take(waiter, patience=30.0), Grant)


def test_a_hung_waiter_is_passed_over_after_its_turn(engine: Caller, server: RedisServer) -> None:
    name = fresh_name()
    holder, waiter = want(name), want(name)
    engine.take(holder)
    with calling(family_at(server.url), "blocking") as hung:
        hung.take(want(name), patience=30.0)
        engine.take(waiter, patience=30.0)
        engine.pause(PROMPT / 1e6)
        engine.release(name, holder.holder)
        answer = engine.take(waiter, patience=30.0)
        assert isinstance(answer, Busy)
        assert answer.ask_again == pytest.approx(2.0, abs=0.3)
        time.sleep(answer.ask_again + 0.01)
        assert isinstance(engine.take(waiter, patience=30.0), Grant)


def test_a_broken_connection_ends_the_wait_at_once(engine: Caller, server: RedisServer) -> None:
    name = fresh_name()
    waiter = want(name)
    engine.take(want(name))
    engine.take(waiter, patience=30.0)
    server.ask("CLIENT", "KILL", "TYPE", "pubsub")
    assert engine.wait(waiter, 5.0) < 1.0
    assert isinstance(engine.take(waiter, patience=30.0), Busy)
    assert len(engine.status(name).waiters) == 1
    engine.force_release(name)
    assert engine.wait(waiter, 5.0) < 1.0


def test_a_wake_up_before_the_wait_counts_and_others_do_not(engine: Caller) -> None:
    name = fresh_name()
    holder, waiter, other = want(name), want(name), want(name)
    engine.take(holder)
    engine.take(waiter, patience=30.0)
    assert engine.wait(waiter, 0.2) == pytest.approx(0.2, abs=0.15)
    engine.take(waiter, patience=30.0)
    engine.release(name, holder.holder)
    assert engine.wait(waiter, 5.0) < 1.0
    assert engine.wait(other, 5.0) < 1.0  # never queued: nothing to wait for


def test_ten_thousand_failed_attempts_leave_nothing_in_the_queue(server: RedisServer) -> None:
    name = fresh_name()
    with calling(family_at(server.url), "blocking") as engine:
        engine.take(want(name, ttl=600.0))
        before = server.ask("DBSIZE")
        for _ in range(10_000):
            attempt = want(name)
            assert isinstance(engine.take(attempt), Busy)
        waiter = want(name)
        for _ in range(100):
            engine.take(waiter, patience=5.0)
            engine.release(name, waiter.holder)
        assert waiting_keys(server, name) == []
        assert server.ask("DBSIZE") == before


@pytest.mark.parametrize("program", ENGINES)
def test_ten_thousand_waiters_do_not_slow_the_queue_down(tmp_path: Path, program: str) -> None:
    name, number = fresh_name(), 10_000
    with (
        running(RedisServer(program, tmp_path)) as server,
        calling(family_at(server.url), "asyncio", seconds=60.0) as engine,
    ):
        holder = want(name, ttl=600.0)
        engine.take(holder)
        first = want(name)
        engine.take(first, patience=600.0)
        before = _work(server)
        for _ in range(20):
            engine.take(first, patience=600.0)
        few = _work(server) - before
        requests = [want(name) for _ in range(number)]

        async def queue_all() -> None:
            some = 500
            for start in range(0, number, some):
                asked = (engine.engine.take(one, until=engine.until, patience=600.0) for one in requests[start:][:some])
                await asyncio.gather(*asked)

        engine.run(queue_all())
        assert len(engine.status(name).waiters) > number - 10  # the next in line must look every few seconds
        before = _work(server)
        for waiter in requests[::500]:
            engine.take(waiter, patience=600.0)
        many = _work(server) - before
        assert many < 10 * few + 20_000, "one request must not look at every waiter"
        engine.force_release(name)
        assert engine.wait(first, 5.0) < 1.0


def _work(server: RedisServer) -> int:
    """Microseconds that the server has spent on scripts."""
    (line,) = [line for line in server.ask("INFO", "commandstats").decode().split() if "cmdstat_evalsha:" in line]
    return int(line.partition("usec=")[2].partition(",")[0])


def test_many_leases_are_renewed_in_pipelines(engine: Caller) -> None:
    wants = [want(fresh_name(), ttl=600.0) for _ in range(600)]
    renewals = [Renewal(one.name, one.holder, engine.take(one).token, 600.0) for one in wants]
    renewals.insert(300, Renewal("not-held", "x", 1, 600.0))
    kept = engine.renew(renewals)
    assert kept.count(False) == 1
    assert kept[300] is False
    for one in wants:
        engine.release(one.name, one.holder)


def test_names_are_listed_in_pages_without_idle_ones(engine: Caller, server: RedisServer) -> None:
    server.ask("FLUSHALL")
    wants = [want(f"page-{number:03}") for number in range(25)]
    for one in wants:
        engine.take(one)
    engine.release(wants[3].name, wants[3].holder)
    engine.take(want("short", ttl=0.05))
    engine.take(want("readers", mode="shared"))
    with calling(family_at(server.url, namespace="other*"), "blocking") as other:
        other.take(want("page-000"))
        assert other.names(after=None, limit=10) == ["page-000"]
    time.sleep(0.1)
    found: list[str] = []
    while page := engine.names(after=found[-1] if found else None, limit=10):
        assert len(page) <= 10
        found += page
    assert found == sorted([one.name for one in wants if one is not wants[3]] + ["readers"])


@pytest.mark.parametrize("index", range(6))
def test_keys_of_another_program_are_not_touched(engine: Caller, server: RedisServer, index: int) -> None:
    name = fresh_name()
    key = keys_of("", name)[index]
    server.ask("LPUSH", key, "not ours")
    holder = want(name, mode="shared")
    if index < 3:
        with pytest.raises(EngineError, match="holds something else"):
            engine.take(holder)
    else:
        engine.take(holder)
        with pytest.raises(EngineError, match="holds something else"):
            for _ in range(2):
                engine.take(want(name), patience=5.0)
    if index == 0:
        assert engine.renew([Renewal(name, "x", 1, 1.0)]) == [False]
    assert server.ask("TYPE", key) == b"list"


def test_a_head_that_is_not_ours_is_an_error(engine: Caller, server: RedisServer) -> None:
    name = fresh_name()
    for value in ("hello", "12;x", "-5", "1e3"):
        server.ask("SET", keys_of("", name)[0], value)
        with pytest.raises(EngineError, match="holds something else"):
            engine.take(want(name))
        with pytest.raises(EngineError):
            engine.status(name)
            engine.force_release(name)


def test_when_tokens_run_out_nothing_is_granted(engine: Caller, server: RedisServer) -> None:
    name = fresh_name()
    server.ask("SET", keys_of("", name)[0], str(2**53 - 1))
    for mode in ("exclusive", "shared"):
        with pytest.raises(EngineError, match="run out"):
            engine.take(want(name, mode=mode))
    with pytest.raises(EngineError, match="run out"):
        engine.force_release(name)
    assert engine.status(name).holders == ()


def test_a_server_without_memory_grants_nothing_but_lets_go(tmp_path: Path) -> None:
    with running(RedisServer("redis", tmp_path)) as server, calling(family_at(server.url), "blocking") as engine:
        alone, contended, shared = want("alone"), want("contended"), want("shared", mode="shared")
        tokens = {one.name: engine.take(one).token for one in (alone, contended, shared)}
        engine.take(want("contended"), patience=30.0)
        server.ask("CONFIG", "SET", "maxmemory", "1")
        for name in ("new", "alone"):
            with pytest.raises(EngineUnavailable, match="no memory left") if name == "new" else _nothing():
                engine.take(want(name))
        renewals = [Renewal(one.name, one.holder, tokens[one.name], 20.0) for one in (alone, contended, shared)]
        assert engine.renew(renewals) == [True, True, True]
        assert [engine.release(one.name, one.holder) for one in (alone, contended, shared)] == [True, True, True]
        server.ask("CONFIG", "SET", "maxmemory", "0")
        assert engine.take(want("alone")).token > tokens["alone"]


class _nothing:  # noqa: N801 -- reads as words where it is used
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def test_a_replica_is_refused_and_told(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with running(RedisServer("redis", tmp_path / "a")) as primary:
        replica = RedisServer("redis", tmp_path / "b", "--replicaof", f"127.0.0.1 {primary.port}")
        with running(replica), calling(family_at(replica.url), "blocking") as engine:
            with pytest.raises(EngineUnavailable, match="leads to a replica"):
                engine.take(want("n"))
            replica.ask("REPLICAOF", "NO", "ONE")
            assert isinstance(engine.take(want("n")), Grant)
            replica.ask("REPLICAOF", "127.0.0.1", str(primary.port))
            with pytest.raises(EngineUnavailable, match=r"is a replica|leads to a replica|still loading"):
                engine.take(want("m"))
