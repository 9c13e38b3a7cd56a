"""Workers are frozen and killed, at the right moment, and go on when that is mended."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import cast

import pytest
from tests.chaos.fault_site import Line, Toy, all_go_on, happens, struck, toy

from leasehold.chaos.servers.process import OwnServer
from leasehold.chaos.site import Site

pytestmark = pytest.mark.nightly


@pytest.mark.parametrize(("name", "doing"), [("pause", {"holds", "gap"}), ("pause-in-gap", {"gap"})])
def test_a_holder_is_frozen_and_goes_on(name: str, doing: set[str], site: Site) -> None:
    fault, said = struck(site, name)
    frozen = toy(site, said["at"])
    assert said["doing"] in doing
    assert frozen.state() == "T"
    [other] = [cast(Toy, worker) for worker in site.workers if worker is not frozen]
    # Its lease runs out, and somebody else holds the lock; then it writes with its own token.
    assert happens(lambda: other.doing() in ("holds", "gap", "clings"))
    assert frozen.state() == "T"
    before = len(frozen.turns())
    fault.mend(site)
    assert happens(lambda: len(frozen.turns()) > before)
    assert other.has_another_turn()
    assert frozen.turns()[before][0] < other.turns()[-1][0]
    assert site.struck == []


def test_a_holder_is_killed_and_another_comes(site: Site) -> None:
    fault, said = struck(site, "kill")
    killed = toy(site, said["at"])
    pid = killed.pid
    assert happens(lambda: killed.state() == "Z")
    fault.mend(site)
    assert killed.pid != pid
    assert all_go_on(site)


def test_a_dead_host_says_nothing_to_the_engine(site: Site, line: Callable[[int], Line]) -> None:
    before = {toy(site, worker.name).name: connections(site, worker.name) for worker in site.workers}
    fault, said = struck(site, "host-death")
    dead = toy(site, said["at"])
    assert happens(lambda: dead.state() == "Z")
    # The kernel has closed its connections long before the other had two turns.
    [other] = [cast(Toy, worker) for worker in site.workers if worker is not dead]
    assert other.has_another_turn()
    assert other.has_another_turn()
    assert connections(site, dead.name) >= before[dead.name] > 0
    fault.mend(site)
    assert all_go_on(site)
    assert site.struck == []


def connections(site: Site, label: str) -> int:
    """How many the engine has from somebody."""
    with contextlib.closing(Line(cast(OwnServer, site.servers[0]).port)) as one:
        listed = one.ask(b"CLIENT LIST\r\n")
        assert isinstance(listed, bytes)
        return listed.count(f"name=leasehold:{label}".encode()) or listed.count(label.encode())


def test_who_was_frozen_in_the_gap_writes_while_its_successor_has_read_and_not_written(site: Site) -> None:
    def writes_meanwhile() -> bool:
        fault, said = struck(site, "pause-in-gap")
        frozen = toy(site, said["at"])
        [other] = [cast(Toy, worker) for worker in site.workers if worker is not frozen]
        before, others = len(frozen.turns()), len(other.turns())
        assert happens(lambda: other.doing() == "clings" or len(other.turns()) > others)
        clings = other.doing() == "clings"
        fault.mend(site)
        assert happens(lambda: len(frozen.turns()) > before and len(other.turns()) > others)
        # It may have been too slow for its successor, on a machine that is busy.
        return clings and frozen.turns()[before][1] < other.turns()[others][1]

    assert happens(writes_meanwhile, within=60.0)
    assert all_go_on(site)
