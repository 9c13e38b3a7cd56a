"""Getting into a Cluster: URLs, client objects, users, TLS; and what is said when that fails."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
from tests.engines.redis_help import WORLDS, calling, want
from tests.engines.test_redis_access import exercise
from tests.engines.test_redis_target import CANARY, assert_hidden
from tests.support.certificates import make_certificates
from tests.support.redis_cluster import ClusterOfServers, running_cluster
from tests.support.redis_server import RedisServer, running

from leasehold import EngineError, EngineUnavailable, InvalidURL, Leasehold, Misuse
from leasehold.engines.redis_cluster import ClusterFamily, open_engine
from leasehold.testing.ports import free_port
from leasehold.wires.redis_cluster_target import cluster_from
from leasehold.wires.redis_replies import NEEDED_RIGHTS
from leasehold.wires.redis_slots import owners_from, redirection
from leasehold.wires.urls import Endpoint

HERE = Endpoint("10.0.0.1", 7000)


@pytest.fixture(params=WORLDS)
def world(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def cluster() -> Iterator[ClusterOfServers]:
    with running_cluster(2) as cluster:
        for node in cluster.nodes:
            for user, rights in (
                ("leases", [*NEEDED_RIGHTS.split(), "+cluster|slots"]),
                ("blind", NEEDED_RIGHTS.split()),
            ):
                node.ask("ACL", "SETUSER", user, "on", f">{CANARY}", "resetchannels", *rights)
            deaf = [right for right in NEEDED_RIGHTS.split() if right != "+@pubsub"]
            node.ask("ACL", "SETUSER", "deaf", "on", f">{CANARY}", *deaf, "+subscribe", "+cluster|slots")
        yield cluster


def family_at(on: object) -> Any:
    return open_engine(on, namespace="", client_label="tests")


def test_urls_that_are_understood() -> None:
    cluster = cluster_from(f"rediss+cluster://me:{CANARY}@a,b:7,[::1]:8,a:6379")
    assert cluster.seeds == (("a", 6379, ""), ("b", 7, ""), ("::1", 8, ""))
    assert cluster.address == "rediss+cluster://a:6379,b:7,[::1]:8"
    assert cluster.entry.credentials() == ("me", CANARY)
    assert cluster.at(HERE).tls is cluster.entry.tls is not None
    assert cluster.at(HERE).address == "rediss://10.0.0.1:7000"
    assert cluster_from("redis+cluster://h").entry.tls is None


@pytest.mark.parametrize(
    "rest",
    [
        "h,", ",h", "h1,h2/3", "h/0x", "h?db=1", f"me@{CANARY}@h", f"u:{CANARY}@h:port", f"u:{CANARY}@h,h:0",
        f"h?password={CANARY}", f"u:{CANARY}@h/name",
    ],
)  # fmt: skip
def test_urls_that_are_refused(rest: str) -> None:
    with pytest.raises(InvalidURL) as refused:
        cluster_from(f"redis+cluster://{rest}")
    assert_hidden(refused.value)


def test_no_secret_shows() -> None:
    family = family_at(f"redis+cluster://me:{CANARY}@127.0.0.1:1,127.0.0.1:2")
    for one in (family, family.cluster, family.facts, family.blocking()):
        assert CANARY not in repr(one)


def test_the_users_of_a_cluster(cluster: ClusterOfServers, world: str) -> None:
    def url(user: str) -> str:
        return cluster.url.replace("://", f"://{user}:{CANARY}@")

    with calling(family_at(url("leases")), world) as engine:
        for _ in range(6):
            exercise(engine)
    with calling(family_at(url("blind")), world) as engine:
        with pytest.raises(EngineUnavailable, match=re.escape("+cluster|slots")) as refused:
            engine.take(want("n"))
        assert_hidden(refused.value)
    with calling(family_at(url("deaf")), world) as engine:
        engine.take(want("deaf"))
        with pytest.raises(EngineError, match="lacks a permission"):
            engine.take(want("deaf"), patience=5.0)
    with calling(family_at(url("nobody")), world) as engine:
        with pytest.raises(EngineUnavailable, match="does not accept this user") as refused:
            engine.take(want("n"))
        assert_hidden(refused.value)


def test_client_objects_open_the_door(cluster: ClusterOfServers, world: str) -> None:
    port = cluster.primaries[1].port
    sync = redis.cluster.RedisCluster(host="127.0.0.1", port=port, username="leases", password=CANARY)
    with calling(family_at(sync), world) as engine:
        exercise(engine)
    with Leasehold(sync) as locks, locks.lock("by-client"):
        assert locks.facts.engine == "redis+cluster"
    sync.close()

    async def settings() -> ClusterFamily:
        client = redis.asyncio.cluster.RedisCluster(host="127.0.0.1", port=port, username="leases", password=CANARY)
        try:
            return open_engine(client, namespace="", client_label="tests")
        finally:
            await client.aclose()

    family: Any = asyncio.run(settings())
    with calling(family, world) as engine:
        exercise(engine)


def test_client_objects_that_cannot_be_taken_over(cluster: ClusterOfServers) -> None:
    port = cluster.primaries[0].port
    remapped = redis.cluster.RedisCluster(host="127.0.0.1", port=port, address_remap=lambda address: address)
    with pytest.raises(Misuse, match="address_remap"):
        family_at(remapped)
    remapped.close()
    with pytest.raises(Misuse, match=re.escape("redis.cluster.RedisCluster")):
        family_at(object())


def test_a_server_that_is_no_cluster_is_told(tmp_path: Path, world: str) -> None:
    with running(RedisServer("redis", tmp_path)) as server:
        url = server.url.replace("redis://", "redis+cluster://")
        with (
            calling(family_at(url), world) as engine,
            pytest.raises(EngineUnavailable, match="is no node of a cluster"),
        ):
            engine.take(want("n"))


def test_a_cluster_that_is_not_there(world: str) -> None:
    url = f"redis+cluster://127.0.0.1:{free_port()},127.0.0.1:{free_port()}"
    with calling(family_at(url), world) as engine:
        for _ in range(2):
            with pytest.raises(EngineUnavailable, match=r"no node of .* could tell .* cannot be reached"):
                engine.take(want("n"))


def test_slots_that_nobody_serves(tmp_path: Path, world: str) -> None:
    with (
        running(RedisServer("redis", tmp_path, "--cluster-enabled", "yes")) as node,
        calling(family_at(node.url.replace("redis://", "redis+cluster://")), world) as engine,
    ):
        with pytest.raises(EngineUnavailable, match="serves slot"):
            engine.take(want("n"))
        with pytest.raises(EngineUnavailable, match="serves any slot"):
            engine.names(after=None, limit=10)


def test_tls_at_every_node(tmp_path: Path, world: str) -> None:
    certificates, port = make_certificates(tmp_path), free_port()
    files = {"cert": "server.pem", "key": "server.key", "ca-cert": "ca.pem"}
    settings = [word for name, file in files.items() for word in (f"--tls-{name}-file", str(certificates / file))]
    query = f"ca={certificates / 'ca.pem'}&cert={certificates / 'server.pem'}&key={certificates / 'server.key'}"
    family = family_at(f"rediss+cluster://127.0.0.1:{port}?{query}")
    secure = ("--tls-cluster", "yes", "--tls-port", str(port), *settings)
    with running_cluster(1, 0, *secure), calling(family, world) as engine:
        exercise(engine)
        assert family.slots.primaries == (Endpoint("127.0.0.1", port),)


def test_a_node_without_an_address_of_its_own_is_where_it_was_asked() -> None:
    owners = owners_from(
        [[0, 1, [b"", 7001, b"id"]], [2, 2, [b"h", 7002, b"id", []], [b"r", 1, b"id"]], [3, 3, [None, 9]]], HERE
    )
    assert owners[:5] == [("10.0.0.1", 7001, "")] * 2 + [("h", 7002, ""), ("10.0.0.1", 9, ""), None]
    assert redirection(":7003", HERE) == ("10.0.0.1", 7003, "")
    assert redirection("?:7003", HERE) == ("10.0.0.1", 7003, "")
    assert redirection("::1:7003", HERE) == ("::1", 7003, "")


@pytest.mark.parametrize(
    "reply",
    [b"OK", None, [1], [[0, 16384, [b"h", 1]]], [[5, 4, [b"h", 1]]], [[0, 1, [b"h", 0]]], [[0, 1]], [[0, 1, []]]],
)
def test_a_map_that_makes_no_sense_is_refused(reply: Any) -> None:
    with pytest.raises(EngineError, match="makes no sense"):
        owners_from(reply, HERE)


@pytest.mark.parametrize("to", ["", "h", "h:", "h:0", "h:65536", "h:x"])
def test_a_redirection_that_makes_no_sense_is_refused(to: str) -> None:
    with pytest.raises(EngineError, match="makes no sense"):
        redirection(to, HERE)
