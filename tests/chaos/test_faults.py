"""Each fault says what it needs, leaves alone what another one has in its hands, and lets go."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from tests.chaos.fault_site import TTL, Line, all_go_on, happens, struck

from leasehold import Leasehold, LeaseLost
from leasehold.chaos.faults import FAULTS
from leasehold.chaos.servers import started
from leasehold.chaos.site import Doing, Site, Worker

pytestmark = pytest.mark.nightly


def test_a_lease_is_ended_by_force(wires: Site) -> None:
    with Leasehold(wires.url) as locks, pytest.raises(LeaseLost), locks.lock("orders", ttl=60):
        fault, said = struck(wires, "revocation")
        assert said["at"] == "orders"
        status = locks.status("orders")
        assert status is not None
        assert not status.holders
        fault.mend(wires)
        with Leasehold(wires.url) as others, others.lock("orders", ttl=60, wait=5):
            pass


def test_who_is_revoked_may_go_on_holding(site: Site) -> None:
    def clings() -> bool:
        fault = FAULTS["revocation"]()
        fault.strike(site)  # sometimes there is nothing to be revoked, and nobody who clings
        found = "clings" in [worker.doing() for worker in site.workers]
        fault.mend(site)
        return found

    assert happens(clings, within=60.0)
    assert all_go_on(site)


def test_an_engine_that_is_away_revokes_nothing(wires: Site) -> None:
    wires.servers[0].stop(hard=True)
    assert FAULTS["revocation"]().strike(wires) == {"at": None, "error": "EngineUnavailable"}


class Nobody:
    """A worker, and that is all there is."""

    name = "w1"
    pid = 0

    def doing(self) -> Doing:
        return "idle"

    def restart(self) -> None:
        raise AssertionError("nobody was killed")

    def kill(self) -> None:
        raise AssertionError("nobody is killed")

    def hold_on(self, on: bool) -> None:
        raise AssertionError("nobody holds")


def test_each_fault_says_what_is_missing() -> None:
    bare = Site("redis://127.0.0.1:1", TTL, [Nobody()], subject="redis-py")
    without = {name for name, kind in FAULTS.items() if kind().missing(bare) is None}
    assert without == {"pause", "pause-in-gap", "kill"}
    for kind in FAULTS.values():
        assert kind.summary
        assert kind.lasts > 0
        words = kind().missing(bare)
        assert words is None or len(words) > 30


def test_faults_that_an_engine_cannot_have_say_why(folder: Path) -> None:
    with started("etcd", folder) as (url, servers):
        site = Site(url, TTL, [Nobody()], servers=servers)
        for name, words in {
            "power-loss": "without a witness",
            "full-disk": "without a witness",
            "engine-clock-jump": "cannot be moved",
            "leader-kill": "fewer than three",
            "failover": "no replica",
        }.items():
            assert words in (FAULTS[name]().missing(site) or "")


def test_what_one_fault_has_in_its_hands_others_leave_alone(wires: Site) -> None:
    first, second = FAULTS["engine-pause"](), FAULTS["engine-restart"]()
    [server] = wires.servers
    pids = server.pids
    first.strike(wires)
    assert second.strike(wires)["at"] is None
    second.mend(wires)
    assert server.pids == pids
    assert len(wires.struck) == 1
    first.mend(wires)
    assert happens(server.answers)
    partition, latency = FAULTS["partition"](), FAULTS["latency"]()
    partition.strike(wires)
    assert latency.strike(wires)["at"] is None
    latency.mend(wires)
    with contextlib.closing(Line(wires.proxies[0].port)) as one:
        assert one.ask(within=0.3) == "silence"
    partition.mend(wires)
    a_worker: Worker = Nobody()
    busy = Site("", 0.05, [a_worker], struck=[a_worker])
    assert FAULTS["pause"]().strike(busy) == {"at": None}
    assert FAULTS["kill"]().strike(busy) == {"at": None}
