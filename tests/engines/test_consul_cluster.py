"""Three Consul servers: a leader that is killed, one that is cut off, and no majority."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from tests.engines.driving import eventually, fresh_name
from tests.support.consul_server import ConsulCluster, running_cluster

from leasehold import EngineError, Leasehold


@pytest.fixture(scope="module")
def cluster() -> Iterator[ConsulCluster]:
    with running_cluster() as three:
        yield three


def test_leases_queue_and_tokens_survive_a_killed_leader(cluster: ConsulCluster) -> None:
    """The client talks to the leader itself, and finds another server by itself."""
    leader, name = cluster.leader(), fresh_name()
    url = cluster.url_beginning_at(leader)
    with Leasehold(url) as locks, Leasehold(url) as others:
        lease = locks.lock(name, ttl=20).acquire()
        served: list[int] = []

        def wait() -> None:
            with others.lock(name, ttl=20, wait=40) as next_lease:
                served.append(next_lease.token)

        waiting = threading.Thread(target=wait)
        waiting.start()
        time.sleep(0.5)
        leader.kill()
        since = time.monotonic()
        during = locks.lock(fresh_name(), ttl=20, wait=20).acquire()
        assert time.monotonic() - since < 20
        assert during.token > lease.token
        lease.check()
        status = locks.status(name)
        assert status is not None
        assert [holder.token for holder in status.holders] == [lease.token]
        assert len(status.waiters) == 1
        lease.extend()
        lease.release()
        waiting.join(30)
        assert len(served) == 1
        during.release()
    cluster.bring_back(leader)


def test_without_a_majority_nothing_is_granted_and_the_error_says_so(cluster: ConsulCluster) -> None:
    leader = cluster.leader()
    followers = [node for node in cluster.nodes if node is not leader]
    with Leasehold(cluster.url_beginning_at(leader), request_timeout=1.0) as locks:
        lease = locks.lock(fresh_name(), ttl=20).acquire()
        for node in followers:
            node.kill()
        since = time.monotonic()
        with pytest.raises(EngineError, match="consul at"):
            locks.lock(fresh_name(), ttl=20, wait=2).acquire()
        assert time.monotonic() - since < 4
        lease.check()
        for node in followers:
            cluster.bring_back(node)
        lease.extend()
        lease.release()
    eventually(lambda: cluster.nodes[0].keys() == [], 30)
