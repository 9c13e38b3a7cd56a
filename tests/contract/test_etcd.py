"""The contract suite on etcd."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.etcd_server import running_etcd

import servers
from leasehold.testing import EngineUnderTest
from leasehold.testing.contract import *  # noqa: F403

INTERRUPTIONS = 150
SLACK = 2.5
"""Etcd looks for ended sessions twice a second, and a restart gives each of them its whole TTL anew."""


@pytest.fixture(scope="session")
def engine_under_test(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineUnderTest]:
    given = servers.given_url("etcd")
    if given:
        yield EngineUnderTest(url=given, interruptions=INTERRUPTIONS, slack=SLACK)
        return
    with running_etcd(tmp_path_factory.mktemp("etcd")) as server:
        yield EngineUnderTest(
            url=server.url,
            pause=server.pause,
            resume=server.resume,
            restart=server.restart,
            address=("127.0.0.1", server.port),
            url_at=lambda host, port: f"etcd://{host}:{port}",
            interruptions=INTERRUPTIONS,
            slack=SLACK,
        )
