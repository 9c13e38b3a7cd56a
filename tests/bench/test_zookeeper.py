"""The benchmark on a real ZooKeeper, in tiny rounds."""

from __future__ import annotations

import socket

import pytest
from kazoo.client import KazooClient  # type: ignore[import-untyped]
from tests.bench.test_running import TINY
from tests.support.zookeeper_server import running_zookeeper

from leasehold import EngineUnavailable
from leasehold.bench import contended, run, uncontended
from leasehold.bench.effort import Run, Steps
from leasehold.bench.places import private_places
from leasehold.testing.ports import free_port
from leasehold.wires.zookeeper_address import address_from_url

pytestmark = pytest.mark.nightly


def test_leasehold_is_measured_beside_the_floor() -> None:
    with running_zookeeper() as server:
        results = run(server.url, ["uncontended", "contended"], TINY, quiet=True)
        assert server.ephemerals() == [], "it clears up"
        client = KazooClient(hosts=f"127.0.0.1:{server.port}")
        client.start(timeout=30)
        assert [name for name in client.get_children("/") if "bench" in name] == [], "after peers, too"
        client.stop()
        client.close()
    assert not results.failed
    takes, crowd = results.tables
    assert takes.rows[0].who.startswith("floor")
    assert takes.rows[0].figures[uncontended.RATIO].value == 1.0
    assert {"Leasehold", "Leasehold (asyncio)", "kazoo Lock"} <= {row.who for row in takes.rows}
    assert crowd.rows[0].figures[contended.CHANGES].value > 0
    assert results.versions["ZooKeeper"].startswith("3.")


def test_of_a_cluster_one_member_is_asked_that_does_not_lead() -> None:
    with private_places(["zookeeper*3"]) as ([place], missing):
        assert not missing
        [endpoint] = address_from_url(place.on).endpoints
        with socket.create_connection((endpoint.host, endpoint.port), timeout=5.0) as connection:
            connection.sendall(b"srvr")
            told = b"".join(iter(lambda: connection.recv(4096), b""))
        assert b"Mode: follower" in told
        [table] = uncontended.measure(Run([place], TINY, Steps())).tables
    assert table.title.endswith("on zookeeper*3")
    assert table.rows[0].who.startswith("floor")


def test_an_engine_that_is_away_is_told_as_such() -> None:
    with pytest.raises(EngineUnavailable, match="cannot be reached"):
        run(f"zookeeper://127.0.0.1:{free_port()}", ["uncontended"], TINY, quiet=True)
