"""Election and partitions, on ZooKeeper: kazoo's recipes, and Leasehold's patterns."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from leasehold import Leasehold
from leasehold.bench.patterns import Comparison
from leasehold.bench.places import Place
from leasehold.patterns.election import Election
from leasehold.patterns.partitions import Entities, Partitions

PARTITIONS, BOUNDARY, WITHIN = 64, 1, 60
ELECTION_NOTE = "Nobody else stands: a term begins, and ends. kazoo's leader gets no token."
PARTITION_NOTE = (
    f"One member joins, owns all {PARTITIONS} partitions, and leaves. kazoo's `time_boundary`, in which members must "
    f"not change, is set to {BOUNDARY} s; its default of 30 s would be all that is seen. It gives no token."
)


@contextlib.contextmanager
def comparisons(place: Place, _runner: asyncio.Runner) -> Iterator[list[Comparison]]:
    """A term of an election, and joining a group of one."""
    client = importlib.import_module("kazoo.client").KazooClient(hosts=urlsplit(place.on).netloc)
    client.start(timeout=30)
    try:
        with Leasehold(place.on, namespace=place.namespace) as locks:
            yield [_election(place, client, locks), _partitions(place, client, locks)]
    finally:
        client.stop()
        client.close()


def _election(place: Place, client: Any, locks: Leasehold) -> Comparison:
    theirs = client.Election(f"/{place.namespace}-election", "a worker")
    ours = Election(locks, "leader", ttl=15)

    def lead(_number: int) -> None:
        with ours.lead():
            pass

    uses = {"kazoo Election": lambda _number: theirs.run(lambda: None), "Leasehold Election": lead}
    return Comparison("Election: one term", uses, [ELECTION_NOTE])


def _partitions(place: Place, client: Any, locks: Leasehold) -> Comparison:
    def theirs(number: int) -> None:
        partitioner = client.SetPartitioner(
            path=f"/{place.namespace}-partitions-{number}", set=tuple(range(PARTITIONS)), time_boundary=BOUNDARY
        )
        while not partitioner.acquired:
            if partitioner.failed:
                raise RuntimeError("the partitioner has failed")
            partitioner.wait_for_acquire(WITHIN)
        if len(list(partitioner)) != PARTITIONS:
            raise RuntimeError("not all partitions were had")
        partitioner.finish()

    def ours(number: int) -> None:
        with Partitions(locks, Entities(f"group-{number}", partitions=PARTITIONS)) as member:
            member.wait_owned(PARTITIONS, within=WITHIN)

    uses = {"kazoo SetPartitioner": theirs, "Leasehold Partitions": ours}
    return Comparison(f"Partitions: one member owns {PARTITIONS}, and leaves", uses, [PARTITION_NOTE], rarely=20)
