"""Partitions are shared in the same way on every engine that has shared leases; the others are refused."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.patterns.conftest import engine_of

from leasehold import Leasehold, NotSupported
from leasehold.patterns.partitions import Entities, Partitions, Writer

COUNT = 8
PATIENT = 60.0
TTL = 20.0


@pytest.fixture(params=["redis", "postgres", "mariadb", "etcd", "zookeeper", "consul"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with engine_of(request.param, request, tmp_path) as url:
        yield url


@pytest.mark.nightly
def test_members_join_share_and_leave(url: str) -> None:
    entities = Entities(f"orders-{time.monotonic_ns()}", COUNT)
    with (
        Leasehold(url, label="one") as one,
        Leasehold(url, label="two") as two,
        Partitions(one, entities, ttl=TTL, every=0.2) as first,
    ):
        first.wait_owned(COUNT, within=PATIENT)
        alone, began, go_on = first.owned, threading.Event(), threading.Event()

        def hold(writer: Writer) -> int:
            began.set()
            assert go_on.wait(PATIENT)
            writer.check()
            return writer.token

        running = first.submit("a", hold)
        assert began.wait(PATIENT)
        with Partitions(two, entities, ttl=TTL, every=0.2) as second:
            second.wait_owned(1, within=PATIENT)
            go_on.set()
            second.wait_owned(COUNT // 2, within=PATIENT)
            assert running.result(PATIENT) == alone[entities.partition_of("a")]
            theirs = second.owned
            assert all(theirs[number] > alone[number] for number in theirs)
            assert not theirs.keys() & first.owned.keys()
            assert len(second.members) == 2
        first.wait_owned(COUNT, within=PATIENT)
        assert all(first.owned[number] > theirs[number] for number in theirs)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql+session://leasehold@127.0.0.1:1/leasehold",
        "mysql+session://leasehold@127.0.0.1:1/leasehold",
        "redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3",
    ],
)
def test_an_engine_without_shared_leases_is_refused_before_anything_is_sent(url: str) -> None:
    with Leasehold(url) as locks, pytest.raises(NotSupported, match="shared"):
        Partitions(locks, Entities("orders"))
