"""Servers for the pages that speak of one: a fixture docs_<engine>_url for each of the addresses in `test_pages`."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fences.gcs_server import running_gcs
from tests.support.consul_server import running_consul
from tests.support.etcd_server import running_etcd
from tests.support.mariadb_server import running_mariadb
from tests.support.moto_server import running_moto
from tests.support.postgres_server import running_postgres
from tests.support.redis_cluster import running_cluster
from tests.support.redlock_servers import running_quorum
from tests.support.zookeeper_server import running_zookeeper

import servers
from leasehold.testing.ports import free_port


@pytest.fixture(scope="session")
def docs_redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real Redis on a free port of loopback, ended by its process id."""
    folder = tmp_path_factory.mktemp("redis")
    binary = servers.find("redis") or Path(shutil.which("redis-server") or "redis-server")
    port = free_port()
    command = [str(binary), "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        _wait_for(port)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="session")
def docs_gcs_url() -> Iterator[str]:
    """What plays Google Cloud Storage."""
    with running_gcs() as url:
        yield url


@pytest.fixture(scope="session")
def docs_postgresql_url() -> Iterator[str]:
    """A real PostgreSQL."""
    with running_postgres() as server:
        yield server.url


@pytest.fixture(scope="session")
def docs_consul_url() -> Iterator[str]:
    """A real Consul."""
    with running_consul() as server:
        yield f"consul://127.0.0.1:{server.port}"


@pytest.fixture(scope="session")
def docs_mariadb_url() -> Iterator[str]:
    """A real MariaDB."""
    with running_mariadb() as server:
        yield server.url


@pytest.fixture(scope="session")
def docs_zookeeper_url() -> Iterator[str]:
    """A real ZooKeeper."""
    with running_zookeeper() as server:
        yield server.url


@pytest.fixture(scope="session")
def docs_rediscluster_url() -> Iterator[str]:
    """A real Redis Cluster of three primaries."""
    with running_cluster() as cluster:
        yield cluster.url


@pytest.fixture(scope="session")
def docs_redlock_url() -> Iterator[str]:
    """Three real Redis servers."""
    with running_quorum(3) as quorum:
        yield quorum.url


@pytest.fixture(scope="session")
def docs_etcd_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real etcd."""
    with running_etcd(tmp_path_factory.mktemp("etcd")) as server:
        yield server.url


@pytest.fixture(scope="session")
def docs_aws_url() -> Iterator[str]:
    """What plays S3 and DynamoDB."""
    with running_moto() as url:
        yield url


def _wait_for(port: int) -> None:
    for _ in range(200):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise TimeoutError("the server did not start")
