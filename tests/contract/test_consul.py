"""The contract suite on Consul."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.consul_server import running_consul

import servers
from leasehold.testing import EngineUnderTest
from leasehold.testing.contract import *  # noqa: F403

INTERRUPTIONS = 50
TURN = 11.0
"""A waiter that died keeps its place until its session ends, which has a TTL of 5 s here: after twice as long."""


@pytest.fixture(scope="session")
def engine_under_test() -> Iterator[EngineUnderTest]:
    given = servers.given_url("consul")
    if given:
        yield EngineUnderTest(url=given, interruptions=INTERRUPTIONS, turn=2 * TURN)
        return
    with running_consul() as server:
        yield EngineUnderTest(
            url=server.url,
            pause=server.pause,
            resume=server.resume,
            restart=server.restart,
            address=("127.0.0.1", server.port),
            url_at=server.url_at,
            interruptions=INTERRUPTIONS,
            turn=TURN,
        )
