"""The benchmark on a real MariaDB server, in tiny rounds."""

from __future__ import annotations

import pytest
from tests.bench.test_running import TINY
from tests.support.mariadb_server import PASSWORD, MariadbServer, running_mariadb

from leasehold.bench import contended, run, uncontended
from leasehold.bench.results import Results

pytestmark = pytest.mark.nightly

BY_HAND = "GET_LOCK by hand, PyMySQL"


def left_by_the_benchmark(server: MariadbServer) -> list[tuple[str]]:
    return server.sql(
        "SELECT CONVERT(namespace USING utf8mb4) FROM leasehold.leasehold_lease "
        "WHERE namespace LIKE 'leasehold-bench%' "
        "UNION SELECT CONVERT(table_name USING utf8mb4) FROM information_schema.tables "
        "WHERE table_name LIKE 'leasehold-bench%'"
    )


@pytest.fixture(scope="module")
def results() -> Results:
    with running_mariadb() as server:
        found = run(server.url, ["uncontended", "contended"], TINY, quiet=True)
        assert left_by_the_benchmark(server) == [], "it clears up"
        return found


def test_leasehold_is_measured_beside_the_floor_and_a_lock_by_hand(results: Results) -> None:
    assert not results.failed
    takes, crowd = results.tables
    assert takes.rows[0].who.startswith("floor")
    assert takes.rows[0].figures[uncontended.RATIO].value == 1.0
    assert {"Leasehold", "Leasehold (asyncio)", BY_HAND} <= {row.who for row in takes.rows}
    assert [row.who for row in crowd.rows][:2] == ["Leasehold", BY_HAND]
    assert crowd.rows[0].figures[contended.CHANGES].value > 0


def test_versions_are_told_and_passwords_are_not(results: Results) -> None:
    assert "MariaDB" in results.versions["MySQL/MariaDB"]
    assert PASSWORD not in results.to_json()
