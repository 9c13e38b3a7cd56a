"""Goals of cost and fairness that the benchmark does not time: counted here, on real engines."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Iterator

import pytest

from leasehold import Leasehold, NotAcquired
from leasehold.bench.places import Place, private_places
from leasehold.bench.resp import BareSocket
from leasehold.wires.sqlite_file import lease_file
from leasehold.worlds import boot_clock

ENGINES = ("sqlite", "redis")


@pytest.fixture(scope="module")
def places() -> Iterator[dict[str, Place]]:
    with private_places() as (both, missing):
        assert not missing, missing
        yield {place.engine: place for place in both}


def everything_on(place: Place) -> int:
    """How many keys, or rows, there are."""
    if place.speaks_redis:
        with BareSocket(place.on) as server:
            return len(list(server.scan("*")))
    with contextlib.closing(sqlite3.connect(lease_file(place.on).path)) as connection:
        tables = [name for [name] in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        return sum(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables)


@pytest.mark.parametrize("engine", ENGINES)
def test_failed_attempts_leave_nothing_behind(places: dict[str, Place], engine: str) -> None:
    place = places[engine]
    with Leasehold(place.on, namespace=place.namespace) as locks, locks.lock("held"):
        before = everything_on(place)
        for number in range(1000):
            assert locks.lock("held").try_acquire() is None
            if number % 20 == 0:
                with pytest.raises(NotAcquired):
                    locks.lock("held", wait=0.002).acquire()
        assert everything_on(place) == before


@pytest.mark.parametrize("engine", ENGINES)
def test_of_fifty_waiters_each_is_served_within_ten_fair_shares(places: dict[str, Place], engine: str) -> None:
    place, waiters, turns = places[engine], 50, 20  # a starved one would wait for half of the time and more
    waits: list[float] = []
    with Leasehold(place.on, namespace=place.namespace) as locks:
        lock = locks.lock("wanted", wait=60)

        def work() -> None:
            for _ in range(turns):
                asked = boot_clock()
                with lock:
                    waits.append(boot_clock() - asked)

        threads = [threading.Thread(target=work) for _ in range(waiters)]
        began = boot_clock()
        with lock:  # all of them queue before the first is served
            for thread in threads:
                thread.start()
        for thread in threads:
            thread.join()
        fair_share = (boot_clock() - began) / turns
    assert len(waits) == waiters * turns
    assert max(waits) <= 10 * fair_share
