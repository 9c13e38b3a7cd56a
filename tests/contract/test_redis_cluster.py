"""The contract suite on a Redis Cluster of three primaries."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.redis_cluster import running_cluster

import servers
from leasehold.testing import EngineUnderTest
from leasehold.testing.contract import *  # noqa: F403

INTERRUPTIONS = 60


@pytest.fixture(scope="session")
def engine_under_test() -> Iterator[EngineUnderTest]:
    given = servers.given_url("redis_cluster")
    if given:
        yield EngineUnderTest(url=given, interruptions=INTERRUPTIONS)
        return
    with running_cluster() as cluster:
        yield EngineUnderTest(
            url=cluster.url,
            pause=cluster.pause,
            resume=cluster.resume,
            restart=cluster.restart,
            wipe=lambda: [node.ask("FLUSHALL") for node in cluster.primaries],
            interruptions=INTERRUPTIONS,
        )
