"""`leasehold doctor` on real Redis servers: a bad setting is found, and gone once it is put right."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.doctor.looking import diagnosis_of, finding_of, level_of, wait_until
from tests.support.redis_server import RedisServer, running
from tests.support.redlock_servers import running_quorum

from leasehold.doctor.findings import clock_finding


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    settings = ("--appendonly", "yes", "--appendfsync", "always")
    with running(RedisServer("redis", tmp_path_factory.mktemp("redis"), *settings)) as server:
        yield server


def test_a_good_server_is_fine(server: RedisServer) -> None:
    diagnosis = diagnosis_of(server.url)
    assert diagnosis.worst == "ok"
    assert diagnosis.version.startswith("Redis ")
    assert "Correctness" in diagnosis.fit_for
    assert {finding.check for finding in diagnosis.findings} == {
        "reachable", "persistence", "eviction", "topology", "clock", "permissions",
    }  # fmt: skip


def test_the_probe_leaves_no_lease(server: RedisServer) -> None:
    from leasehold import Leasehold

    diagnosis_of(server.url)
    with Leasehold(server.url) as locks:
        assert list(locks.names()) == []


def test_persistence(server: RedisServer) -> None:
    for name, value, level in (
        ("appendfsync", "everysec", "note"),
        ("appendfsync", "no", "warning"),
        ("appendfsync", "always", "ok"),
        ("appendonly", "no", "warning"),
        ("appendonly", "yes", "ok"),
    ):
        server.ask("CONFIG", "SET", name, value)
        assert level_of(server.url, "persistence") == level, (name, value)


def test_eviction(server: RedisServer) -> None:
    server.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    assert level_of(server.url, "eviction") == "note"
    server.ask("CONFIG", "SET", "maxmemory", "500mb")
    bad = diagnosis_of(server.url)
    assert bad.worst == "problem"
    assert bad.fit_for.startswith("Nothing to rely on")
    server.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")
    assert level_of(server.url, "eviction") == "ok"
    server.ask("CONFIG", "SET", "maxmemory", "0")


def test_replicas(server: RedisServer, tmp_path: Path) -> None:
    replicates = ("--replicaof", f"127.0.0.1 {server.port}", "--repl-diskless-sync-delay", "0")
    server.ask("CONFIG", "SET", "repl-diskless-sync-delay", "0")
    with running(RedisServer("redis", tmp_path, *replicates)) as replica:
        wait_until(lambda: b"connected_slaves:1" in server.ask("INFO", "replication"))
        bad = diagnosis_of(server.url)
        [finding] = [one for one in bad.findings if one.check == "topology"]
        assert finding.level == "warning"
        assert bad.fit_for.startswith("Efficiency only")
        assert finding_of(f"redis://127.0.0.1:{server.port}", "topology").level == "warning"
        on_replica = diagnosis_of(replica.url)
        assert on_replica.worst == "problem"
    wait_until(lambda: b"connected_slaves:0" in server.ask("INFO", "replication"))
    assert level_of(server.url, "topology") == "ok"


def test_a_user_with_few_rights(server: RedisServer) -> None:
    server.ask(
        "ACL", "SETUSER", "mute", "on", ">canary-1", "~*", "&*", "+@all", "-info", "-config", "-evalsha", "-eval"
    )
    diagnosis = diagnosis_of(f"redis://mute:canary-1@127.0.0.1:{server.port}")
    by_check = {finding.check: finding for finding in diagnosis.findings}
    assert by_check["permissions"].level == "problem"
    assert by_check["persistence"].level == by_check["eviction"].level == by_check["topology"].level == "note"
    server.ask("ACL", "SETUSER", "mute", "+info", "+config", "+evalsha", "+eval")
    assert diagnosis_of(f"redis://mute:canary-1@127.0.0.1:{server.port}").worst == "ok"
    server.ask("ACL", "DELUSER", "mute")


def test_a_quorum_of_which_one_is_gone() -> None:
    with running_quorum(3) as quorum:
        assert level_of(quorum.url, "quorum") == "ok"
        quorum.servers[0].ask("CONFIG", "SET", "appendonly", "no")
        [weak] = [one for one in diagnosis_of(quorum.url).findings if one.check == "persistence"]
        assert weak.level == "warning"
        assert str(quorum.servers[0].port) in weak.seen
        quorum.servers[0].kill()
        diagnosis = diagnosis_of(quorum.url)
        by_check = {finding.check: finding.level for finding in diagnosis.findings}
        assert by_check["quorum"] == by_check["member"] == "warning"


def test_clocks_that_differ() -> None:
    assert clock_finding(1000.0, 999.9, 1000.1).level == "ok"
    assert clock_finding(1005.0, 999.9, 1000.1).level == "warning"
    assert clock_finding(995.0, 999.9, 1000.1).level == "warning"
    assert clock_finding(1005.0, 990.0, 1010.0).level == "ok", "as far as such a slow answer can tell"
