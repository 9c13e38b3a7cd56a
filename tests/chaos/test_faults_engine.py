"""The engine's servers are restarted, frozen, cut from power, led by another, out of room."""

from __future__ import annotations

import contextlib
import random
import shutil
from pathlib import Path
from typing import Any, cast

import pytest
from tests.chaos.fault_site import TTL, AlwaysAll, Toy, a_site, all_go_on, happens, struck

from leasehold import Leasehold, LeaseholdError, LeaseLost
from leasehold.chaos.faults import FAULTS
from leasehold.chaos.servers import started
from leasehold.chaos.servers.redis import RedisServer
from leasehold.chaos.site import Server, Site

pytestmark = pytest.mark.nightly


def test_the_engine_is_restarted(site: Site) -> None:
    [server] = site.servers
    before = server.pids
    for _ in range(4):  # in either way
        fault, said = struck(site, "engine-restart")
        assert said["how"] in ("killed", "stopped")
        assert server.pids == []
        fault.mend(site)
        assert server.pids != before
        assert all_go_on(site)


def test_a_whole_cluster_is_restarted(folder: Path) -> None:
    with started("etcd", folder, members=3) as (url, servers):
        site = Site(url, TTL, [], servers=servers, chance=AlwaysAll())
        fault, said = struck(site, "engine-restart")
        assert said["at"] == "server-1, server-2, server-3"
        fault.mend(site)
        assert all(server.answers() for server in servers)


def test_the_engine_hangs_with_all_its_processes(folder: Path) -> None:
    with started("postgresql", folder) as (url, servers):
        [server] = servers
        site = Site(url, TTL, [], servers=servers)
        fault, _ = struck(site, "engine-pause")
        states = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in server.pids]
        assert len(states) > 3
        assert set(states) <= {"T", "Z"}
        assert not server.answers()
        fault.mend(site)
        assert happens(server.answers)


def test_power_is_lost_and_with_it_what_was_not_synced(folder: Path) -> None:
    with a_site(folder, durable=False) as site:

        def drops_something() -> bool:
            fault, said = struck(site, "power-loss")
            assert site.servers[0].pids == []
            fault.mend(site)
            assert all_go_on(site)
            return bool(said["bytes dropped"])

        assert happens(drops_something)


def test_nothing_is_lost_where_everything_is_synced(site: Site) -> None:
    fault, said = struck(site, "power-loss")
    assert said["bytes dropped"] == 0
    fault.mend(site)
    assert all_go_on(site)


def test_a_whole_cluster_loses_power(folder: Path) -> None:
    with started("zookeeper", folder, members=3, witness=True) as (url, servers), Leasehold(url) as locks:
        with locks.lock("orders", ttl=2, wait=20) as lease:
            before = lease.token
        site = Site(url, TTL, [], servers=servers, chance=AlwaysAll())
        fault, said = struck(site, "power-loss")
        assert said["at"] == "server-1, server-2, server-3"
        assert not any(server.pids for server in servers)
        fault.mend(site)
        with locks.lock("orders", ttl=2, wait=60) as lease:
            assert lease.token > before


def test_the_leader_is_killed_and_another_leads(folder: Path) -> None:
    with started("etcd", folder, members=3) as (url, servers):
        site = Site(url, TTL, [], servers=servers)
        assert happens(lambda: any(server.leads() for server in servers))
        fault, said = struck(site, "leader-kill")
        [killed] = [server for server in servers if server.name == said["at"]]
        assert killed.pids == []
        assert happens(lambda: any(server.leads() for server in servers))
        fault.mend(site)
        assert killed.answers()


def test_a_replica_takes_over_and_the_old_primary_follows_it(folder: Path) -> None:
    with a_site(folder, members=2) as site:
        [first, second] = site.servers
        assert (first.leads(), second.leads()) == (True, False)
        for primary, replica in ((first, second), (second, first)):
            assert happens(lambda: FAULTS["failover"]().missing(site) is None and all_in_step(site))
            fault, said = struck(site, "failover")
            assert (said["at"], said["promoted"]) == (primary.name, replica.name)
            assert cast(float, said["lag"]) >= 0.3 * TTL
            assert primary.pids == []
            assert replica.leads()
            fault.mend(site)
            assert follows(primary)
            assert all_go_on(site)
        tokens = [token for worker in site.workers for token, _ in cast(Toy, worker).turns()]
        assert len(set(tokens)) == len(tokens)


def follows(server: Server) -> bool:
    return happens(lambda: server.answers() and not server.leads())


def all_in_step(site: Site) -> bool:
    return all(cast(RedisServer, server).is_in_step() for server in site.servers)


def test_what_a_replica_never_heard_of_is_gone_and_tokens_increase_all_the_same(folder: Path) -> None:
    with started("redis", folder, members=2) as (url, servers), Leasehold(url) as one, Leasehold(url) as other:
        [primary, replica] = [cast(RedisServer, server) for server in servers]
        replica.stop_following()
        with pytest.raises(LeaseLost), one.lock("orders", ttl=60, wait=20) as lost:
            primary.stop(hard=True)
            replica.take_over(primary)
            with other.lock("orders", ttl=60, wait=20) as lease:
                assert lease.token > lost.token
        primary.start()
        assert happens(primary.is_in_step)


def test_three_faults_have_a_member_each_and_the_last_one_that_is_mended_waits_for_all(folder: Path) -> None:
    with started("zookeeper", folder, members=3, witness=True) as (url, servers):
        site = Site(url, TTL, [], servers=servers, chance=JustOne(1))
        faults = [struck(site, name)[0] for name in ("engine-restart", "power-loss", "full-disk")]
        assert len(site.struck) == 3
        for fault in reversed(faults):
            fault.mend(site)
        assert happens(lambda: all(server.answers() for server in servers))


class JustOne(random.Random):
    """Chance that never strikes all."""

    def random(self) -> float:
        return 0.99


class Chooses(AlwaysAll):
    """Chance that strikes everybody, in one way."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self._way = way

    def choice(self, seq: Any) -> Any:
        return self._way if self._way in seq else seq[0]


SERVERS = {"redis": 1, "valkey": 1, "postgresql": 1, "mariadb": 1, "etcd": 3, "consul": 3, "zookeeper": 3, "mysql": 1}
BY_NIGHT = ("mysql",)


@pytest.mark.parametrize(
    "engine", [pytest.param(one, marks=[pytest.mark.nightly] if one in BY_NIGHT else []) for one in SERVERS]
)
def test_a_full_disk_lets_no_grant_be_made_and_room_helps(engine: str, folder: Path) -> None:
    with (
        started(engine, folder, members=SERVERS[engine], witness=True) as (url, servers),
        Leasehold(url, request_timeout=2.0) as locks,
    ):
        site = Site(url, TTL, [], servers=servers, chance=Chooses("no-write"))
        with locks.lock("orders", ttl=2, wait=20) as lease:
            before = lease.token
        fault, said = struck(site, "full-disk")
        assert said["how"] == "no-write"
        with pytest.raises(LeaseholdError), locks.lock("orders", ttl=2, wait=1):
            pass
        fault.mend(site)
        with locks.lock("orders", ttl=2, wait=60) as lease:
            assert lease.token > before


def test_a_disk_that_overwrites_in_place_may_be_full_and_only_growth_fails(folder: Path) -> None:
    """PostgreSQL has its log allocated beforehand, Redis appends."""
    for engine, goes_on in (("postgresql", True), ("redis", False)):
        with started(engine, folder, witness=True) as (url, servers), Leasehold(url, request_timeout=2.0) as locks:
            site = Site(url, TTL, [], servers=servers, chance=Chooses("no-growth"))
            with locks.lock("orders", ttl=2, wait=20):
                pass
            fault, _ = struck(site, "full-disk")
            with contextlib.nullcontext() if goes_on else pytest.raises(LeaseholdError):
                locks.lock("orders", ttl=2, wait=5).acquire().release()
            fault.mend(site)
        shutil.rmtree(folder / "server")
