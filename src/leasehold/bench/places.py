"""Where the benchmark runs: a private server and a temporary file, or the engine that the user names."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import socket
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from leasehold.bench.resp import BareSocket

SERVERS = ("redis-server", "valkey-server")
HOW_TO_GET = (
    "no redis-server or valkey-server is on PATH; on Debian and Ubuntu: sudo apt-get install redis-server; "
    "or measure a server that already runs: --on redis://HOST"
)
STARTS_WITHIN = 10.0


class NoServer(Exception):
    """There is no server program here, or it does not start."""


@dataclass(frozen=True, slots=True)
class Place:
    """One engine to measure."""

    engine: str
    """What the engine calls itself: ``redis``, ``sqlite``, …"""
    on: str
    """Its address, as `leasehold.Leasehold` takes it. It may hold a password: never shown, never in an argument."""
    namespace: str
    """Everything that the benchmark writes stands below it."""
    folder: Path
    """For files of the peers, on the same file system as an embedded engine."""
    private: bool = True
    """Nobody else uses it, so its counters count the benchmark alone."""

    @property
    def speaks_redis(self) -> bool:
        """Whether the floor and the peers of Redis can be measured here."""
        return self.engine in ("redis", "valkey") and "sentinel" not in self.on.partition(":")[0]

    @property
    def speaks_postgres(self) -> bool:
        """Whether the floor of PostgreSQL can be measured here."""
        return self.engine.partition("+")[0] == "postgresql"


def fresh_namespace() -> str:
    """A namespace that nobody else has."""
    return f"leasehold-bench-{secrets.token_hex(4)}"


@contextlib.contextmanager
def private_redis() -> Iterator[str]:
    """The URL of a server of our own: on a free port, without persistence, gone at the end."""
    program = next(filter(None, map(shutil.which, SERVERS)), None)
    if program is None:
        raise NoServer(HOW_TO_GET)
    with tempfile.TemporaryDirectory(prefix="leasehold-bench-") as folder:
        server, url = _started(program, Path(folder))
        try:
            yield url
        finally:
            server.terminate()
            try:
                server.wait(STARTS_WITHIN)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def _started(program: str, folder: Path) -> tuple[subprocess.Popen[bytes], str]:
    log = folder / "log"
    for _ in range(5):  # somebody else may take the free port before the server does
        port = _free_port()
        command = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        with log.open("wb") as out:
            # A session of its own: an interruption from the keyboard must reach it only through us.
            server = subprocess.Popen(
                [*command, "--dir", str(folder)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        url = f"redis://127.0.0.1:{port}"
        try:
            if _answers(server, url):
                return server, url
        except BaseException:
            server.kill()
            server.wait()
            raise
    raise NoServer(f"{program} does not start: {log.read_text(errors='replace')[-300:].strip()}")


def _answers(server: subprocess.Popen[bytes], url: str) -> bool:
    give_up_at = time.monotonic() + STARTS_WITHIN
    while server.poll() is None and time.monotonic() < give_up_at:
        try:
            with BareSocket(url) as asked:
                pid = asked.info("server").get("process_id")
        except OSError:
            time.sleep(0.02)
        else:
            # Another server may answer there, when ours lost the race for the port and is about to find out.
            return pid == str(server.pid)
    server.kill()
    server.wait()
    return False


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


@contextlib.contextmanager
def private_places() -> Iterator[tuple[list[Place], list[str]]]:
    """A temporary file and a private server; and why there is no server, if there is none."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="leasehold-bench-")))
        places = [Place("sqlite", f"sqlite:///{folder / 'leases.db'}", fresh_namespace(), folder)]
        missing = []
        try:
            url = stack.enter_context(private_redis())
        except NoServer as reason:
            missing.append(f"Redis: {reason}")
        else:
            places.append(Place("redis", url, fresh_namespace(), folder))
        yield places, missing


@contextlib.contextmanager
def users_place(on: str) -> Iterator[tuple[list[Place], list[str]]]:
    """The engine that the user names. Nothing outside of a fresh namespace is touched."""
    from leasehold import Leasehold
    from leasehold.wires.sqlite_file import lease_file

    facts = Leasehold(on).facts
    # An embedded engine's peers must write to the same disk.
    beside = lease_file(on).path.parent if facts.engine == "sqlite" else None
    with tempfile.TemporaryDirectory(prefix="leasehold-bench-", dir=beside) as folder:
        place = Place(facts.engine, on, fresh_namespace(), Path(folder), private=False)
        try:
            yield [place], []
        finally:
            clear(place)


def clear(place: Place) -> None:
    """Remove what the benchmark has written: all of it carries the namespace, which nobody else has."""
    if place.speaks_redis:
        with BareSocket(place.on) as asked:
            for key in list(asked.scan(f"*{place.namespace}*")):
                asked.ask("UNLINK", key)
    elif place.engine == "mysql":
        from leasehold.bench import mysql

        mysql.clear(place)
    elif place.speaks_postgres:
        from leasehold.bench import postgres

        postgres.clear(place)
    elif place.engine == "etcd":
        from leasehold.bench import etcd

        etcd.clear(place)
    elif place.engine == "zookeeper":
        from leasehold.bench import zookeeper

        zookeeper.clear(place)
    elif place.engine == "sqlite":
        from leasehold.wires.sqlite_file import lease_file

        with contextlib.closing(sqlite3.connect(lease_file(place.on).path, isolation_level=None)) as connection:
            for table in ("lease", "seat", "waiter"):
                connection.execute(f"DELETE FROM {table} WHERE namespace = ?", (place.namespace,))  # noqa: S608
