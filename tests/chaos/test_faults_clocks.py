"""Wall clocks of single processes jump and strobe, and show the right time again."""

from __future__ import annotations

import contextlib
import random
import time
from typing import cast

import pytest
from tests.chaos.fault_site import Line, Toy, all_go_on, happens, struck

from leasehold.chaos.servers.process import OwnServer
from leasehold.chaos.site import Site

pytestmark = pytest.mark.nightly


def engine_time(port: int) -> float:
    with contextlib.closing(Line(port)) as one:
        answer = one.ask(b"TIME\r\n")
    assert isinstance(answer, bytes)
    _, _, seconds, _, microseconds, _ = answer.decode().split("\r\n")
    return int(seconds) + int(microseconds) / 1e6


def test_the_clock_of_the_engine_jumps_there_and_back(wires: Site) -> None:
    port, seen = cast(OwnServer, wires.servers[0]).port, set[float]()
    wires.chance = random.Random(1)
    for _ in range(20):
        fault, said = struck(wires, "engine-clock-jump")
        by = cast(float, said["seconds"])
        assert abs(by) == pytest.approx(5 * wires.ttl)
        assert engine_time(port) - time.time() == pytest.approx(by, abs=0.4)
        seen.add(by)
        fault.mend(wires)
        assert engine_time(port) - time.time() == pytest.approx(0, abs=0.4)
    assert len(seen) == 2


def test_the_clock_of_the_engine_strobes(wires: Site) -> None:
    port = cast(OwnServer, wires.servers[0]).port
    fault, said = struck(wires, "engine-clock-strobe")
    by = cast(float, said["seconds"])
    assert happens(lambda: abs(engine_time(port) - time.time() - by) < 0.4)
    assert happens(lambda: abs(engine_time(port) - time.time()) < 0.4)
    assert happens(lambda: abs(engine_time(port) - time.time() - by) < 0.4)
    fault.mend(wires)
    assert engine_time(port) - time.time() == pytest.approx(0, abs=0.4)


@pytest.mark.parametrize("name", ["client-clock-jump", "client-clock-strobe"])
def test_the_clock_of_the_workers_is_moved_and_put_right(name: str, site: Site) -> None:
    worker = cast(Toy, site.workers[0])
    fault, said = struck(site, name)
    by = cast(float, said["seconds"])

    def shows(offset: float) -> bool:
        return worker.has_another_turn() and abs(worker.turns()[-1][1] - time.time() - offset) < 2.0

    assert happens(lambda: shows(by))
    if name.endswith("strobe"):
        assert happens(lambda: shows(0.0))
        assert happens(lambda: shows(by))
    fault.mend(site)
    assert happens(lambda: shows(0.0))
    assert all_go_on(site)
