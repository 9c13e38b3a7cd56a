"""The contract suite on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.postgres_server import running_postgres

import servers
from leasehold.testing import EngineUnderTest
from leasehold.testing.contract import *  # noqa: F403

TABLES = "leasehold_meta, leasehold_lease, leasehold_seat, leasehold_waiter, leasehold_session"
INTERRUPTIONS = 150


@pytest.fixture(scope="session", params=["postgresql"])
def engine_under_test(request: pytest.FixtureRequest) -> Iterator[EngineUnderTest]:
    def address(url: str) -> str:
        return url.replace("postgresql", request.param, 1)

    given = servers.given_url("postgresql")
    if given:
        yield EngineUnderTest(url=address(given), interruptions=INTERRUPTIONS)
        return
    with running_postgres() as server:
        yield EngineUnderTest(
            url=address(server.url),
            pause=server.pause,
            resume=server.resume,
            restart=server.restart,
            wipe=lambda: server.sql(f"DROP TABLE {TABLES}"),
            address=("127.0.0.1", server.port),
            url_at=lambda host, port: address(server.url_at(host, port)),
            interruptions=INTERRUPTIONS,
        )
