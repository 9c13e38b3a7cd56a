"""`leasehold doctor` on real etcd, Consul and ZooKeeper servers."""

from __future__ import annotations

from pathlib import Path

from tests.doctor.looking import diagnosis_of, finding_of
from tests.support.consul_server import running_consul
from tests.support.etcd_server import running_cluster, running_etcd
from tests.support.zookeeper_server import running_zookeeper

from leasehold.doctor import zookeeper
from leasehold.doctor.clusters import members_finding


def test_one_etcd_and_its_alarm(tmp_path: Path) -> None:
    with running_etcd(tmp_path) as node:
        alone = diagnosis_of(node.url)
        assert alone.version.startswith("etcd 3.")
        levels = {finding.check: finding.level for finding in alone.findings}
        assert levels["topology"] == "note"
        assert levels["leader"] == levels["disk"] == "ok"
        assert "alarm" not in levels
        member = node.ask("/v3/maintenance/status", {})["header"]["member_id"]
        alarm = {"memberID": member, "alarm": "NOSPACE"}
        node.ask("/v3/maintenance/alarm", {"action": "ACTIVATE", **alarm})
        full = diagnosis_of(node.url)
        levels = {finding.check: finding.level for finding in full.findings}
        assert levels["alarm"] == "problem"
        assert levels["permissions"] == "problem", "nothing can be written"
        node.ask("/v3/maintenance/alarm", {"action": "DEACTIVATE", **alarm})
        assert diagnosis_of(node.url).worst in ("note", "warning")


def test_three_etcds(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        topology = finding_of(cluster.url, "topology")
        assert topology.level == "ok"
        assert topology.seen == "3 members, of which 1 may fail"


def test_one_consul() -> None:
    with running_consul() as node:
        diagnosis = diagnosis_of(node.url)
    levels = {finding.check: finding.level for finding in diagnosis.findings}
    assert diagnosis.version.startswith("Consul 1.")
    assert levels["leader"] == levels["persistence"] == "ok"
    assert levels["topology"] == levels["access"] == "note"


def test_one_zookeeper() -> None:
    with running_zookeeper() as server:
        diagnosis = diagnosis_of(server.url)
    levels = {finding.check: finding.level for finding in diagnosis.findings}
    assert diagnosis.version.startswith("ZooKeeper 3.")
    assert levels["topology"] == "note"


def test_a_zookeeper_that_is_silent_of_itself() -> None:
    assert zookeeper._server("x", "srvr is not executed because it is not in the whitelist.\n") is None


def test_how_many_may_fail() -> None:
    assert [members_finding(number).level for number in (1, 2, 3, 4, 5)] == ["note", "warning", "ok", "warning", "ok"]
    assert "2 may fail" in members_finding(5).seen
