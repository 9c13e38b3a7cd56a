"""A quorum of real servers that die, hang, restart and forget: what it costs, what is said, and who is kept out."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator

import pytest
import redis as redis_py
from tests.engines.redis_help import WORLDS
from tests.support.redlock_servers import QuorumOfServers, running_quorum

from leasehold import (
    AsyncLeasehold,
    Capability,
    EngineError,
    EngineUnavailable,
    InvalidTTL,
    InvalidURL,
    Leasehold,
    LeaseLost,
    Misuse,
    NotSupported,
)
from leasehold.engines.redlock import initialise, open_engine

MARKER = "lh:q:marker"


@pytest.fixture
def three() -> Iterator[QuorumOfServers]:
    with running_quorum(3) as quorum:
        yield quorum


def tokens(url: object, world: str, count: int, *, wait: float = 5.0) -> list[int]:
    """Take and release so often."""
    if world == "blocking":
        with Leasehold(url) as locks:
            found = []
            for _ in range(count):
                with locks.lock("name", wait=wait) as lease:
                    found.append(lease.token)
            return found

    async def run() -> list[int]:
        async with AsyncLeasehold(url) as locks:
            found = []
            for _ in range(count):
                async with locks.lock("name", wait=wait) as lease:
                    found.append(lease.token)
            return found

    return asyncio.run(run())


def seconds_for(url: object, world: str, count: int) -> float:
    began = time.monotonic()
    found = tokens(url, world, count)
    assert found == sorted(set(found))
    return time.monotonic() - began


@pytest.mark.parametrize("world", WORLDS)
def test_a_minority_that_hangs_or_is_gone_costs_nothing(three: QuorumOfServers, world: str) -> None:
    """Were it waited for, each of these would take the request's own time-out, 5 s."""
    healthy = seconds_for(three.url, world, 50)
    three.servers[0].pause()
    hung = seconds_for(three.url, world, 50)
    three.servers[0].resume()
    three.servers[0].kill()
    gone = seconds_for(three.url, world, 50)
    assert max(hung, gone) < healthy * 10 + 2.0


@pytest.mark.parametrize("world", WORLDS)
def test_a_server_that_comes_back_takes_part_again(three: QuorumOfServers, world: str) -> None:
    found = tokens(three.url, world, 3)
    three.servers[0].kill()
    found += tokens(three.url, world, 3)
    three.servers[0].start()
    three.servers[1].kill()
    found += tokens(three.url, world, 3)
    three.servers[1].start()
    three.servers[2].kill()
    found += tokens(three.url, world, 3)
    assert found == sorted(set(found))


@pytest.mark.parametrize("world", WORLDS)
def test_a_client_follows_servers_that_fail_in_turn(three: QuorumOfServers, world: str) -> None:
    """The same client all along, with connections that break."""

    async def run() -> list[int]:
        found = []
        async with AsyncLeasehold(three.url) as locks:
            for server in (*three.servers, *three.servers):
                async with locks.lock("name", wait=5) as lease:
                    found.append(lease.token)
                await asyncio.to_thread(server.restart)
        return found

    def run_blocking() -> list[int]:
        found = []
        with Leasehold(three.url) as locks:
            for server in (*three.servers, *three.servers):
                with locks.lock("name", wait=5) as lease:
                    found.append(lease.token)
                server.restart()
        return found

    found = run_blocking() if world == "blocking" else asyncio.run(run())
    assert found == sorted(set(found))


@pytest.mark.parametrize("world", WORLDS)
def test_without_a_majority_it_says_why_of_each_server(three: QuorumOfServers, world: str) -> None:
    three.servers[0].kill()
    three.servers[1].ask("FLUSHALL")
    with pytest.raises(EngineError) as caught:
        tokens(three.url, world, 1, wait=0.3)
    said = str(caught.value)
    assert "2 are needed" in said
    assert f"127.0.0.1:{three.servers[0].port} cannot be reached" in said
    assert f"redis://127.0.0.1:{three.servers[1].port} is new, or lost its data" in said
    assert caught.value.name == "name"


@pytest.mark.parametrize("how", ["wiped", "wiped and restarted", "rolled back"])
def test_a_server_that_forgot_is_kept_out(how: str) -> None:
    with running_quorum(3, durable=how != "rolled back") as quorum:
        first, other, last = quorum.servers
        before = tokens(quorum.url, "blocking", 3)
        if how == "rolled back":
            first.restart()  # it keeps nothing
        else:
            first.ask("FLUSHALL")
        if how == "wiped and restarted":
            first.restart()
        after = tokens(quorum.url, "blocking", 3)
        assert int(first.ask("GET", MARKER).split()[0]) > time.time() * 1e6 + 50e6, "for longer than the longest TTL"
        last.kill()
        with pytest.raises(EngineUnavailable, match="kept out for another"):
            tokens(quorum.url, "blocking", 1, wait=0.2)
        _let_back_in(first)
        later = tokens(quorum.url, "blocking", 3)
        assert before + after + later == sorted({*before, *after, *later}), "also by the server that forgot"
        assert other.ask("PING")


def _let_back_in(server: object) -> None:
    """As if the time had passed for which it is kept out."""
    ask = server.ask  # type: ignore[attr-defined]
    ask("SET", MARKER, b" ".join([b"0", *ask("GET", MARKER).split()[1:]]))


def test_a_server_that_writes_down_everything_may_restart_at_once(three: QuorumOfServers) -> None:
    before = tokens(three.url, "blocking", 2)
    three.restart()
    after = tokens(three.url, "blocking", 2)
    assert before + after == sorted({*before, *after})


def test_a_promoted_replica_is_not_trusted(three: QuorumOfServers) -> None:
    """It may lack what its primary had promised, even if it writes down everything itself."""
    before = tokens(three.url, "blocking", 2)
    first, _, last = three.servers
    first.ask("REPLICAOF", "127.0.0.1", last.port)
    give_up_at = time.monotonic() + 20
    while b"master_link_status:up" not in first.ask("INFO", "replication"):
        assert time.monotonic() < give_up_at
        time.sleep(0.02)
    tokens(three.url, "blocking", 1)
    first.ask("REPLICAOF", "NO", "ONE")
    last.kill()
    with pytest.raises(EngineUnavailable, match="kept out for another"):
        tokens(three.url, "blocking", 1, wait=0.2)
    assert before


def test_new_servers_are_kept_out_until_somebody_says_that_they_are_new() -> None:
    with running_quorum(3, initialised=False) as quorum:
        with pytest.raises(EngineUnavailable, match="is new, or lost its data"):
            tokens(quorum.url, "blocking", 1, wait=0.2)
        initialise(quorum.url)
        assert tokens(quorum.url, "blocking", 1)
        quorum.servers[0].kill()
        with pytest.raises(EngineUnavailable, match="not every server"):
            initialise(quorum.url, within=1.0)


@pytest.mark.parametrize("world", WORLDS)
def test_a_lease_that_a_majority_forgot_is_lost_at_the_next_renewal(three: QuorumOfServers, world: str) -> None:
    async def run() -> None:
        async with AsyncLeasehold(three.url) as locks:
            lease = await locks.lock("name", ttl=3).acquire()
            for server in three.servers[:2]:
                server.ask("FLUSHALL")
            since = time.monotonic()
            assert await lease.wait_lost()
            assert time.monotonic() - since < 2.5, "told by the servers, before its TTL"
            with pytest.raises(LeaseLost):
                lease.check()

    asyncio.run(run())


def test_flushed_scripts_are_loaded_again(three: QuorumOfServers) -> None:
    with Leasehold(three.url) as locks:
        for _ in range(2):
            with locks.lock("name", wait=5):
                pass
            for server in three.servers:
                server.ask("SCRIPT", "FLUSH")


def test_two_addresses_of_one_server_are_refused(three: QuorumOfServers) -> None:
    first, second, _ = three.servers
    url = f"redlock://127.0.0.1:{first.port},localhost:{first.port},127.0.0.1:{second.port}"
    lock = Leasehold(url).lock("name", wait=0)
    with contextlib.suppress(EngineError), lock:
        pass
    second.kill()
    with pytest.raises(EngineError, match="are the same server"), lock:
        pass


def test_several_clients_and_urls_make_a_quorum(three: QuorumOfServers) -> None:
    first, second, third = three.servers
    clients = [redis_py.Redis(port=first.port, host="127.0.0.1"), second.url, redis_py.Redis(port=third.port)]
    found = tokens(clients, "blocking", 2) + tokens(three.url, "asyncio", 2)
    assert found == sorted(set(found))


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("redlock://a,b", "3 to 9 servers"),
        ("redlock://a,b,a", "one server twice"),
        ("redlock://a,b,c?longest_ttl=soon", "longest_ttl is a number"),
        ("redlock://a,b,c:x", "its port"),
        ("redlock://user:s3cret@a,b,c/x", "its database"),
        ("redlock://a,b,c?no=1", "option that is not known"),
    ],
)
def test_a_wrong_url_is_refused_without_a_word_of_it(url: str, problem: str) -> None:
    with pytest.raises(InvalidURL, match=problem) as caught:
        Leasehold(url)
    assert "s3cret" not in str(caught.value)


def test_what_it_is_not_made_for_is_refused() -> None:
    with pytest.raises(Misuse):
        open_engine(7, namespace="", client_label="")
    locks = Leasehold("redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3?longest_ttl=5")
    assert Capability.SHARED not in locks.facts.capabilities
    assert locks.facts.address == "redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3"
    with pytest.raises(InvalidTTL, match="at most 5"):
        locks.lock("name", ttl=6, wait=0).acquire()
    with pytest.raises(NotSupported):
        locks.permits("name", 3)


def test_one_thread_asks_all_servers(three: QuorumOfServers) -> None:
    """No thread for each server: there is the caller's, and at most the keeper's."""
    with Leasehold(three.url) as locks, locks.lock("name"):
        threads = threading.active_count()
        with locks.lock("other"):
            assert threading.active_count() <= threads + 1
