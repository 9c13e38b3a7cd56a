"""`leasehold doctor` on deployments of several real servers: what each guarantees, and how to raise it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.doctor.deployments import (
    REPLICATION,
    primary_and_replica,
    replicated_mysql,
    standby_of,
    watched_by_sentinel,
)
from tests.doctor.looking import diagnosis_of, finding_of, level_of, wait_until
from tests.support.postgres_server import PostgresServer, running_postgres
from tests.support.redis_cluster import running_cluster

from leasehold import Leasehold
from leasehold.doctor import Diagnosis


def about(diagnosis: Diagnosis, check: str) -> tuple[str, str, str]:
    """Level, what was seen and what to do."""
    [found] = [one for one in diagnosis.findings if one.check == check]
    return found.level, found.seen, found.fix


def test_a_redis_server_with_a_replica(tmp_path: Path) -> None:
    with primary_and_replica(tmp_path) as (primary, replica):
        asked = diagnosis_of(primary.url)
        level, seen, fix = about(asked, "topology")
        assert (level, asked.reachable) == ("warning", True)
        assert "lacks the latest grants and tokens" in seen
        assert "redlock://" in fix
        assert asked.fit_for.startswith("Efficiency only")

        asked = diagnosis_of(replica.url)
        level, seen, fix = about(asked, "topology")
        assert (level, asked.reachable) == ("problem", True)  # it is there, and no place for leases
        assert "leads to a replica" in seen
        assert "address of the primary" in fix
        assert asked.fit_for == "Nothing: a lease is a write."


@pytest.mark.nightly
def test_sentinel(tmp_path: Path) -> None:
    with watched_by_sentinel(tmp_path) as url:
        asked = diagnosis_of(url)
        level, seen, fix = about(asked, "topology")
        assert level == "warning"
        assert "Sentinel promotes one that lacks the latest grants" in seen
        assert "redlock://" in fix
        assert asked.fit_for.startswith("Efficiency only")
        # Whoever gives the Sentinel's own address as a server's is told how to write it.
        asked = diagnosis_of(f"redis://{url.partition('://')[2].partition('/')[0]}")
        level, seen, _ = about(asked, "reachable")
        assert level == "problem"
        assert "write redis+sentinel://" in seen


@pytest.mark.nightly
def test_a_redis_cluster() -> None:
    with running_cluster() as cluster:
        for node in cluster.nodes:
            asked = diagnosis_of(node.url)
            level, seen, fix = about(asked, "topology")
            assert level == "problem"
            assert "one of the 3 nodes" in seen
            assert "no cluster" in fix
            assert "redis+cluster://" in fix
            assert asked.fit_for.startswith("Nothing to rely on")
        whole = diagnosis_of(cluster.url)
        assert "3 primaries serve all slots" in about(whole, "slots")[1]
        assert whole.fit_for.startswith("Efficiency only")


def test_a_redis_cluster_of_one_node() -> None:
    with running_cluster(1) as cluster:
        (node,) = cluster.nodes
        asked = diagnosis_of(node.url)
        assert about(asked, "topology")[0] == "warning"
        assert about(asked, "permissions")[0] == "ok"
        assert "weakened" in asked.fit_for
        whole = diagnosis_of(cluster.url)
        assert {one.check: one.level for one in whole.findings} == {
            "reachable": "ok", "slots": "ok", "topology": "warning", "permissions": "ok",
        }  # fmt: skip
        assert whole.fit_for.startswith("Efficiency only")
        assert whole.version.startswith("Redis ")
        node.ask("CONFIG", "SET", "cluster-require-full-coverage", "no")
        node.ask("CONFIG", "SET", "appendonly", "no")
        node.ask("CLUSTER", "DELSLOTSRANGE", 0, 0)
        broken = diagnosis_of(cluster.url)
        assert "no node serves 1 of the 16384 slots" in about(broken, "slots")[1]
        assert f"127.0.0.1:{node.port}: there is no append-only file" in about(broken, "persistence")[1]


@pytest.mark.nightly
@pytest.mark.parametrize("engine", ["mariadb", pytest.param("mysql", marks=pytest.mark.nightly)])
def test_mysql_with_a_replica(engine: str) -> None:
    words = REPLICATION[engine]
    with replicated_mysql(engine) as (primary, replica):
        blind = diagnosis_of(primary.url)
        level, seen, fix = about(blind, "topology")
        assert (level, "not told who reads it" in seen) == ("note", True)
        primary.sql(fix.replace("this user, for this question only", "leasehold"))
        level, seen, fix = about(diagnosis_of(primary.url), "topology")
        assert (level, "1 replica(s), asynchronous" in seen, "semi-synchronous" in fix) == ("warning", True, True)
        primary.sql(words.confirm[0])
        level, seen, _ = about(diagnosis_of(primary.url), "topology")
        assert (level, "none takes part in it" in seen) == ("warning", True)
        replica.sql(words.confirm[1])
        replica.sql(words.stop)
        replica.sql(words.start)
        wait_until(lambda: primary.sql("SHOW GLOBAL STATUS LIKE %s", words.confirming)[0][1] == "1")
        raised = diagnosis_of(primary.url)
        assert about(raised, "topology")[1].endswith("1 of which confirm commits")
        assert raised.fit_for == "Correctness, together with a fence at the resource."

        asked = diagnosis_of(replica.url)
        level, seen, fix = about(asked, "topology")
        assert (level, asked.reachable) == ("problem", True)
        assert "read_only is on" in seen
        assert "address of the primary" in fix


@pytest.mark.nightly
def test_a_postgresql_standby_and_its_primary() -> None:
    with running_postgres() as primary, standby_of(primary) as standby:
        level, seen, fix = about(diagnosis_of(primary.url), "topology")
        assert (level, "asynchronous" in seen, "synchronous_standby_names" in fix) == ("warning", True, True)
        for scheme in ("postgresql", "postgresql+session"):
            asked = diagnosis_of(standby.url.replace("postgresql", scheme, 1))
            level, seen, fix = about(asked, "topology")
            assert (level, asked.reachable) == ("problem", True)
            assert "in_hot_standby is on" in seen
            assert "address of the primary" in fix

        change(primary, "synchronous_standby_names", "ANY 1 (*)")
        raised = diagnosis_of(primary.url)
        assert about(raised, "topology")[:2] == ("ok", "1 replica(s), and commits wait for them (ANY 1 (*))")
        assert raised.fit_for == "Correctness, together with a fence at the resource."
        change(primary, "synchronous_commit", "local")
        assert level_of(primary.url, "topology") == "warning"
        change(primary, "synchronous_commit", "on")

        with Leasehold(primary.url) as locks:  # both servers are given: the one that takes writes is found
            locks.lock("name").acquire().release()
        both = f"127.0.0.1:{standby.port},127.0.0.1:{primary.port}"
        found = finding_of(primary.url.replace(f"127.0.0.1:{primary.port}", both), "topology")
        assert found.level == "ok"


def change(server: PostgresServer, name: str, value: str) -> None:
    """Change a setting of a running server."""
    connection = server.superuser()
    connection.execute(f"ALTER SYSTEM SET {name} = '{value}'")
    connection.execute("SELECT pg_reload_conf()")
    connection.close()
    wait_until(lambda: server.sql(f"SHOW {name}") == [(value,)])
