"""Deployments of more than one server, as people run them: made of real processes, each on a free port."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tests.doctor.looking import wait_until
from tests.support.mariadb_server import PASSWORD, MariadbServer, running_mariadb
from tests.support.postgres_server import SYSTEM_USER, PostgresServer
from tests.support.redis_server import RedisServer, running

QUICKLY = ("--repl-diskless-sync-delay", "0", "--appendonly", "yes", "--appendfsync", "always")


@contextlib.contextmanager
def primary_and_replica(folder: Path) -> Iterator[tuple[RedisServer, RedisServer]]:
    """A Redis server, and one that follows it."""
    with running(RedisServer("redis", _made(folder / "primary"), *QUICKLY)) as primary:
        follows = ("--replicaof", f"127.0.0.1 {primary.port}")
        with running(RedisServer("redis", _made(folder / "replica"), *QUICKLY, *follows)) as replica:
            wait_until(lambda: b"master_link_status:up" in replica.ask("INFO", "replication"))
            wait_until(lambda: b"connected_slaves:1" in primary.ask("INFO", "replication"))
            yield primary, replica


@contextlib.contextmanager
def watched_by_sentinel(folder: Path) -> Iterator[str]:
    """The URL of a Sentinel that watches a primary with a replica."""
    with primary_and_replica(folder) as (primary, _):
        home = _made(folder / "sentinel")
        settings = home / "sentinel.conf"
        settings.write_text(f"sentinel monitor main 127.0.0.1 {primary.port} 1\n")
        with running(Sentinel(home, settings)) as sentinel:
            wait_until(lambda: b"slaves=1" in sentinel.ask("INFO", "sentinel"))
            yield f"redis+sentinel://127.0.0.1:{sentinel.port}/main"


class Sentinel(RedisServer):
    """The same program with another task."""

    def __init__(self, folder: Path, settings: Path) -> None:
        super().__init__("redis", folder)
        self._file = settings

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self._run([self._program, str(self._file), "--sentinel", "--port", str(self.port), "--bind", "127.0.0.1"])


@contextlib.contextmanager
def standby_of(primary: PostgresServer) -> Iterator[PostgresServer]:
    """A PostgreSQL server that follows another by streaming."""
    with tempfile.TemporaryDirectory(prefix="leasehold-standby-") as name:
        standby = PostgresServer(Path(name))
        if os.geteuid() == 0:
            shutil.chown(name, SYSTEM_USER, SYSTEM_USER)
        # Only some of the programs are linked next to the server's own.
        standby._programs = standby._programs.joinpath("postgres").resolve().parent
        standby._run(
            "pg_basebackup", "--pgdata", str(standby.data), "--host", "127.0.0.1", "--port", str(primary.port),
            "--username", "postgres", "--write-recovery-conf", "--checkpoint", "fast", "--no-sync",
        )  # fmt: skip
        standby.start()
        try:
            wait_until(lambda: primary.sql("SELECT state FROM pg_stat_replication") == [("streaming",)])
            yield standby
        finally:
            standby.stop()


class ReplicationWords(NamedTuple):
    """What one of the two servers calls things."""

    status: str
    follow: str
    start: str
    stop: str
    confirm: tuple[str, str]
    """What has the primary wait for replicas, and a replica confirm."""
    confirming: str


REPLICATION: Mapping[str, ReplicationWords] = {
    "mariadb": ReplicationWords(
        "SHOW MASTER STATUS",
        "CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT={port}, MASTER_USER='follower', "
        "MASTER_PASSWORD='{password}', MASTER_LOG_FILE='{file}', MASTER_LOG_POS={position}",
        "START SLAVE",
        "STOP SLAVE",
        ("SET GLOBAL rpl_semi_sync_master_enabled = 1", "SET GLOBAL rpl_semi_sync_slave_enabled = 1"),
        "Rpl_semi_sync_master_clients",
    ),
    "mysql": ReplicationWords(
        "SHOW BINARY LOG STATUS",
        "CHANGE REPLICATION SOURCE TO SOURCE_HOST='127.0.0.1', SOURCE_PORT={port}, SOURCE_USER='follower', "
        "SOURCE_PASSWORD='{password}', SOURCE_LOG_FILE='{file}', SOURCE_LOG_POS={position}, GET_SOURCE_PUBLIC_KEY=1",
        "START REPLICA",
        "STOP REPLICA",
        ("SET GLOBAL rpl_semi_sync_source_enabled = 1", "SET GLOBAL rpl_semi_sync_replica_enabled = 1"),
        "Rpl_semi_sync_source_clients",
    ),
}


@contextlib.contextmanager
def replicated_mysql(engine: str) -> Iterator[tuple[MariadbServer, MariadbServer]]:
    """A server, and one that follows it and takes no writes from others."""
    words = REPLICATION[engine]
    with (
        running_mariadb(engine=engine, server_id="1", log_bin="log", sync_binlog="1") as primary,
        running_mariadb(engine=engine, server_id="2") as replica,
    ):
        if engine == "mysql":
            for server, role in ((primary, "source"), (replica, "replica")):
                server.sql(f"INSTALL PLUGIN rpl_semi_sync_{role} SONAME 'semisync_{role}.so'")
        primary.add_user("follower")
        primary.sql("GRANT REPLICATION SLAVE ON *.* TO follower")
        file, position, *_ = primary.sql(words.status)[0]
        replica.sql(words.follow.format(port=primary.port, password=PASSWORD, file=file, position=position))
        replica.sql("SET GLOBAL read_only = 1")
        replica.sql(words.start)
        wait_until(lambda: any("Binlog Dump" in str(row) for row in primary.sql("SHOW PROCESSLIST")))
        yield primary, replica


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder
