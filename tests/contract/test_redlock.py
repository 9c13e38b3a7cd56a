"""The contract suite on a quorum of three Redis servers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.redlock_servers import running_quorum

from leasehold.testing import EngineUnderTest
from leasehold.testing.contract import *  # noqa: F403

INTERRUPTIONS = 60


@pytest.fixture(scope="session")
def engine_under_test() -> Iterator[EngineUnderTest]:
    with running_quorum(3) as quorum:
        yield EngineUnderTest(
            url=quorum.url,
            pause=quorum.pause,
            resume=quorum.resume,
            restart=quorum.restart,
            interruptions=INTERRUPTIONS,
        )
