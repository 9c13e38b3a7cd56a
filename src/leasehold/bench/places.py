"""Where the benchmark runs: a private server and a temporary file, or the engine that the user names."""

from __future__ import annotations

import contextlib
import importlib
import re
import secrets
import shutil
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from leasehold.bench.resp import BareSocket
from leasehold.chaos import servers
from leasehold.chaos.site import Server
from leasehold.testing.ports import free_port

SERVERS = ("redis-server", "valkey-server")
HOW_TO_GET = (
    "no redis-server or valkey-server is on PATH; on Debian and Ubuntu: sudo apt-get install redis-server; "
    "or measure a server that already runs: --on redis://HOST"
)
STARTS_WITHIN = 10.0
MEMORY = Path("/dev/shm")  # noqa: S108
ENGINES = (
    "sqlite",
    "redis",
    "redlock",
    "postgresql",
    "postgresql+session",
    "mysql",
    "mysql+session",
    "etcd",
    "consul",
    "zookeeper",
)
"""Those of which private ones can be had; `mysql` is measured on MariaDB, and MySQL by its URL."""
CLUSTERS = ("etcd*3", "consul*3", "zookeeper*3")
"""Private ones of three members, for those who ask for them: each change is agreed on by two of them."""
USUAL = ("sqlite", "redis")
QUORUM = 5
"""How many servers a private Redlock has."""
OF_ITS_OWN = {
    "postgresql": "leasehold.bench.postgres",
    "mysql": "leasehold.bench.mysql",
    "etcd": "leasehold.bench.etcd",
    "consul": "leasehold.bench.consul",
    "zookeeper": "leasehold.bench.zookeeper",
}
"""The modules that know how to clear up at a kind of place, and which version answers there. Imported when needed:
what they import may not be installed."""


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
    def kind(self) -> str:
        """What kind of server it is, whatever Leasehold does there: it decides about the floor and the peers."""
        return "sentinel" if "sentinel" in self.on.partition(":")[0] else re.split(r"[+*]", self.engine)[0]

    @property
    def is_server_of_ours(self) -> bool:
        """Whether it is a server, and one that the benchmark has started."""
        return self.private and self.kind != "sqlite"

    @property
    def speaks_redis(self) -> bool:
        """Whether it is one server of Redis."""
        return self.kind == "redis"


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
        port = free_port()
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


@contextlib.contextmanager
def private_places(engines: Sequence[str] = USUAL) -> Iterator[tuple[list[Place], list[str]]]:
    """A temporary file and private servers; and why there is none of an engine, where there is none."""
    from leasehold import Leasehold
    from leasehold.errors import Misuse
    from leasehold.opening import how_to_get

    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="leasehold-bench-")))
        places, missing = [], []
        for engine in engines:
            try:
                url = _private_url(engine, folder, stack)
                Leasehold(url).close()  # an engine whose package is not installed says so here
                places.append(Place(engine, url, fresh_namespace(), folder))
            except (NoServer, servers.NoServer, Misuse) as reason:
                missing.append(f"{engine}: {reason}")
            except ModuleNotFoundError as lacking:
                explained = how_to_get(lacking)
                if explained is None:
                    raise
                missing.append(f"{engine}: {explained}")
        yield places, missing


def _private_url(engine: str, folder: Path, stack: contextlib.ExitStack) -> str:
    if engine == "sqlite":
        return f"sqlite:///{folder / 'leases.db'}"
    if engine == "redis":
        return stack.enter_context(private_redis())
    if engine == "redlock":
        from leasehold.engines.redlock import initialise

        members = [stack.enter_context(private_redis()) for _ in range(QUORUM)]
        url = f"redlock://{','.join(url.removeprefix('redis://') for url in members)}"
        initialise(url)
        return url
    # In memory: a disk that is slow today would drown every difference, and nobody here pulls the plug.
    memory = MEMORY if MEMORY.is_dir() else None
    own = stack.enter_context(tempfile.TemporaryDirectory(prefix="leasehold-bench-", dir=memory))
    server, _, session = engine.partition("+")
    server, _, number = server.partition("*")
    program = {"mysql": "mariadb"}.get(server, server)
    url, started = stack.enter_context(servers.started(program, Path(own), members=int(number or 1)))
    if number:
        return _one_that_follows(url, started)
    return f"{server}+session{url[url.index(':') :]}" if session else url


def _one_that_follows(url: str, members: Sequence[Server]) -> str:
    """All contestants ask the same member, or the one that asks the leader would win; most members do not lead."""
    parts = urlsplit(url)
    hosts = zip(parts.netloc.split(","), members, strict=True)
    return parts._replace(netloc=next(host for host, member in hosts if not member.leads())).geturl()


@contextlib.contextmanager
def users_place(on: str) -> Iterator[tuple[list[Place], list[str]]]:
    """The engine that the user names. Nothing outside of a fresh namespace is touched."""
    from leasehold import Leasehold
    from leasehold.wires.sqlite_file import lease_file

    namespace = fresh_namespace()
    with Leasehold(on, namespace=namespace) as locks:
        facts = locks.facts
        locks.status("bench")  # what is wrong with it is told in its own words, before anything else is tried
    # An embedded engine's peers must write to the same disk.
    beside = lease_file(on).path.parent if facts.engine == "sqlite" else None
    with tempfile.TemporaryDirectory(prefix="leasehold-bench-", dir=beside) as folder:
        place = Place(facts.engine, on, namespace, Path(folder), private=False)
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
    elif place.kind in OF_ITS_OWN:
        importlib.import_module(OF_ITS_OWN[place.kind]).clear(place)
    elif place.engine == "sqlite":
        from leasehold.wires.sqlite_file import lease_file

        with contextlib.closing(sqlite3.connect(lease_file(place.on).path, isolation_level=None)) as connection:
            for table in ("lease", "seat", "waiter"):
                connection.execute(f"DELETE FROM {table} WHERE namespace = ?", (place.namespace,))  # noqa: S608
