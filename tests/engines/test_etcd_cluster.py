"""Three nodes: the leader dies or stops, while leases are held and waited for."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from tests.engines.driving import fresh_name
from tests.support.etcd_server import EtcdCluster, EtcdNode, running_cluster

from leasehold import EngineError, EngineUnavailable, Leasehold

TTL = 6.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster")) as three:
        yield three


class Waiter:
    """Waits for a name in a thread of its own."""

    def __init__(self, client: Leasehold, name: str) -> None:
        self.tokens: list[int] = []
        self.at = 0.0
        self._thread = threading.Thread(target=self._wait, args=(client, name))
        self._thread.start()

    def _wait(self, client: Leasehold, name: str) -> None:
        with client.lock(name, ttl=TTL, wait=60) as lease:
            self.at = time.monotonic()
            self.tokens.append(lease.token)

    def join(self) -> None:
        self._thread.join(60)
        assert self.tokens


def waits(client: Leasehold, name: str) -> bool:
    try:
        status = client.status(name)
    except EngineError:
        return False
    return status is not None and bool(status.waiters)


def wait_until_queued(client: Leasehold, name: str) -> None:
    for _ in range(200):
        if waits(client, name):
            return
        time.sleep(0.05)
    pytest.fail("nobody waits")


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_a_lost_leader_costs_neither_the_lease_nor_the_place_in_the_queue(cluster: EtcdCluster, how: str) -> None:
    """Both clients talk to the leader itself, and must go on with the others."""
    leader = cluster.leader()
    url = cluster.url_beginning_at(leader)
    name = fresh_name()
    with Leasehold(url) as first, Leasehold(url) as second:
        lease = first.lock(name, ttl=TTL).acquire()
        waiter = Waiter(second, name)
        wait_until_queued(first, name)
        leader.kill() if how == "killed" else leader.pause()
        try:
            time.sleep(TTL)  # longer than the lease would last without renewals
            lease.check()
            assert not waiter.tokens
            lease.release()
            released_at = time.monotonic()
            waiter.join()
        finally:
            leader.resume() if how == "stopped" else cluster.bring_back(leader)
        assert waiter.tokens[0] > lease.token
        assert waiter.at - released_at < 5
        with second.lock(name, ttl=TTL, wait=20) as last:
            assert last.token > waiter.tokens[0]


def test_a_dead_endpoint_is_passed_over(cluster: EtcdCluster) -> None:
    follower = cluster.followers()[0]
    follower.kill()
    try:
        with Leasehold(cluster.url_beginning_at(follower)) as client:
            for _ in range(2):
                since = time.monotonic()
                with client.lock(fresh_name(), ttl=TTL, wait=10) as lease:
                    lease.check()
                assert time.monotonic() - since < 5
    finally:
        cluster.bring_back(follower)


def test_without_a_majority_nothing_is_granted_and_it_is_said_why(cluster: EtcdCluster) -> None:
    followers = cluster.followers()
    last: EtcdNode = cluster.leader()
    with Leasehold(last.url) as client:
        with client.lock(fresh_name(), ttl=TTL) as lease:
            tokens = [lease.token]
        for follower in followers:
            follower.kill()
        try:
            time.sleep(3)  # the leader notices that it leads nobody
            since = time.monotonic()
            with pytest.raises(EngineUnavailable, match="leader"):
                client.lock(fresh_name(), ttl=TTL, wait=0).acquire()
            assert time.monotonic() - since < 3
        finally:
            for follower in followers:
                follower.start(cluster._members)
            for follower in followers:
                follower.wait()
        with client.lock(fresh_name(), ttl=TTL, wait=20) as lease:
            tokens.append(lease.token)
    assert tokens == sorted(set(tokens))
