"""Three ZooKeeper servers: one dies, stops or is cut off from its leader, while leases are held and waited for."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

import pytest
from tests.engines.driving import eventually, fresh_name
from tests.support.zookeeper_server import ZooKeeperEnsemble, ZooKeeperServer, running_ensemble

from leasehold import EngineError, EngineUnavailable, Leasehold
from leasehold.engines.zookeeper import ZooKeeperFamily
from leasehold.testing.proxy import Proxy
from leasehold.wires.urls import Endpoint
from leasehold.worlds import boot_clock

TTL = 6.0


@pytest.fixture(scope="module")
def ensemble() -> Iterator[ZooKeeperEnsemble]:
    with running_ensemble() as three:
        yield three


@contextlib.contextmanager
def client_at(ensemble: ZooKeeperEnsemble, node: ZooKeeperServer) -> Iterator[Leasehold]:
    """A client that knows all servers and begins with this one."""
    with Leasehold(ensemble.url) as client:
        family = client._family
        assert isinstance(family, ZooKeeperFamily)
        family._endpoints.works(Endpoint("127.0.0.1", node.port))
        yield client


class Waiter:
    """Waits for a name in a thread of its own."""

    def __init__(self, client: Leasehold, name: str) -> None:
        self.tokens: list[int] = []
        self.at = 0.0
        self._thread = threading.Thread(target=self._wait, args=(client, name))
        self._thread.start()

    def _wait(self, client: Leasehold, name: str) -> None:
        with client.lock(name, ttl=TTL, wait=60) as lease:
            self.at = boot_clock()
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


@pytest.mark.parametrize(
    ("whose", "how"),
    [
        ("leader", "killed"),
        ("follower", "stopped"),
        pytest.param("leader", "stopped", marks=pytest.mark.nightly),
        pytest.param("follower", "killed", marks=pytest.mark.nightly),
    ],
)
def test_a_lost_server_costs_neither_the_lease_nor_the_place_in_the_queue(
    ensemble: ZooKeeperEnsemble, whose: str, how: str
) -> None:
    """Both clients talk to the server that is lost, and go on with the others: the session is the ensemble's."""
    victim = ensemble.leader() if whose == "leader" else ensemble.followers()[0]
    name = fresh_name()
    with client_at(ensemble, victim) as first, client_at(ensemble, victim) as second:
        lease = first.lock(name, ttl=TTL).acquire()
        waiter = Waiter(second, name)
        eventually(lambda: waits(first, name), 10.0)
        victim.kill() if how == "killed" else victim.pause()
        try:
            time.sleep(TTL)  # longer than the lease would last without renewals
            lease.check()
            assert not waiter.tokens
            lease.release()
            released_at = boot_clock()
            waiter.join()
        finally:
            victim.resume() if how == "stopped" else victim.start()
            victim.wait()
        assert waiter.tokens[0] > lease.token
        assert waiter.at - released_at < 5


def test_without_a_majority_nothing_is_granted_and_leases_end_by_their_holders_clock(
    ensemble: ZooKeeperEnsemble,
) -> None:
    name, survivor = fresh_name(), ensemble.leader()
    followers = ensemble.followers()
    with client_at(ensemble, survivor) as client:
        lease = client.lock(name, ttl=2.0).acquire()
        for node in followers:
            node.kill()
        try:
            since = boot_clock()
            eventually(lambda: lease.lost, 4.0)
            assert lease.valid_until <= since + 2.0
            with pytest.raises(EngineUnavailable):
                client.lock(fresh_name(), ttl=TTL, wait=1).acquire()
        finally:
            for node in followers:
                node.start()
            for node in ensemble.nodes:
                node.wait()
        with client.lock(name, ttl=TTL, wait=30) as successor:
            assert successor.token > lease.token


@pytest.fixture(scope="module")
def divided() -> Iterator[tuple[ZooKeeperEnsemble, list[Proxy]]]:
    """An ensemble whose first server reaches the others through proxies, and is slow to notice that they are gone."""
    with contextlib.ExitStack() as stack:
        proxies: list[Proxy] = []

        def prepare(ensemble: ZooKeeperEnsemble) -> None:
            for node in ensemble.nodes[1:]:
                host, peer, election = node.peer.split(":")
                proxies.append(stack.enter_context(Proxy(host, int(peer))))
                ensemble.nodes[0].settings[f"server.{node.number}"] = f"{host}:{proxies[-1].port}:{election}"
            ensemble.nodes[0].settings["syncLimit"] = "300"

        yield stack.enter_context(running_ensemble(prepare)), proxies


@pytest.mark.parametrize("phase", [0.0, 0.1, 0.2, 0.35])
def test_a_follower_that_is_cut_off_from_its_leader_keeps_nobody_believing(
    divided: tuple[ZooKeeperEnsemble, list[Proxy]], phase: float
) -> None:
    """It goes on answering pings and questions, while the leader ends the session and lets the next one in."""
    ensemble, proxies = divided
    lonely, ttl, name = ensemble.nodes[0], 1.0, fresh_name()
    assert lonely.mode() == "follower"
    with (
        Leasehold(ensemble.url_of(lonely), request_timeout=0.5) as holder,
        client_at(ensemble, ensemble.leader()) as other,
    ):
        lease = holder.lock(name, ttl=ttl, wait=5).acquire()
        time.sleep(ttl + phase)
        lease.check()
        try:
            for proxy in proxies:
                proxy.black_hole()
            assert lonely.mode() == "follower", "it has noticed nothing"
            with other.lock(name, ttl=ttl, wait=20) as successor:
                granted_at = boot_clock()
                assert successor.token > lease.token
            assert lease.valid_until <= granted_at, "two believed at the same time"
            assert lease.lost
        finally:
            for proxy in proxies:
                proxy.heal()
            # What it was told meanwhile is lost; a write through it shows that it follows its leader again.
            with Leasehold(ensemble.url_of(lonely)) as probe, probe.lock(fresh_name(), ttl=TTL, wait=30):
                eventually(lambda: lonely.mode() == "follower", 10.0)
