"""The contract suite on every engine of this repository."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.contract.engines import ENGINES

from leasehold.testing import EngineUnderTest
from leasehold.testing.contract import *  # noqa: F403


@pytest.fixture(scope="session", params=ENGINES)
def engine_under_test(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EngineUnderTest]:
    with ENGINES[request.param](tmp_path_factory.mktemp(request.param)) as engine:
        yield engine
