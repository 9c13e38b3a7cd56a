"""The Redis engine on real Clusters: names are routed, and stay held while slots move and primaries die."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
from tests.engines.redis_help import WORLDS, Caller, calling, fresh_name, want
from tests.support.redis_cluster import ClusterOfServers, eventually, running_cluster
from tests.support.redis_server import RedisServer

from leasehold import EngineUnavailable, GuaranteeTooWeak, Leasehold, NotAcquired, OutcomeUnknown
from leasehold.core.engine import Busy, Grant, Renewal, Want
from leasehold.engines.redis_cluster import ClusterFamily, open_engine
from leasehold.engines.redis_keys import keys_of

SOON = 20.0
"""Woken, not by the end of a lease: those here last for minutes."""
LONG = 300.0


def family_at(on: object) -> ClusterFamily:
    return open_engine(on, namespace="", client_label="tests")


@pytest.fixture(scope="module")
def cluster() -> Iterator[ClusterOfServers]:
    with running_cluster() as cluster:
        yield cluster


def at_work(cluster: ClusterOfServers, world: str) -> AbstractContextManager[Caller]:
    family: Any = family_at(cluster.url)  # its engines have the same operations as those of a single server
    return calling(family, world, seconds=SOON)


@pytest.fixture(params=WORLDS)
def caller(cluster: ClusterOfServers, request: pytest.FixtureRequest) -> Iterator[Caller]:
    with at_work(cluster, request.param) as caller:
        yield caller


@pytest.fixture
def other(cluster: ClusterOfServers) -> Iterator[Caller]:
    """Who holds while the caller waits: a thread cannot do both at once."""
    with at_work(cluster, "blocking") as other:
        yield other


class Place:
    """A fresh name, the slot it is in, who serves that, and another primary that could."""

    def __init__(self, cluster: ClusterOfServers, name: str | None = None) -> None:
        self.cluster, self.name = cluster, name or fresh_name()
        self.slot = family_at(cluster.url).slot_of(self.name)
        self.source = cluster.owner_of(self.slot)
        self.target = next(node for node in cluster.primaries if node is not self.source)

    def begin(self) -> None:
        self.cluster.begin_moving(self.slot, self.source, self.target)

    def move_keys(self) -> int:
        return self.cluster.move_keys(self.slot, self.source, self.target)

    def end(self) -> None:
        self.cluster.end_moving(self.slot, self.target)

    def move(self) -> None:
        self.cluster.move(self.slot, self.source, self.target)


def renewal(wanted: Want, grant: Grant) -> Renewal:
    return Renewal(wanted.name, wanted.holder, grant.token, wanted.ttl)


def test_a_slot_is_the_one_that_the_server_computes(cluster: ClusterOfServers) -> None:
    family = family_at(cluster.url)
    for name in ("plain", "with {braces}", "äöü", "a:b%c"):
        assert {cluster.primaries[0].ask("CLUSTER", "KEYSLOT", key) for key in keys_of("", name)} == {
            family.slot_of(name)
        }


def test_names_of_every_node_are_served_together(cluster: ClusterOfServers, caller: Caller) -> None:
    wants = [want(fresh_name(), ttl=LONG) for _ in range(40)]
    assert len({Place(cluster, one.name).source.port for one in wants[:12]}) == 3
    grants = [caller.take(one) for one in wants]
    assert all(isinstance(grant, Grant) for grant in grants)
    assert sorted({grant.token for grant in grants}) == [grant.token for grant in grants], "one floor for all nodes"
    assert caller.renew([renewal(*pair) for pair in zip(wants, grants, strict=True)]) == [True] * 40
    statuses = caller.statuses([one.name for one in wants])
    assert [one.token for one in statuses] == [grant.token for grant in grants]
    listed = caller.names(after=None, limit=1000)
    assert listed == sorted(listed)
    assert {one.name for one in wants} <= set(listed)
    assert caller.names(after=listed[4], limit=7) == listed[5:12]
    assert {one.name for one in wants} <= rolled(caller)
    assert caller.force_release(wants[0].name) > grants[-1].token
    assert [caller.release(one.name, one.holder) for one in wants] == [False, *[True] * 39]
    assert not {one.name for one in wants} & set(caller.names(after=None, limit=1000))


def rolled(caller: Caller) -> set[str]:
    names: set[str] = set()
    at = ""
    while True:
        some, at = caller.roll(at=at)
        names.update(one.name for one in some)
        if not at:
            return names


def test_a_waiter_is_woken_by_a_channel_of_its_slot(cluster: ClusterOfServers, caller: Caller, other: Caller) -> None:
    for _ in range(6):  # on each of the nodes
        place = Place(cluster)
        first, second = want(place.name, ttl=LONG), want(place.name, ttl=LONG)
        other.take(first)
        assert isinstance(caller.take(second, patience=LONG), Busy)
        (channel,) = [
            one for one in place.source.ask("PUBSUB", "SHARDCHANNELS") if f"{{:{place.name}}}".encode() in one
        ]
        assert place.source.ask("CLUSTER", "KEYSLOT", channel) == place.slot
        other.release(place.name, first.holder)
        assert caller.wait(second, LONG) < SOON
        assert isinstance(caller.take(second, patience=LONG), Grant)
        caller.release(place.name, second.holder)


def test_a_lease_stays_held_when_its_slot_has_moved(cluster: ClusterOfServers, caller: Caller) -> None:
    place = Place(cluster)
    mine = want(place.name, ttl=LONG)
    grant = caller.take(mine)
    place.move()
    assert cluster.owner_of(place.slot) is place.target
    assert caller.renew([renewal(mine, grant)]) == [True]
    refused = caller.take(want(place.name))
    assert isinstance(refused, Busy)
    assert refused.incumbent is not None
    assert refused.incumbent.token == grant.token
    assert caller.status(place.name).token == grant.token
    assert caller.release(place.name, mine.holder)
    assert caller.take(want(place.name, ttl=1.0)).token > grant.token


def test_many_leases_are_renewed_when_the_slot_of_one_has_moved(cluster: ClusterOfServers, caller: Caller) -> None:
    wants = [want(fresh_name(), ttl=LONG) for _ in range(30)]
    grants = [caller.take(one) for one in wants]
    Place(cluster, wants[7].name).move()
    assert caller.renew([renewal(*pair) for pair in zip(wants, grants, strict=True)]) == [True] * 30
    for one in wants:
        assert caller.release(one.name, one.holder)


def test_a_waiter_hears_that_its_slot_has_moved_and_goes_there(
    cluster: ClusterOfServers, caller: Caller, other: Caller
) -> None:
    place = Place(cluster)
    first, second = want(place.name, ttl=LONG), want(place.name, ttl=LONG)
    grant = other.take(first)
    assert isinstance(caller.take(second, patience=LONG), Busy)
    place.move()
    assert caller.wait(second, LONG) < SOON
    assert isinstance(caller.take(second, patience=LONG), Busy)
    assert other.release(place.name, first.holder)
    assert caller.wait(second, LONG) < SOON
    assert caller.take(second, patience=LONG).token > grant.token
    assert caller.release(place.name, second.holder)


def test_while_a_slot_moves_its_names_are_closed_and_others_are_not(cluster: ClusterOfServers, caller: Caller) -> None:
    place = Place(cluster)
    wants = [want(fresh_name(), ttl=LONG) for _ in range(12)]
    grants = [caller.take(one) for one in wants]
    mine = want(place.name, ttl=LONG)
    grant = caller.take(mine)
    place.begin()
    try:
        with pytest.raises(EngineUnavailable, match="TRYAGAIN"):
            caller.take(want(place.name))
        with pytest.raises(EngineUnavailable, match="TRYAGAIN"):
            caller.renew([renewal(mine, grant)])
        everybody = [renewal(mine, grant), *(renewal(*pair) for pair in zip(wants, grants, strict=True))]
        assert caller.renew(everybody) == [None, *[True] * 12]
        assert place.move_keys() == 1
        with pytest.raises(EngineUnavailable, match="TRYAGAIN"):
            caller.release(place.name, mine.holder)
    finally:
        place.end()
    assert caller.renew(everybody) == [True] * 13
    for one in [mine, *wants]:
        assert caller.release(one.name, one.holder)


def test_a_name_all_of_whose_keys_have_moved_is_served_where_the_slot_goes(
    cluster: ClusterOfServers, caller: Caller
) -> None:
    place = Place(cluster)
    reader, writer = want(place.name, ttl=LONG, mode="shared"), want(place.name, ttl=LONG)
    grant = caller.take(reader)
    assert isinstance(caller.take(writer, patience=LONG), Busy)
    place.begin()
    try:
        assert place.move_keys() == 6
        with pytest.raises(Exception, match=r"^ASK "):
            place.source.ask("GET", f"lh:{{:{place.name}}}:l")
        assert caller.renew([renewal(reader, grant)]) == [True]
        assert isinstance(caller.take(writer, patience=LONG), Busy)
        assert caller.wait(writer, 0.3) > 0.25, "it waits where it was queued, and does not ask in circles"
        status = caller.status(place.name)
        assert (len(status.holders), len(status.waiters)) == (1, 1)
    finally:
        place.end()
    assert caller.release(place.name, reader.holder)
    assert caller.take(writer, patience=LONG).token > grant.token
    assert caller.release(place.name, writer.holder)


def test_an_acquire_waits_for_the_end_of_a_move_and_not_longer_than_told(cluster: ClusterOfServers) -> None:
    place = Place(cluster)
    ends = threading.Timer(0.5, place.end)
    place.begin()
    with Leasehold(cluster.url) as locks:
        try:
            with pytest.raises(EngineUnavailable, match="TRYAGAIN"):
                locks.lock(place.name, wait=0.5).acquire()
        finally:
            ends.start()
        with locks.lock(place.name, wait=60) as lease:
            assert lease.token > 0
        ends.join()


def test_correctness_is_refused(cluster: ClusterOfServers) -> None:
    with Leasehold(cluster.url) as locks, pytest.raises(GuaranteeTooWeak, match="lack the latest tokens"):
        locks.lock("any", purpose="correctness").acquire()


def test_several_names_on_several_nodes_are_all_or_nothing(cluster: ClusterOfServers) -> None:
    names = [fresh_name() for _ in range(9)]

    def held() -> list[str]:
        return [name for name in names if (status := locks.status(name)) is not None and status.holders]

    with Leasehold(cluster.url) as locks, Leasehold(cluster.url) as others:
        with others.lock(names[5], ttl=60):
            with pytest.raises(NotAcquired):
                locks.several(names, wait=0).acquire()
            assert held() == [names[5]]
        with locks.several(names, wait=30):
            assert held() == names


def crash_of_a_primary(cluster: ClusterOfServers, caller: Caller, other: Caller) -> None:
    """The replica of the first primary takes its place; what it had been sent goes on, and tokens increase."""
    names = [name for name in (fresh_name() for _ in range(200)) if Place(cluster, name).source is cluster.primaries[0]]
    held, queued, idle = want(names[0], ttl=LONG), want(names[0], ttl=LONG), want(names[1], ttl=LONG)
    elsewhere = want(
        next(one for one in iter(fresh_name, "") if one not in names and is_elsewhere(cluster, one)), ttl=LONG
    )
    first, grant, apart = caller.take(idle), other.take(held), other.take(elsewhere)
    caller.release(idle.name, idle.holder)
    assert isinstance(caller.take(queued, patience=LONG), Busy)
    dying, replica = cluster.primaries[0], cluster.replicas[0]
    eventually(lambda: offset_of(replica, "slave_repl_offset") >= offset_of(dying, "master_repl_offset"), "it is sent")
    dying.kill()
    assert caller.wait(queued, LONG) < SOON, "that its node is gone wakes a waiter"
    again = until_served(caller, idle)
    assert again.token > max(first.token, grant.token)
    assert cluster.owner_of(Place(cluster, idle.name).slot) is replica
    everybody = [renewal(held, grant), renewal(elsewhere, apart), renewal(idle, again)]
    eventually(lambda: bool(other.renew(everybody) == [True, True, True]), "every node knows of the new primary")
    assert isinstance(caller.take(queued, patience=LONG), Busy)
    assert other.release(held.name, held.holder)
    assert caller.wait(queued, LONG) < SOON
    assert caller.take(queued, patience=LONG).token > again.token


def is_elsewhere(cluster: ClusterOfServers, name: str) -> bool:
    return Place(cluster, name).source is not cluster.primaries[0]


def offset_of(node: RedisServer, field: str) -> int:
    lines = dict(line.split(b":", 1) for line in node.ask("INFO", "replication").split(b"\r\n") if b":" in line)
    return int(lines[field.encode()])


def until_served(caller: Caller, wanted: Want) -> Any:
    give_up_at = time.monotonic() + 60
    while True:
        try:
            return caller.take(wanted)
        except (EngineUnavailable, OutcomeUnknown):
            assert time.monotonic() < give_up_at
            caller.pause(0.1)


@pytest.mark.parametrize("world", ["blocking", pytest.param("asyncio", marks=pytest.mark.nightly)])
def test_a_replica_takes_over_when_its_primary_dies(world: str) -> None:
    with (
        running_cluster(3, 1, timeout_ms=1500) as cluster,
        at_work(cluster, world) as caller,
        at_work(cluster, "blocking") as other,
    ):
        crash_of_a_primary(cluster, caller, other)


def test_a_floor_seen_at_one_node_counts_at_all(cluster: ClusterOfServers, caller: Caller) -> None:
    places = [Place(cluster) for _ in range(12)]
    token = caller.take(want(places[0].name, ttl=1.0)).token
    engine: Any = caller.engine
    family = engine._family.shared
    assert family.seen.grant_from(b"%d" % (token + 10**12)) is not None
    other = next(one for one in places if one.source is not places[0].source)
    assert caller.take(want(other.name, ttl=1.0)).token == token + 10**12 + 1
