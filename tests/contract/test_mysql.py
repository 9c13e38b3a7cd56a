"""The contract suite on MySQL or MariaDB."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.mariadb_server import running_mariadb

import servers
from leasehold.testing import EngineUnderTest
from leasehold.testing.contract import *  # noqa: F403

TABLES = "leasehold_meta, leasehold_lease, leasehold_seat, leasehold_waiter, leasehold_wake"
INTERRUPTIONS = 100


@pytest.fixture(scope="session")
def engine_under_test() -> Iterator[EngineUnderTest]:
    given = servers.given_url("mysql") or servers.given_url("mariadb")
    if given:
        yield EngineUnderTest(url=given, interruptions=INTERRUPTIONS)
        return
    with running_mariadb() as server:
        yield EngineUnderTest(
            url=server.url,
            pause=server.pause,
            resume=server.resume,
            restart=server.restart,
            wipe=lambda: server.sql(f"DROP TABLE {', '.join(f'leasehold.{table}' for table in TABLES.split(', '))}"),
            address=("127.0.0.1", server.port),
            url_at=server.url_at,
            interruptions=INTERRUPTIONS,
        )
