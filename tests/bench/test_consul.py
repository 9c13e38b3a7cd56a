"""The benchmark on a real Consul, in tiny rounds."""

from __future__ import annotations

import urllib.error
import urllib.request

import pytest
from tests.bench.test_running import TINY
from tests.support.consul_server import running_consul

from leasehold import EngineUnavailable
from leasehold.bench import contended, run, uncontended
from leasehold.testing.ports import free_port

pytestmark = pytest.mark.nightly


def test_leasehold_is_measured_beside_the_floor_and_a_lock_by_hand() -> None:
    with running_consul() as server:
        results = run(server.url, ["uncontended", "contended"], TINY, quiet=True)
        with pytest.raises(urllib.error.HTTPError, match="404") as absent:  # it clears up
            urllib.request.urlopen(f"http://127.0.0.1:{server.port}/v1/kv/leasehold/?keys", timeout=10)
        absent.value.close()
    assert not results.failed
    takes, crowd = results.tables
    assert takes.rows[0].who.startswith("floor")
    assert takes.rows[0].figures[uncontended.RATIO].value == 1.0
    assert {"Leasehold", "Leasehold (asyncio)", "session and key by hand, py-consul"} <= {row.who for row in takes.rows}
    assert crowd.rows[0].figures[contended.CHANGES].value > 0
    assert results.versions["Consul"].count(".") == 2


def test_an_engine_that_is_away_is_told_as_such() -> None:
    with pytest.raises(EngineUnavailable, match="cannot be reached"):
        run(f"consul://127.0.0.1:{free_port()}", ["uncontended"], TINY, quiet=True)
