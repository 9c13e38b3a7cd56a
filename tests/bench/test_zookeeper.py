"""The benchmark on a real ZooKeeper, in tiny rounds."""

from __future__ import annotations

import pytest
from kazoo.client import KazooClient  # type: ignore[import-untyped]
from tests.bench.test_running import TINY
from tests.support.zookeeper_server import running_zookeeper

from leasehold import EngineUnavailable
from leasehold.bench import contended, run, uncontended
from leasehold.testing.ports import free_port

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


def test_an_engine_that_is_away_is_told_as_such() -> None:
    with pytest.raises(EngineUnavailable, match="cannot be reached"):
        run(f"zookeeper://127.0.0.1:{free_port()}", ["uncontended"], TINY, quiet=True)
