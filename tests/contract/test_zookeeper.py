"""The contract suite on ZooKeeper."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.zookeeper_server import running_zookeeper

import servers
from leasehold.testing import EngineUnderTest
from leasehold.testing.contract import *  # noqa: F403

INTERRUPTIONS = 60


@pytest.fixture(scope="session")
def engine_under_test() -> Iterator[EngineUnderTest]:
    given = servers.given_url("zookeeper")
    if given:
        yield EngineUnderTest(url=given, interruptions=INTERRUPTIONS)
        return
    with running_zookeeper() as server:
        yield EngineUnderTest(
            url=server.url,
            pause=server.pause,
            resume=server.resume,
            restart=server.restart,
            address=("127.0.0.1", server.port),
            url_at=server.url_at,
            interruptions=INTERRUPTIONS,
        )
