"""The benchmark on a real PostgreSQL server, in tiny rounds."""

from __future__ import annotations

import pytest
from tests.bench.test_running import TINY
from tests.support.postgres_server import PASSWORD, PostgresServer, running_postgres

from leasehold.bench import contended, run, uncontended
from leasehold.bench.results import Results

pytestmark = pytest.mark.nightly


def left_by_the_benchmark(server: PostgresServer) -> list[tuple[str]]:
    return server.sql(
        "SELECT namespace FROM leasehold_lease WHERE namespace LIKE 'leasehold-bench%' "
        "UNION SELECT tablename FROM pg_tables WHERE tablename LIKE 'leasehold-bench%'"
    )


@pytest.fixture(scope="module")
def results() -> Results:
    with running_postgres() as server:
        found = run(server.url, ["uncontended", "contended"], TINY, quiet=True)
        assert left_by_the_benchmark(server) == [], "it clears up"
        return found


def test_leasehold_is_measured_beside_the_floor_and_a_lock_by_hand(results: Results) -> None:
    assert not results.failed
    takes, crowd = results.tables
    assert takes.rows[0].who.startswith("floor")
    assert takes.rows[0].figures[uncontended.RATIO].value == 1.0
    assert {"Leasehold", "Leasehold (asyncio)", "pg_advisory_lock by hand, psycopg"} <= {row.who for row in takes.rows}
    assert [row.who for row in crowd.rows][:2] == ["Leasehold", "pg_advisory_lock by hand, psycopg"]
    assert crowd.rows[0].figures[contended.CHANGES].value > 0


def test_versions_are_told_and_passwords_are_not(results: Results) -> None:
    assert results.versions["PostgreSQL"].partition(".")[0].isdigit()
    assert PASSWORD not in results.to_json()
