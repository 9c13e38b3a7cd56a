"""A server of Consul that stood still may end, when it leads again, sessions that were renewed all the while."""

from __future__ import annotations

import json
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from tests.chaos.histories import RUN_INFO
from tests.support.programs import stopped

from leasehold.chaos.checkers.record import Record
from leasehold.chaos.history import RUN, Event, Recorder, merged
from leasehold.chaos.running import BY_SERVER, Plan, Run
from leasehold.chaos.servers import started
from leasehold.chaos.servers.clusters import TRIES_AGAIN_AFTER, TRY_LASTS, tries_to_end
from leasehold.chaos.site import Server

TTL = 2.0
FAILED = '    2026-11-18T00:33:%sZ [ERROR] agent.server: Invalidation failed: error="node is not the leader"\n'


def test_the_log_of_a_server_tells_when_it_may_end_sessions() -> None:
    """At fixed times after each failure; several at once are one, and all else that it prints is none."""
    at = 1794962029.5
    quiet = "==> Consul agent running!\n    2026-11-18T00:33:51.896Z [ERROR] agent.server.memberlist.lan: Failed ping\n"
    assert tries_to_end(quiet) == []
    once = [(at + after, at + after + TRY_LASTS) for after in TRIES_AGAIN_AFTER]
    assert tries_to_end(quiet + FAILED % "49.500" + quiet) == once
    twice = tries_to_end(FAILED % "49.500" + FAILED % "50.000")
    assert twice == [(since, until + 0.5) for since, until in once]


class Confessing:
    """Says when it has robbed."""

    name = "server-2"

    def __init__(self, *tries: tuple[float, float]) -> None:
        self._tries = list(tries)

    def robberies(self) -> list[tuple[float, float]]:
        return self._tries


def test_what_servers_did_by_themselves_is_in_the_history(tmp_path: Path) -> None:
    """On the clock of the run, no later than now, and as something that robs: an overlap then is only shown."""
    server: Any = Confessing((time.time() - 4.0, time.time() - 2.0), (time.time() + 5.0, time.time() + 7.0))
    run = Run(Plan(f"sqlite:///{tmp_path}/leases.db"), tmp_path, [server])
    recorder = Recorder(tmp_path / "events.jsonl", RUN, time.monotonic() - 10.0)
    run._ask_for_robberies(recorder)
    recorder.close()
    history = [
        Event(1.0, "w1", "ask", name="n", op=1),
        Event(1.1, "w1", "granted", name="n", op=1, token=7),
        *merged([tmp_path / "events.jsonl"]),
    ]
    record = Record(history, RUN_INFO)
    [fault] = record.faults
    assert (fault.name, fault.struck, fault.robs, fault.loses) == (BY_SERVER, ("server-2",), True, False)
    assert fault.since == pytest.approx(6.0, abs=0.5)
    assert fault.over == pytest.approx(8.0, abs=0.5)
    [lease] = record.leases
    assert not record.may_be_robbed(lease, fault.since - 0.1)
    assert record.may_be_robbed(lease, fault.since + 0.1)


def leader_of(servers: list[Server]) -> Server:
    give_up_at = time.monotonic() + 60
    while time.monotonic() < give_up_at:
        for server in servers:
            if server.leads():
                return server
        time.sleep(0.05)
    pytest.fail("no leader")


class Renewing(threading.Thread):
    """Renews a session several times a second, whoever leads, until it is gone."""

    def __init__(self, *ports: int) -> None:
        super().__init__(daemon=True)
        self._ports = ports
        terms = {"TTL": f"{TTL:g}s", "LockDelay": "0s", "Checks": [], "NodeChecks": []}
        self._id = self._put("create", terms)["ID"]
        self.confirmed_at = 0.0
        """When the latest renewal that was confirmed was sent."""
        self.gone_at: float | None = None

    def _put(self, what: str, body: Any = None, port: int | None = None) -> Any:
        address = f"http://127.0.0.1:{port or self._ports[0]}/v1/session/{what}"
        request = urllib.request.Request(address, data=json.dumps(body or {}).encode(), method="PUT")
        with urllib.request.urlopen(request, timeout=0.5) as answer:
            return json.load(answer)

    def run(self) -> None:
        while self.gone_at is None:
            for port in self._ports:
                sent_at = time.time()
                try:
                    self._put(f"renew/{self._id}", port=port)
                    self.confirmed_at = sent_at
                except urllib.error.HTTPError as error:
                    if error.code == 404:
                        self.gone_at = time.time()
                        return
                except OSError:
                    pass
                time.sleep(0.05)


@pytest.mark.nightly
def test_consul_ends_a_session_that_is_renewed() -> None:
    """If this fails for want of an end, Consul has mended it: then the engine's facts and the judge need it no more."""
    with tempfile.TemporaryDirectory() as folder, started("consul", Path(folder), members=3) as (url, servers):
        first = leader_of(servers)
        ports = [int(one.partition(":")[2]) for one in url.removeprefix("consul://").partition("/")[0].split(",")]
        renewing = Renewing(*(port for port, one in zip(ports, servers, strict=True) if one is not first))
        renewing.start()
        with stopped(*first.pids):
            time.sleep(2 * TTL + 1.5)
        give_up_at = time.monotonic() + sum(TRIES_AGAIN_AFTER[:3]) + 5.0
        while renewing.gone_at is None and time.monotonic() < give_up_at:
            if (leader := leader_of(servers)) is not first:
                with stopped(*leader.pids):  # for less than its sessions last
                    time.sleep(TTL)
            time.sleep(0.2)
        assert renewing.gone_at is not None
        assert renewing.gone_at - renewing.confirmed_at < TTL / 2
        at = renewing.gone_at
        assert any(since - 0.1 <= at <= until + 0.1 for one in servers for since, until in one.robberies())
