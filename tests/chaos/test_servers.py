"""Servers of a run's own: each engine's starts, serves, keeps what it was told, and is gone afterwards."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from leasehold import Leasehold, LeaseLost, NotSupported
from leasehold.chaos.servers import ENGINES, NoServer, find, started
from leasehold.chaos.servers.process import ENDS_WITHIN
from leasehold.chaos.servers.redis import RedisServer
from leasehold.chaos.servers.shim import Shim
from leasehold.chaos.site import Server

pytestmark = pytest.mark.nightly

MEMORY = Path("/dev/shm")


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as path:
        yield Path(path)


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def taken(locks: Leasehold) -> int:
    """Take and release; the token."""
    with locks.lock("orders", ttl=2, wait=30) as lease:
        return lease.token


ALONE = [engine for engine in ENGINES if engine != "redlock"]


@pytest.mark.parametrize("engine", ALONE)
def test_a_server_serves_keeps_what_it_was_told_and_ends(engine: str, folder: Path) -> None:
    with started(engine, folder) as (url, [server]):
        pids = server.pids
        with Leasehold(url) as locks:
            before = taken(locks)
            server.stop(hard=True)
            assert server.pids == []
            assert not any(map(lives, pids))
            server.start()
            assert taken(locks) > before
        pids = server.pids
        assert pids
        assert all(map(lives, pids))
    assert not any(map(lives, pids))


@pytest.mark.parametrize("engine", ["consul", "zookeeper"])  # etcd: see the fault that kills its leader
def test_a_cluster_has_one_leader_and_another_after_it_is_gone(engine: str, folder: Path) -> None:
    with started(engine, folder, members=3) as (url, servers):
        leader = the_leader(servers)
        with Leasehold(url) as locks:
            before = taken(locks)
            leader.stop(hard=True)
            assert not leader.leads()
            others = [server for server in servers if server is not leader]
            assert the_leader(others) in others
            assert taken(locks) > before
        leader.start()


def the_leader(servers: list[Server]) -> Server:
    give_up_at = time.monotonic() + 60
    while time.monotonic() < give_up_at:
        leaders = [server for server in servers if server.leads()]
        if len(leaders) == 1:
            return leaders[0]
        time.sleep(0.05)
    pytest.fail("no leader")


def test_a_stopped_server_is_ended_all_the_same_when_it_was_frozen(folder: Path) -> None:
    with started("redis", folder) as (_, [server]):
        [pid] = server.pids
        os.kill(pid, 19)
        server.stop()
        assert not lives(pid)
        server.start()
        with pytest.raises(RuntimeError, match="runs already"):
            server.start()


def test_what_was_not_synced_is_dropped_and_nothing_else(folder: Path) -> None:
    server = RedisServer("redis", folder, "server", durable=False)
    server.start()
    try:
        with Leasehold(server.url_at(server.address)) as locks:
            first = taken(locks)
            stat = next(server.folder.rglob("*.incr.aof")).stat()
            kept = f"{stat.st_dev} {stat.st_ino} {stat.st_size}"
            with pytest.raises(LeaseLost), locks.lock("orders", ttl=60) as second:
                server.stop(hard=True)
                # As if the last sync had been after the first lease: a second's worth of writes is at stake.
                with (server.folder / "synced").open("a") as synced:
                    synced.write(f"{kept}\n")
                assert server.drop_unsynced() > 0
                assert server.drop_unsynced() == 0
                server.start()
                # It has forgotten the second lease, which is held; and it knows the first.
                status = locks.status("orders")
                assert status is not None
                assert status.token == first < second.token
                assert not status.holders
    finally:
        server.stop(hard=True)


def test_syncs_are_known_and_each_write_is_synced_where_that_was_asked_for(folder: Path) -> None:
    with started("redis", folder) as (url, [server]), Leasehold(url) as locks:
        assert server.drops_unsynced
        with pytest.raises(RuntimeError, match="stop it first"):
            server.drop_unsynced()
        before = taken(locks)
        server.stop(hard=True)
        assert server.drop_unsynced() == 0
        server.start()
        status = locks.status("orders")
        assert status is not None
        assert status.token == before


def test_what_a_server_has_synced_is_not_known_of_most(folder: Path) -> None:
    with started("postgresql", folder) as (_, [server]):
        assert not server.drops_unsynced
        with pytest.raises(NotSupported, match="a power loss cannot be made"):
            server.drop_unsynced()


@pytest.mark.parametrize("engine", ["postgresql", "mariadb"])  # Redis: see the faults of clocks
def test_the_wall_clock_of_a_server_can_be_moved(engine: str, folder: Path) -> None:
    with started(engine, folder) as (url, [server]), Leasehold(url) as locks:
        assert isinstance(server.clock, Shim)
        before = taken(locks)
        server.clock.move(3600)
        # Tokens follow the engine's clock in microseconds.
        assert taken(locks) - before > 3_599_000_000
        server.clock.move(0)


def test_missing_servers_say_what_would_help(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("LEASEHOLD_SERVERS", str(tmp_path))
    with pytest.raises(NoServer, match="redis-server on PATH"):
        find("redis")
    with pytest.raises(NoServer, match="needs java, which is not on PATH"):
        find("zookeeper")
    with pytest.raises(NoServer, match=r"'oracle'.*redis, valkey"), started("oracle", folder):
        pass
    with pytest.raises(NoServer, match="stands alone"), started("postgresql", folder, members=3):
        pass
    with pytest.raises(NoServer, match="give it 3 members or more, not 1"), started("redlock", folder):
        pass
    program = tmp_path / "redis" / "usr" / "bin" / "redis-server"
    program.parent.mkdir(parents=True)
    program.touch()
    assert find("redis") == program


def test_a_server_that_does_not_start_says_why(folder: Path) -> None:
    with started("redis", folder) as (_, [first]):
        second = RedisServer("redis", folder, "second", durable=True)
        assert isinstance(first, RedisServer)
        second.port = first.port
        with pytest.raises(NoServer, match="did not start"):
            # Someone answers on that port: only the end of the process tells.
            second.launch()
            while second.pids:
                time.sleep(0.01)
            second.port = 1
            second.wait()
        second.stop()


def test_a_server_that_is_stopped_in_good_order_does_not_wait_for_its_clients(folder: Path) -> None:
    with started("postgresql", folder) as (url, [server]), Leasehold(url) as locks:
        before = taken(locks)  # and the connection stays open
        began = time.monotonic()
        server.stop()
        assert time.monotonic() - began < ENDS_WITHIN
        server.start()
        assert taken(locks) > before
