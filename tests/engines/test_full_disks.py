"""Servers whose disk is full: the error says so, what is held stays held, and room is all they need."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support import mariadb_server, postgres_server
from tests.support.mariadb_server import MariadbServer, running_mariadb
from tests.support.postgres_server import PostgresServer, running_postgres
from tests.support.redis_server import RedisServer, running
from tests.support.server_process import memory_folder

from leasehold import EngineUnavailable, Leasehold

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount a small disk")


@contextlib.contextmanager
def small_disk(place: Path, owner: str, size: str) -> Iterator[Path]:
    """A disk of that size at the place, where the server's user may write."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "tmpfs", str(place)], check=True)
    try:
        shutil.chown(place, owner, owner)
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


@contextlib.contextmanager
def postgresql_on(folder: Path, server: PostgresServer) -> Iterator[tuple[str, Path]]:
    """Only the tables are on the small disk: without room for its log PostgreSQL ends by itself."""
    (folder / "small").mkdir()
    with small_disk(folder / "small", postgres_server.SYSTEM_USER, "2m") as small:
        server.sql(f"CREATE TABLESPACE small LOCATION '{small}'")
        server.sql("GRANT CREATE ON TABLESPACE small TO leasehold")
        server.sql("ALTER ROLE leasehold SET default_tablespace = small")
        yield server.url, small
        server.kill()


@contextlib.contextmanager
def mariadb_on(server: MariadbServer) -> Iterator[tuple[str, Path]]:
    """The folder of its database is the small disk."""
    with small_disk(server.data / "leasehold", mariadb_server.SYSTEM_USER, "3m") as small:
        yield server.url, small
        server.kill()


@contextlib.contextmanager
def redis_on(folder: Path) -> Iterator[tuple[str, Path]]:
    """With `appendfsync always` it would end by itself, as it must: what it has granted is not written down."""
    settings = ("--appendonly", "yes", "--appendfsync", "everysec", "--auto-aof-rewrite-percentage", "0")
    with small_disk(folder, "root", "400k") as small, running(RedisServer("redis", folder, *settings)) as server:
        yield server.url, small


@contextlib.contextmanager
def on_a_small_disk(engine: str) -> Iterator[tuple[str, Path]]:
    if engine == "postgresql":
        with memory_folder() as folder, running_postgres() as server, postgresql_on(folder, server) as place:
            yield place
    elif engine == "redis":
        with memory_folder() as folder, redis_on(folder) as place:
            yield place
    else:
        with running_mariadb() as other, mariadb_on(other) as place:
            yield place


SAYS = {
    "postgresql": "disk is full; make room there",
    "mariadb": "disk is full; make room there",
    "redis": "cannot save its data to disk and refuses writes",
}


@pytest.mark.parametrize("engine", SAYS)
def test_a_full_disk_is_told_and_costs_nobody_a_lease(engine: str) -> None:
    with on_a_small_disk(engine) as (url, disk), Leasehold(url) as locks:
        held = locks.lock("held", ttl=60).acquire()
        filler = disk / "filler"
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(b"x" * 4096)
        with pytest.raises(EngineUnavailable, match=SAYS[engine]) as told:
            for number in range(5000):
                locks.lock(f"{'name' * 50}-{number}", ttl=60, wait=0).acquire()
        assert "127.0.0.1" in str(told.value)
        held.check()
        filler.unlink()
        locks.lock("room again", ttl=60, wait=10).acquire().release()
        assert locks.lock("held", ttl=60).try_acquire() is None
        held.release()
        with locks.lock("held", ttl=60, wait=5) as again:
            assert again.token > held.token
