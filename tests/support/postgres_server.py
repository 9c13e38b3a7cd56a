"""A PostgreSQL server of the tests' own: in its own folder, on a free port of the loopback, ended by process id."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.support.programs import program_of
from tests.support.server_process import ServerProcess, memory_folder

import servers
from leasehold.testing import EngineUnderTest
from leasehold.testing.ports import free_port

SYSTEM_USER = "postgres"
"""Who runs the server when the tests run as root, which PostgreSQL refuses to be run by."""
PASSWORD = "canary-7Qx"
"""Of the user `leasehold`. Nothing that Leasehold shows may contain it."""
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "max_connections": "400",
    "shared_buffers": "32MB",
    "log_min_messages": "fatal",
    "max_wal_senders": "4",
}


def as_server_user() -> list[str]:
    """What comes before a command, so that it runs as the server's user where the tests run as root.

    A program, and not `Popen(user=…)`: for that Python must really fork, and gRPC, where a test has loaded it, may
    abort the child before the command is begun.
    """
    if os.geteuid() != 0:
        return []
    return ["setpriv", f"--reuid={SYSTEM_USER}", f"--regid={SYSTEM_USER}", "--clear-groups"]


class PostgresServer(ServerProcess):
    """One server process; `start` after `stop` or `kill` finds what the folder kept."""

    def __init__(self, folder: Path, settings: Mapping[str, str] | None = None) -> None:
        super().__init__("PostgreSQL", folder / "log")
        self.folder, self.data = folder, folder / "data"
        self._programs = program_of("postgresql").parent
        self._settings = {**SETTINGS, **(settings or {})}
        self._stopped: list[int] = []
        self.port = free_port()

    # Addresses

    @property
    def url(self) -> str:
        """For a user who owns the database and is no superuser."""
        return self.url_at("127.0.0.1", self.port)

    def url_at(self, host: str, port: int) -> str:
        """The same database by way of another address, such as a proxy's."""
        return f"postgresql://leasehold:{PASSWORD}@{host}:{port}/leasehold"

    def superuser(self, database: str = "leasehold") -> psycopg.Connection[tuple[Any, ...]]:
        """A connection that may do everything, in autocommit mode."""
        return psycopg.connect(
            host="127.0.0.1", port=self.port, user="postgres", dbname=database, autocommit=True, connect_timeout=10
        )

    def sql(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """Run one statement as the superuser."""
        with contextlib.closing(self.superuser()) as connection:
            cursor = connection.execute(query, values or None)
            return cursor.fetchall() if cursor.description else []

    # Its life

    def create(self, with_files: Sequence[str] = ()) -> None:
        """Make the data folder, with these files of the server's folder in it, the user and the database."""
        if os.geteuid() == 0:
            shutil.chown(self.folder, SYSTEM_USER, SYSTEM_USER)
        self._run(
            "initdb", "--pgdata", str(self.data), "--username", "postgres", "--auth", "trust", "--no-sync",
            "--encoding", "UTF8", "--locale", "C",
        )  # fmt: skip
        (self.data / "pg_hba.conf").write_text(
            "local all all trust\n"
            "host all postgres 127.0.0.1/32 trust\n"
            "host replication all 127.0.0.1/32 trust\n"
            "host all all 127.0.0.1/32 scram-sha-256\n"
        )
        for name in with_files:
            shutil.copy(self.folder / name, self.data)
            (self.data / name).chmod(0o600)
        self.take_over_files()
        self.start()
        with contextlib.closing(self.superuser("postgres")) as connection:
            connection.execute(f"CREATE ROLE leasehold LOGIN PASSWORD '{PASSWORD}'")
            connection.execute("CREATE DATABASE leasehold OWNER leasehold")

    def take_over_files(self) -> None:
        """Let the server's user own what was put into its data folder."""
        if os.geteuid() == 0:
            for path in [self.folder, self.data, *self.data.rglob("*")]:
                shutil.chown(path, SYSTEM_USER, SYSTEM_USER)

    def _run(self, program: str, *arguments: str) -> None:
        command = [*as_server_user(), str(self._programs / program), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, cwd=self.folder, check=False)
        if done.returncode:
            pytest.fail(f"{program} failed: {done.stderr.strip()}")

    def start(self) -> None:
        """Start it, and wait until it answers."""
        command = [*as_server_user(), str(self._programs / "postgres")]
        command += ["-D", str(self.data), "-p", str(self.port), "-k", str(self.folder)]
        for name, value in self._settings.items():
            command += ["-c", f"{name}={value}"]
        self.launch(command, self.folder)
        self.wait_until(self._answers)

    def _answers(self) -> bool:
        try:
            self.superuser("postgres").close()
        except psycopg.OperationalError:
            return False
        return True

    def stop(self) -> None:
        """Shut it down in good order; connections are cut."""
        self.end(signal.SIGINT)

    def kill(self) -> None:
        """End it at once, as a crash would: what was not written is lost, and it recovers when it starts."""
        self.end(signal.SIGQUIT)

    def restart(self) -> None:
        """Shut it down and start it on the same port."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Freeze it, with all its backends: it answers nobody, and no connection is closed."""
        # The postmaster first, so that no backend comes to be that is not frozen.
        for pid in [self.pid, *_children(self.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                self._stopped.append(pid)
        for pid in set(_children(self.pid)) - set(self._stopped):
            os.kill(pid, signal.SIGSTOP)
            self._stopped.append(pid)
        while not all(map(_stands_still, self._stopped)):
            time.sleep(0.001)

    def resume(self) -> None:
        """Let it go on."""
        while self._stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._stopped.pop(), signal.SIGCONT)

    def backends(self, application: str = "leasehold%") -> list[int]:
        """The process ids of the backends that serve connections of this kind."""
        query = (
            "SELECT pid FROM pg_stat_activity WHERE application_name LIKE %s AND pid <> pg_backend_pid() "
            "AND backend_type = 'client backend' AND datname = 'leasehold'"
        )
        return [pid for [pid] in self.sql(query, application)]

    def terminate(self, pid: int) -> None:
        """End one backend, as an administrator would."""
        self.sql("SELECT pg_terminate_backend(%s, 10000)", pid)


def _children(parent: int) -> list[int]:
    task = Path(f"/proc/{parent}/task/{parent}/children")
    return [int(pid) for pid in task.read_text().split()]


def _stands_still(pid: int) -> bool:
    """Whether it is stopped, or gone."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True
    return state in "TZX"


@contextlib.contextmanager
def running_postgres(**settings: str) -> Iterator[PostgresServer]:
    """Run a fresh server for as long as the block."""
    with memory_folder() as folder:
        server = PostgresServer(folder, settings)
        try:
            server.create()
            yield server
        finally:
            server.kill()


TABLES = "leasehold_meta, leasehold_lease, leasehold_seat, leasehold_waiter, leasehold_session"
INTERRUPTIONS = 60


@contextlib.contextmanager
def under_contract(scheme: str) -> Iterator[EngineUnderTest]:
    """A server for the contract suite; the one that the environment names, if it names one."""

    def address(url: str) -> str:
        return url.replace("postgresql", scheme, 1)

    given = servers.given_url("postgresql")
    if given:
        yield EngineUnderTest(url=address(given), interruptions=INTERRUPTIONS)
        return
    with running_postgres() as server:

        def wipe() -> None:
            for pid in server.backends("%"):
                server.terminate(pid)
            server.sql(f"DROP TABLE {TABLES}")

        yield EngineUnderTest(
            url=address(server.url),
            pause=server.pause,
            resume=server.resume,
            restart=server.restart,
            wipe=wipe,
            address=("127.0.0.1", server.port),
            url_at=lambda host, port: address(server.url_at(host, port)),
            interruptions=INTERRUPTIONS,
        )
