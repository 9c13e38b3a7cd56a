"""The contract suite on MariaDB, with leases that live in a connection."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.mariadb_server import under_contract

from leasehold.testing import EngineUnderTest
from leasehold.testing.contract import *  # noqa: F403

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="session")
def engine_under_test() -> Iterator[EngineUnderTest]:
    with under_contract("mariadb+session") as engine:
        yield engine
