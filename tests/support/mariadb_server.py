"""A MariaDB server of the tests' own: in its own folder, on a free port of the loopback, ended by process id."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pymysql
import pytest
from tests.support.programs import program_of
from tests.support.server_process import ServerProcess, memory_folder

import servers
from leasehold.testing import EngineUnderTest
from leasehold.testing.ports import free_port

SYSTEM_USER = "mysql"
"""Who runs the server when the tests run as root, which it refuses to be run by."""
PASSWORD = "canary-7Qx"
"""Of the user `leasehold`. Nothing that Leasehold shows may contain it."""
SETTINGS = {
    "bind-address": "127.0.0.1",
    "max-connections": "400",
    "innodb-buffer-pool-size": "32M",
    "skip-name-resolve": "1",
}


class MariadbServer(ServerProcess):
    """One server process; `start` after `stop` or `kill` finds what the folder kept."""

    engine: ClassVar = "mariadb"
    settings: ClassVar[Mapping[str, str]] = {**SETTINGS, "innodb-log-file-size": "8M"}

    def __init__(self, folder: Path, **settings: str) -> None:
        super().__init__(self.engine, folder / "log")
        self.folder, self.data, self._program = folder, folder / "data", program_of(self.engine)
        self._settings = {**self.settings, **settings}
        self.port = free_port()

    # Addresses

    @property
    def url(self) -> str:
        """For a user who may do everything with the database and nothing else."""
        return self.url_at("127.0.0.1", self.port)

    def url_at(self, host: str, port: int) -> str:
        """The same database by way of another address, such as a proxy's."""
        return f"{self.engine}://leasehold:{PASSWORD}@{host}:{port}/leasehold"

    @property
    def socket(self) -> str:
        """The path of its Unix socket."""
        return str(self.folder / "socket")

    def superuser(self) -> pymysql.Connection[Any]:
        """A connection that may do everything, in autocommit mode."""
        return pymysql.connect(unix_socket=self.socket, user="root", autocommit=True, connect_timeout=10)

    def sql(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """Run one statement as the superuser."""
        with contextlib.closing(self.superuser()) as connection, connection.cursor() as cursor:
            cursor.execute(query, values or None)
            return list(cursor.fetchall())

    def add_user(self, name: str, how: str = f"BY '{PASSWORD}'") -> None:
        """Another user, who may do nothing yet."""
        self.sql(f"DROP USER IF EXISTS {name}")
        self.sql(f"CREATE USER {name} IDENTIFIED {how}")

    @contextlib.contextmanager
    def without_tls(self) -> Iterator[None]:
        """For as long as the block it speaks TLS with nobody new."""
        yield

    # Its life

    def create(self) -> None:
        """Make the data folder, the user and the database."""
        if os.geteuid() == 0:
            shutil.chown(self.folder, SYSTEM_USER, SYSTEM_USER)
        self._install()
        self.start()
        self.sql("CREATE DATABASE leasehold")
        self.add_user("leasehold")
        self.sql("GRANT ALL ON leasehold.* TO leasehold")

    def _install(self) -> None:
        """Make the data folder; root needs no password there."""
        install = shutil.which("mariadb-install-db") or "mariadb-install-db"
        self._run(install, "--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db")

    def _run(self, *command: str) -> None:
        whole = [*command, f"--datadir={self.data}", *self._own_place()]
        done = subprocess.run(whole, capture_output=True, text=True, cwd=self.folder, check=False)
        if done.returncode:
            pytest.fail(f"{command[0]} failed: {done.stdout[-300:]} {done.stderr[-300:]}")

    def _own_place(self) -> list[str]:
        """A folder for its temporary tables: one that starts deletes those of all others in the folder that it uses."""
        as_user = [f"--user={SYSTEM_USER}"] if os.geteuid() == 0 else []
        return [f"--tmpdir={self.folder}", *as_user]

    def start(self) -> None:
        """Start it, and wait until it answers."""
        command = [
            str(self._program), "--no-defaults", f"--datadir={self.data}", f"--port={self.port}",
            f"--socket={self.socket}", f"--pid-file={self.folder / 'pid'}", *self._own_place(),
            *(f"--{name}={value}" for name, value in self._settings.items()),
            *(() if "ssl-cert" in self._settings else self._without_certificate()),
        ]  # fmt: skip
        self.launch(command, self.folder)
        self.wait_until(self._answers)

    def _without_certificate(self) -> list[str]:
        """Newer ones make a certificate of their own; ours speak TLS where a test says so."""
        return ["--ssl=0"]

    def _answers(self) -> bool:
        """Whether it greets. A client library would leave sockets behind when it does not."""
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(5)
            try:
                probe.connect(self.socket)
                return bool(probe.recv(1))
            except OSError:
                return False

    def stop(self) -> None:
        """Shut it down in good order; connections are cut."""
        self.end(signal.SIGTERM)

    def restart(self) -> None:
        """Shut it down and start it on the same port."""
        self.stop()
        self.start()

    def connections(self, user: str = "leasehold") -> list[int]:
        """The ids of a user's connections."""
        return [number for [number] in self.sql("SELECT id FROM information_schema.processlist WHERE user = %s", user)]


class MysqlServer(MariadbServer):
    """The same of MySQL itself. It makes itself a certificate, and speaks TLS with whoever wants to."""

    engine: ClassVar = "mysql"
    settings: ClassVar[Mapping[str, str]] = {
        **SETTINGS,
        "loose-innodb-redo-log-capacity": "8M",  # older ones do not know it
        "mysqlx": "0",
        "secure-file-priv": "NULL",
    }

    _made: ClassVar[Path | None] = None
    """A data folder for all to copy: to make one takes seconds."""

    def _install(self) -> None:
        if MysqlServer._made is None:
            self._run(
                str(self._program), "--no-defaults", "--initialize-insecure", "--loose-innodb-redo-log-capacity=8M"
            )
            self.data.joinpath("auto.cnf").unlink()  # its name among replicas, which each makes up for itself
            kept = memory_folder()
            MysqlServer._made = kept.__enter__() / "data"
            atexit.register(kept.__exit__, None, None, None)
            shutil.copytree(self.data, MysqlServer._made)
        else:
            shutil.copytree(MysqlServer._made, self.data)
            if os.geteuid() == 0:
                for path in (self.data, *self.data.rglob("*")):
                    shutil.chown(path, SYSTEM_USER, SYSTEM_USER)

    def _without_certificate(self) -> list[str]:
        return []

    @contextlib.contextmanager
    def without_tls(self) -> Iterator[None]:
        """For as long as the block it speaks TLS with nobody new."""
        [[certificate]] = self.sql("SELECT @@global.ssl_cert")
        self.sql("SET GLOBAL ssl_cert = 'nowhere'")
        self.sql("ALTER INSTANCE RELOAD TLS NO ROLLBACK ON ERROR")
        try:
            yield
        finally:
            self.sql("SET GLOBAL ssl_cert = %s", certificate)
            self.sql("ALTER INSTANCE RELOAD TLS")


KINDS: Mapping[str, type[MariadbServer]] = {"mariadb": MariadbServer, "mysql": MysqlServer}


@contextlib.contextmanager
def running_mariadb(
    *, engine: str | None = None, files: Mapping[str, Path] | None = None, **settings: str
) -> Iterator[MariadbServer]:
    """Run a fresh server for as long as the block; `files` are settings that name files, which are copied for it."""
    with memory_folder() as folder:
        for name, path in (files or {}).items():
            settings[name] = shutil.copy(path, str(folder))
            if os.geteuid() == 0:
                shutil.chown(settings[name], SYSTEM_USER, SYSTEM_USER)
        server = KINDS[engine or os.environ.get(STANDS_FOR_BOTH, "mariadb")](folder, **settings)
        try:
            server.create()
            yield server
        finally:
            server.kill()


STANDS_FOR_BOTH = "LEASEHOLD_TEST_MYSQL_BY"
"""Names the server that tests start which ask for one of the two, whichever it is: `mariadb` if nothing is said."""


TABLES = ("meta", "lease", "seat", "waiter", "wake", "session")
INTERRUPTIONS = 50


@contextlib.contextmanager
def under_contract(scheme: str) -> Iterator[EngineUnderTest]:
    """A server for the contract suite: one's own, or a fresh one."""

    def of_scheme(url: str) -> str:
        return f"{scheme}://{url.partition('://')[2]}"

    engine = scheme.partition("+")[0]
    given = servers.given_url(engine)
    if given:
        yield EngineUnderTest(url=of_scheme(given), interruptions=INTERRUPTIONS)
        return
    with running_mariadb(engine=engine) as server:

        def wipe() -> None:
            if scheme.endswith("+session"):  # locks of the server's own go with their connections
                for number in server.connections():
                    server.sql(f"KILL {number}")
            server.sql(f"DROP TABLE {', '.join(f'leasehold.leasehold_{table}' for table in TABLES)}")

        yield EngineUnderTest(
            url=of_scheme(server.url),
            pause=server.pause,
            resume=server.resume,
            restart=server.restart,
            wipe=wipe,
            address=("127.0.0.1", server.port),
            url_at=lambda host, port: of_scheme(server.url_at(host, port)),
            interruptions=INTERRUPTIONS,
        )
