"""The benchmark on a real etcd, in tiny rounds."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.bench.test_running import TINY
from tests.support.etcd_server import running_etcd

from leasehold import EngineUnavailable
from leasehold.bench import contended, run, uncontended
from leasehold.testing.ports import free_port

pytestmark = pytest.mark.nightly


def test_leasehold_is_measured_beside_the_floor(tmp_path: Path) -> None:
    with running_etcd(tmp_path) as server:
        results = run(server.url, ["uncontended", "contended"], TINY, quiet=True)
        assert server.keys() == [], "it clears up"
    assert not results.failed
    takes, crowd = results.tables
    assert takes.rows[0].who.startswith("floor")
    assert takes.rows[0].figures[uncontended.RATIO].value == 1.0
    assert {"Leasehold", "Leasehold (asyncio)", "etcd3gw Lock", "etcd-client-py"} <= {row.who for row in takes.rows}
    assert crowd.rows[0].figures[contended.CHANGES].value > 0
    assert results.versions["etcd"].startswith("3.")


def test_an_engine_that_is_away_is_told_as_such() -> None:
    with pytest.raises(EngineUnavailable, match="cannot be reached"):
        run(f"etcd://127.0.0.1:{free_port()}", ["uncontended"], TINY, quiet=True)
