"""The contract suite on MySQL, with leases that live in a connection."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.mariadb_server import under_contract

from leasehold.testing import EngineUnderTest
from leasehold.testing.contract import *  # noqa: F403


@pytest.fixture(scope="session")
def engine_under_test() -> Iterator[EngineUnderTest]:
    with under_contract("mysql+session") as engine:
        yield engine
