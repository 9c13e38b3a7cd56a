"""The contract suite on a quorum of three Redis servers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.redlock_servers import running_quorum

import servers
from leasehold.testing import EngineUnderTest
from leasehold.testing.contract import *  # noqa: F403

INTERRUPTIONS = 60


@pytest.fixture(scope="session")
def engine_under_test() -> Iterator[EngineUnderTest]:
    given = servers.given_url("redlock")
    if given:
        yield EngineUnderTest(url=given, interruptions=INTERRUPTIONS)
        return
    with running_quorum(3) as quorum:
        yield EngineUnderTest(
            url=quorum.url,
            pause=quorum.pause,
            resume=quorum.resume,
            restart=quorum.restart,
            interruptions=INTERRUPTIONS,
        )
