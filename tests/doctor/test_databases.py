"""`leasehold doctor` on real databases: a bad setting is found, and gone once it is put right."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.doctor.looking import diagnosis_of, level_of, wait_until
from tests.support.mariadb_server import MariadbServer, running_mariadb
from tests.support.pgbouncer import running_pgbouncer
from tests.support.postgres_server import PostgresServer, running_postgres

from leasehold.doctor import postgres
from leasehold.doctor.sqlite import file_system
from leasehold.mounts import Mount


@pytest.fixture(scope="module")
def postgresql() -> Iterator[PostgresServer]:
    with running_postgres() as server:
        yield server


@pytest.fixture(scope="module", params=["mariadb", "mysql"])
def mysql(request: pytest.FixtureRequest) -> Iterator[MariadbServer]:
    with running_mariadb(engine=request.param) as server:
        yield server


def set_in_postgresql(server: PostgresServer, name: str, value: str) -> None:
    connection = server.superuser()
    connection.autocommit = True
    with connection:
        connection.execute(f"ALTER SYSTEM SET {name} = '{value}'")
        connection.execute("SELECT pg_reload_conf()")
    wait_until(lambda: server.sql(f"SHOW {name}") == [(value,)])


def test_postgresql(postgresql: PostgresServer) -> None:
    for name, bad, level, good in (
        ("fsync", "off", "problem", "on"),
        ("full_page_writes", "off", "warning", "on"),
        ("synchronous_commit", "off", "warning", "on"),
    ):
        set_in_postgresql(postgresql, name, bad)
        assert level_of(postgresql.url, "persistence") == level, name
        set_in_postgresql(postgresql, name, good)
    fine = diagnosis_of(postgresql.url)
    assert fine.worst == "ok"
    assert fine.version.startswith("PostgreSQL ")
    assert level_of(f"{postgresql.url}?durable=false", "persistence") == "warning"


def test_the_session_locks_of_postgresql(postgresql: PostgresServer) -> None:
    diagnosis = diagnosis_of(postgresql.url.replace("postgresql://", "postgresql+session://"))
    assert diagnosis.engine == "postgresql+session"
    assert diagnosis.worst == "ok"


def test_a_pooler_is_seen(postgresql: PostgresServer) -> None:
    assert level_of(postgresql.url, "pooler") == "ok"
    with running_pgbouncer(postgresql, "transaction") as url:
        assert level_of(url, "pooler") == "warning"
        assert level_of(f"{url}?listen=127.0.0.1:{postgresql.port}", "pooler") == "ok"
    with running_pgbouncer(postgresql, "session") as url:
        assert level_of(f"{url}?pooler=session", "pooler") == "note"


def test_replicas_of_postgresql() -> None:
    alone = postgres.topology(standby=False, replicas=0, sync_standbys="")
    lagging = postgres.topology(standby=False, replicas=1, sync_standbys="")
    agreed = postgres.topology(standby=False, replicas=1, sync_standbys="ANY 1 (*)")
    standby = postgres.topology(standby=True, replicas=0, sync_standbys="")
    assert [one.level for one in (alone, lagging, agreed, standby)] == ["ok", "warning", "ok", "problem"]
    hasty = postgres.topology(standby=False, replicas=1, sync_standbys="ANY 1 (*)", commit="local")
    stuck = postgres.topology(standby=False, replicas=0, sync_standbys="ANY 1 (*)")
    assert [one.level for one in (hasty, stuck)] == ["warning", "problem"]


def test_mysql(mysql: MariadbServer) -> None:
    if mysql.engine == "mysql":  # its binary log is on, unless somebody says otherwise
        assert level_of(mysql.url, "topology") == "note"
        mysql.sql("GRANT PROCESS ON *.* TO leasehold")
    assert level_of(mysql.url, "topology") == "ok"
    mysql.sql("SET GLOBAL innodb_flush_log_at_trx_commit = 2")
    assert level_of(mysql.url, "persistence") == "warning"
    mysql.sql("SET GLOBAL innodb_flush_log_at_trx_commit = 1")
    fine = diagnosis_of(mysql.url)
    assert fine.worst == "ok", fine.findings
    assert fine.version.startswith({"mariadb": "MariaDB ", "mysql": "MySQL "}[mysql.engine])
    mysql.sql("SET GLOBAL read_only = 1")
    try:
        refused = diagnosis_of(mysql.url)
    finally:
        mysql.sql("SET GLOBAL read_only = 0")
    assert (refused.reachable, refused.worst, refused.findings[0].check) == (True, "problem", "topology")
    assert "read_only is on" in refused.findings[0].seen
    assert refused.fit_for == "Nothing: a lease is a write."


def test_an_embedded_file(tmp_path: Path) -> None:
    file = tmp_path / "leases.db"
    assert level_of(file, "access") == "ok"
    file.chmod(0o620)
    assert level_of(file, "access") == "warning"
    file.chmod(0o600)
    assert level_of(file, "access") == "ok"
    assert diagnosis_of(file).version.startswith("SQLite 3.")


def test_an_embedded_file_that_is_gone_after_a_reboot() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        diagnosis = diagnosis_of(Path(folder) / "leases.db")
    levels = {finding.check: finding.level for finding in diagnosis.findings}
    assert levels["file system"] == "warning"
    assert "weakened" in diagnosis.fit_for


def test_file_systems() -> None:
    kinds = {"ext4": "ok", "nfs4": "problem", "tmpfs": "warning"}
    assert {kind: file_system(Mount(Path("/"), kind)).level for kind in kinds} == kinds
    assert file_system(None).level == "note"
