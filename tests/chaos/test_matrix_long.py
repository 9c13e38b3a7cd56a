"""The long matrix, for `make nightly`: every engine under the faults of its kind, one after the other and in pairs."""

from __future__ import annotations

import pytest
from tests.chaos.test_matrix import SAFETY, Row, outcomes_of

pytestmark = pytest.mark.nightly

WORKERS = ("pause", "pause-in-gap", "kill")
NETWORK = ("host-death", "partition", "partition-replies", "late-grant", "resets")
SERVERS = ("engine-restart", "engine-pause")
LONG = (
    Row("sqlite", "bank", WORKERS, seconds=25.0, workers=4),
    Row("redis", "register", (*WORKERS, *NETWORK, *SERVERS, "power-loss", "revocation"), seconds=60.0, workers=4),
    Row("redis", "partitions", (*WORKERS, *NETWORK, *SERVERS), seconds=50.0, workers=4),
    Row("redis", "payments", (*WORKERS, *NETWORK), seconds=40.0, workers=4),
    Row("valkey", "counter", ("failover", "pause-in-gap", "kill"), members=2, seconds=30.0, workers=4),
    Row("redlock", "register", (*WORKERS, *NETWORK, *SERVERS), members=3, seconds=50.0, workers=4),
    Row("postgresql", "set", (*WORKERS, *NETWORK, *SERVERS, "engine-clock-jump"), seconds=50.0, workers=4),
    Row("postgresql+session", "register", (*WORKERS, "partition", "engine-restart"), seconds=30.0, workers=4),
    Row("mariadb", "queue", (*WORKERS, *NETWORK, *SERVERS), seconds=50.0, workers=4),
    Row("mariadb+session", "register", (*WORKERS, "partition", "engine-restart"), seconds=30.0, workers=4),
    Row("mysql", "bank", (*WORKERS, *NETWORK, *SERVERS, "power-loss"), seconds=50.0, workers=4),
    Row("mysql+session", "register", (*WORKERS, "partition", "engine-restart"), seconds=30.0, workers=4),
    Row("etcd", "register", (*WORKERS, *NETWORK, *SERVERS, "leader-kill"), members=3, seconds=50.0, workers=4),
    Row("consul", "register", (*WORKERS, *NETWORK, "leader-kill"), members=3, seconds=50.0, workers=4),
    Row("zookeeper", "register", (*WORKERS, *NETWORK, "leader-kill"), members=3, seconds=50.0, workers=4),
)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("row", LONG, ids=[f"{row.engine}-{row.workload}" for row in LONG])
def test_every_fault_strikes_and_the_fence_loses_nothing(row: Row) -> None:
    [outcome] = outcomes_of([row]).values()
    verdicts = {verdict.name: verdict for verdict in outcome.verdicts}
    claims = (*SAFETY, "exclusive", "told", "idempotency")
    assert {name: verdicts[name].violations for name in claims if verdicts[name].status == "violated"} == {}
    assert verdicts["stale writes"].judged or verdicts["idempotency"].judged
    assert not next(event for event in outcome.history if event.kind == "end").detail["hung"]
