"""A short history on every engine: a holder stalls, another dies, and neither token nor fenced update is lost.

All engines are run at the same time, a few at once, since a run mostly waits. `make nightly` has the long matrix.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.support.server_process import memory_folder

from leasehold import engines, wires
from leasehold.chaos.running import Outcome, Plan, run
from leasehold.chaos.schedule import How
from leasehold.chaos.servers import started
from leasehold.chaos.site import Server

TTL = 1.0
SEED = 11  # with it, a kill and a pause both begin within two seconds
AT_ONCE = 4
SAFETY = ("token order", "stale writes", "lost updates", "linearizable", "partitions")


@dataclass(frozen=True)
class Row:
    """What is run on one engine."""

    engine: str
    workload: str = "register"
    faults: tuple[str, ...] = ("pause-in-gap", "kill")
    members: int = 1
    seconds: float = 3.0
    workers: int = 2
    how: How = "alone"


SHORT = (
    (Row("redlock", members=3),),  # those that take longest to start come first
    (Row("zookeeper", "queue"),),
    (Row("mariadb", "bank"), Row("mariadb+session")),  # one server for both
    (Row("postgresql", "counter"), Row("postgresql+session")),
    (Row("consul"),),
    (Row("etcd", "set"),),
    (Row("sqlite", "bank"),),
    (Row("redis", faults=("failover", "kill"), members=2),),
    (Row("valkey", "partitions", ("late-grant", "pause-in-gap"), seconds=4.0),),
)


@contextmanager
def engine(row: Row, folder: Path) -> Iterator[tuple[str, list[Server]]]:
    if row.engine == "sqlite":
        yield f"sqlite:///{folder}/leases.db", []
        return
    servers = folder / "servers"
    servers.mkdir()
    disks = not {"power-loss", "full-disk"}.isdisjoint(row.faults)
    with started(row.engine, servers, members=row.members, witness=disks) as (url, own):
        yield url, own


def until_all_struck(row: Row, url: str, folder: Path, servers: list[Server]) -> Outcome:
    """Run until every fault has struck somebody; a machine that is busy needs more time for that."""
    plan = Plan(
        url,
        row.workload,
        row.faults,
        row.how,
        seed=SEED,
        seconds=row.seconds,
        ttl=TTL,
        wait=2 * TTL,
        workers=row.workers,
    )
    struck = []
    for attempt in range(5):
        place = folder / f"{row.engine}-{attempt}"
        place.mkdir()
        outcome = run(plan, place, servers, folder / "leases.db")
        struck.append(outcome.struck)
        if all(outcome.struck.values()):
            return outcome
    pytest.fail(f"not every fault has struck anybody: {struck}")


def outcomes_of(rows: Sequence[Row]) -> dict[str, Outcome]:
    """Of runs on one server, one after the other."""
    with memory_folder() as folder, engine(rows[0], folder) as (url, servers):
        address = url[url.index(":") :]
        scheme = url[: url.index(":")]
        return {
            row.engine: until_all_struck(row, (scheme if row is rows[0] else row.engine) + address, folder, servers)
            for row in rows
        }


@pytest.fixture(scope="module")
def outcomes() -> Iterator[dict[str, Future[dict[str, Outcome]]]]:
    """What comes of each engine's run, as soon as it is known."""
    for package in (engines, wires):
        # Before there are threads: pytest rewrites what is imported, and two at once upset the parser of Python 3.11.
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        started = [(rows, pool.submit(outcomes_of, rows)) for rows in SHORT]
        yield {row.engine: outcome for rows, outcome in started for row in rows}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", [row.engine for rows in SHORT for row in rows])
def test_the_fence_loses_nothing_and_tokens_increase(
    name: str, outcomes: dict[str, Future[dict[str, Outcome]]]
) -> None:
    outcome = outcomes[name].result()[name]
    verdicts = {verdict.name: verdict for verdict in outcome.verdicts}
    for claim in SAFETY:
        verdict = verdicts[claim]
        assert verdict.status in ("held", "not asked"), "\n".join(map(str, (*verdict.violations, *outcome.history)))
    assert verdicts["stale writes"].judged > 0
    assert verdicts["token order"].judged + verdicts["partitions"].judged > 0
    assert verdicts["told"].figures["never told"] == 0, verdicts["told"].violations
    assert [event.kind for event in outcome.history if event.worker == "run"][-1] == "end"
    assert not next(event for event in outcome.history if event.kind == "end").detail["hung"]
