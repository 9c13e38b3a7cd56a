"""What every test can rely on, however the suite was started."""

from __future__ import annotations

import gc
import os
import signal

import pytest
from hypothesis import HealthCheck, settings
from tests.support.stalls import stalls_are_no_failures

import servers

# Where the servers are that were unpacked for the tests, in the words of those who start servers of their own.
os.environ.setdefault("LEASEHOLD_SERVERS", str(servers.CACHE))

CONTRACT = "tests/contract/test_contract.py"
MYSQL = "tests/contract/test_mysql"
CLUSTER = "tests/contract/test_redis_cluster.py"

# Started in the background or under nohup, a process inherits that these are ignored, and would hand that on to every
# child; the tests about Ctrl-C and hang-ups need them as a terminal gives them.
signal.signal(signal.SIGINT, signal.default_int_handler)
for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
    signal.signal(number, signal.SIG_DFL)


# A busy machine is not unhealthy, and no test here is about speed.
settings.register_profile("busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy machine")


def pytest_configure(config: pytest.Config) -> None:
    stalls_are_no_failures(config)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        # Valkey is asked by the same words as Redis; its own tests of the server stay.
        if item.nodeid.startswith(CONTRACT) and "[valkey" in item.nodeid:
            item.add_marker(pytest.mark.nightly)
        # What waits in asyncio waits for MariaDB in the same way.
        if item.nodeid.startswith(MYSQL) and "asyncio" in item.nodeid.partition("[")[2]:
            item.add_marker(pytest.mark.nightly)
        # Each node of a cluster runs the scripts of one server: by day, taking and giving back are enough beside what a
        # cluster has of its own, which is in tests/engines.
        if item.nodeid.startswith(CLUSTER) and not (
            isinstance(item, pytest.Function) and item.function.__module__ == "leasehold.testing.contract.releasing"
        ):
            item.add_marker(pytest.mark.nightly)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Leave what all the imported test modules brought along out of every collection of garbage from here on.

    Going through it takes a second during which no thread runs: longer than the leases of many tests.
    """
    gc.collect()
    gc.freeze()
