"""Starts what a kind of fence protects: a folder, or a real server."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from tests.fences.gcs_server import running_gcs
from tests.fences.http_guard import running_service
from tests.fences.local_server import running
from tests.fences.sql_guards import SqlGuard
from tests.fences.store_guards import prepare_aws
from tests.fences.table_guards import prepare_tables
from tests.support.etcd_server import running_etcd
from tests.support.mariadb_server import running_mariadb
from tests.support.moto_server import running_moto
from tests.support.postgres_server import running_postgres
from tests.support.zookeeper_server import running_zookeeper


def started(place: str, folder: Path, stack: ExitStack) -> str:
    """Start it in the folder until the stack is closed, and return its address."""
    match place:
        case "folder":
            return str(folder)
        case "redis" | "valkey":
            return stack.enter_context(running(place, folder)).url
        case "sqlite":
            return prepared(f"sqlite:///{folder}/things.db")
        case "postgresql":
            return prepared(stack.enter_context(running_postgres(fsync="off")).url)
        case "mysql":
            return prepared(stack.enter_context(running_mariadb()).url.replace("mariadb:", "mysql:"))
        case "http":
            return stack.enter_context(running_service(folder))
        case "etcd":
            return stack.enter_context(running_etcd(folder, settings=["--unsafe-no-fsync"])).url
        case "zookeeper":
            return stack.enter_context(running_zookeeper()).url
        case "aws":
            url = stack.enter_context(running_moto())
            prepare_aws(url)
            return url
        case "gcs":
            return stack.enter_context(running_gcs())
        case _:
            raise ValueError(place)


def prepared(url: str) -> str:
    """Make the tables of the tests in a database."""
    SqlGuard.prepare(f"core {url}")
    prepare_tables(f"core {url}")
    return url
