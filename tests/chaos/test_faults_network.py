"""What lies between workers and the engine: silence, slowness, resets."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import cast

import pytest
from tests.chaos.fault_site import PONG, TTL, Line, Toy, all_go_on, struck, toy

from leasehold.chaos.servers.process import OwnServer
from leasehold.chaos.site import Site

pytestmark = pytest.mark.nightly


def test_a_partition_is_silent_both_ways(wires: Site, line: Callable[[int], Line]) -> None:
    old = line(wires.proxies[0].port)
    assert old.ask() == PONG
    fault, _ = struck(wires, "partition")
    assert old.ask(within=0.3) == "silence"
    assert line(wires.proxies[1].port).ask(within=0.3) == "silence"
    fault.mend(wires)
    assert line(wires.proxies[0].port).ask() == PONG


def test_requests_get_lost(wires: Site, line: Callable[[int], Line]) -> None:
    direct, one = line(cast(OwnServer, wires.servers[0]).port), line(wires.proxies[0].port)
    assert one.ask() == PONG
    fault, _ = struck(wires, "partition-requests")
    assert one.ask(b"SET lost 1\r\n", within=0.3) == "silence"
    assert direct.ask(b"EXISTS lost\r\n") == b":0\r\n"
    fault.mend(wires)
    assert line(wires.proxies[0].port).ask() == PONG


def test_replies_get_lost_of_requests_that_took_effect(wires: Site, line: Callable[[int], Line]) -> None:
    direct, one = line(cast(OwnServer, wires.servers[0]).port), line(wires.proxies[0].port)
    assert one.ask() == PONG
    fault, _ = struck(wires, "partition-replies")
    assert one.ask(b"SET done 1\r\n", within=0.3) == "silence"
    assert direct.ask(b"EXISTS done\r\n") == b":1\r\n"
    fault.mend(wires)
    assert line(wires.proxies[0].port).ask() == PONG


@pytest.mark.parametrize(("name", "least"), [("latency", 2 * 0.02), ("late-replies", 1.2 * 0.2)])
def test_packets_are_late(name: str, least: float, wires: Site, line: Callable[[int], Line]) -> None:
    one = line(wires.proxies[0].port)
    assert one.ask() == PONG
    fault, _ = struck(wires, name)
    began = time.monotonic()
    assert one.ask() == PONG
    assert time.monotonic() - began >= least
    fault.mend(wires)
    assert one.ask() == PONG
    assert wires.struck == []


def test_connections_are_reset(wires: Site, line: Callable[[int], Line]) -> None:
    one = line(wires.proxies[0].port)
    assert one.ask() == PONG
    fault, _ = struck(wires, "resets")
    assert one.ask() == "reset"
    # One more, with a reply under way.
    another = line(wires.proxies[0].port)
    assert "reset" in [another.ask() for _ in range(5)]
    fault.mend(wires)
    assert line(wires.proxies[0].port).ask() == PONG


def test_the_connections_of_a_holder_are_aimed_at(site: Site) -> None:
    for _ in range(20):
        fault, said = struck(site, "partition")
        hit = [proxy for proxy in site.proxies if any(proxy is one for one in site.struck)]
        if said["at"] != "all":
            worker = toy(site, said["at"])
            assert hit == site.proxies_of(worker)
            assert worker.doing() in ("holds", "gap")
            assert len(hit) == 1
            fault.mend(site)
            break
        fault.mend(site)
    else:
        pytest.fail("never one alone")
    assert all_go_on(site)


@pytest.mark.parametrize("name", ["partition", "late-grant"])
def test_one_who_is_cut_off_goes_on_holding_past_the_end_of_its_lease(name: str, site: Site) -> None:
    for _ in range(30):
        fault, said = struck(site, name)
        clinging = [cast(Toy, worker) for worker in site.workers if worker.doing() == "clings"]
        if said["at"] == "all" or not clinging:
            fault.mend(site)
            continue
        assert [worker.name for worker in clinging] == [said["at"]]
        [other] = [cast(Toy, worker) for worker in site.workers if worker.name != said["at"]]
        assert other.has_another_turn()
        assert clinging[0].doing() == "clings"
        fault.mend(site)
        break
    else:
        pytest.fail("nobody clung to its lease")
    assert all_go_on(site)


def test_a_late_grant_is_on_its_way_for_a_good_part_of_its_lease(site: Site) -> None:
    for _ in range(30):
        began = time.monotonic()
        fault, said = struck(site, "late-grant")
        took, clings = time.monotonic() - began, said["doing"] == "clings"
        fault.mend(site)
        if clings:
            assert took >= 0.4 * TTL
            return
    pytest.fail("nobody was granted anything late")
