"""Servers of a run's own: each engine's starts, serves, keeps what it was told, and is gone afterwards."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.server_process import memory_folder

from leasehold import Leasehold, LeaseLost
from leasehold.chaos.servers import CLUSTERS, ENGINES, NoServer, find, started
from leasehold.chaos.servers.process import ENDS_WITHIN
from leasehold.chaos.servers.redis import RedisServer
from leasehold.chaos.servers.shim import Shim
from leasehold.chaos.site import Server

pytestmark = pytest.mark.nightly


@pytest.fixture
def folder() -> Iterator[Path]:
    with memory_folder() as folder:
        yield folder


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def taken(locks: Leasehold) -> int:
    """Take and release; the token."""
    with locks.lock("orders", ttl=2, wait=30) as lease:
        return lease.token


# Session locks of MySQL stand in the long matrix: leases in rows show what its server does.
ALONE = [engine for engine in ENGINES if engine not in ("redlock", "mysql+session")]


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
        assert lives(pids[0])  # of the others, PostgreSQL has some for a moment only
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


@pytest.mark.parametrize(("engine", "members"), [(engine, 1) for engine in ALONE] + [(name, 3) for name in CLUSTERS])
def test_what_was_granted_is_known_after_a_power_loss_of_everything(engine: str, members: int, folder: Path) -> None:
    """Each engine says that it syncs before it grants; Redis, which here is told to."""
    with (
        started(engine, folder, members=members, witness=True) as (url, servers),
        Leasehold(url, request_timeout=2.0) as locks,
    ):
        assert [server.unseen for server in servers if not server.disk] == []
        before = max(taken(locks) for _ in range(20))
        for server in servers:
            server.stop(hard=True)
        for server in servers:
            assert server.disk is not None
            server.disk.drop_unsynced()
            assert server.disk.drop_unsynced() == 0
            server.launch()
        for server in servers:
            server.wait()
        assert taken(locks) > before


def test_a_lease_that_was_not_synced_is_gone_after_a_power_loss(folder: Path) -> None:
    with started("redis", folder, durable=False, witness=True) as (url, [server]), Leasehold(url) as locks:
        assert server.disk is not None

        def forgets_it() -> bool:
            """Redis syncs once a second, maybe right now."""
            with contextlib.suppress(LeaseLost), locks.lock("orders", ttl=60, wait=70):
                server.stop(hard=True)
                assert server.disk
                dropped = server.disk.drop_unsynced()
                server.start()
                status = locks.status("orders")
                return dropped > 0 and (status is None or not status.holders)
            return True

        assert any(forgets_it() for _ in range(20))


def test_a_server_without_a_witness_says_so(folder: Path) -> None:
    with started("postgresql", folder) as (_, [server]):
        assert server.disk is None
        assert "without a witness" in server.unseen


@pytest.mark.parametrize("engine", ["postgresql", "mariadb", "mysql"])  # Redis: see the faults of clocks
def test_the_wall_clock_of_a_server_can_be_moved(engine: str, folder: Path) -> None:
    with started(engine, folder) as (url, [server]), Leasehold(url) as locks:
        assert isinstance(server.clock, Shim)
        before = taken(locks)
        server.clock.move(3600)
        # Tokens follow the engine's clock in microseconds.
        assert taken(locks) - before > 3_599_000_000
        server.clock.move(0)


def test_a_mariadb_that_starts_deletes_no_temporary_tables_of_others(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes those in its folder for what it left behind itself, and may be allowed to delete them."""
    everybodys = folder / "everybodys"
    everybodys.mkdir()
    everybodys.chmod(0o777)
    tables = {everybodys / f"#sql-temptable-4d2-5-0.{kind}" for kind in ("MAI", "MAD", "frm")}
    for table in tables:
        table.touch()
    monkeypatch.setenv("TMPDIR", str(everybodys))
    with started("mariadb", folder) as (_, [server]):
        server.stop()
        server.start()
        assert set(everybodys.iterdir()) == tables


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
