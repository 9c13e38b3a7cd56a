"""The contract suite on etcd."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.etcd_server import running_etcd
from tests.support.server_process import memory_folder

import servers
from leasehold.testing import EngineUnderTest
from leasehold.testing.contract import *  # noqa: F403

INTERRUPTIONS = 60
TURN = 12.0
"""A waiter that died keeps its place until its session of 5 s ends; 11 s were seen on a busy machine, and not why."""
SLACK = 1.5
"""A restart gives each session its whole TTL anew."""
QUICK = ("--heartbeat-interval=50", "--election-timeout=500")
"""So a session may be as short as one second."""


@pytest.fixture(scope="session")
def engine_under_test() -> Iterator[EngineUnderTest]:
    given = servers.given_url("etcd")
    if given:
        yield EngineUnderTest(url=given, interruptions=INTERRUPTIONS, turn=TURN, slack=SLACK)
        return
    with memory_folder() as memory, running_etcd(memory, settings=QUICK) as server:
        yield EngineUnderTest(
            url=server.url,
            pause=server.pause,
            resume=server.resume,
            restart=server.restart,
            address=("127.0.0.1", server.port),
            url_at=lambda host, port: f"etcd://{host}:{port}",
            interruptions=INTERRUPTIONS,
            turn=TURN,
            slack=SLACK,
        )
