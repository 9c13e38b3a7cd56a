"""PostgreSQL, MariaDB and MySQL, one server each."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from leasehold.chaos.servers.process import OwnServer, heard


class PostgresServer(OwnServer):
    """A cluster of its own, with one user who may do everything."""

    other_user: ClassVar[str | None] = "postgres"
    ends_at: ClassVar[signal.Signals] = signal.SIGINT  # at SIGTERM it waits until the last client has gone

    def __init__(self, engine: str, folder: Path, name: str, *, durable: bool) -> None:
        """Keep the data below the folder."""
        super().__init__(engine, folder, name, durable=durable)
        self._password = secrets.token_hex(16)

    def url_at(self, hosts: str) -> str:
        """The URL for this address."""
        return f"postgresql://leasehold:{self._password}@{hosts}/postgres"

    def prepare(self) -> None:
        """Make the data folder."""
        password = self.folder / "password"
        password.write_text(self._password)
        self.own_files()
        self.run(
                str(self.program.with_name("initdb")), f"--pgdata={self.data}", "--username=leasehold",
                f"--pwfile={password}", "--auth=scram-sha-256", "--no-sync", "--encoding=UTF8", "--locale=C",
        )  # fmt: skip
        password.unlink()

    def command(self) -> list[str]:
        """What starts it."""
        settings = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "max_connections": "200",
            "shared_buffers": "32MB",
        }
        return [
            str(self.program), "-D", str(self.data), "-p", str(self.port),
            *(part for name, value in settings.items() for part in ("-c", f"{name}={value}")),
        ]  # fmt: skip

    def answers(self) -> bool:
        """Whether it asks who is there: while it recovers, it says that nobody may come."""
        words = struct.pack("!i", 3 << 16) + b"user\0leasehold\0database\0postgres\0\0"
        return heard(self.port, struct.pack("!i", len(words) + 4) + words).startswith(b"R")


class MariadbServer(OwnServer):
    """A server of its own, with one user who may do everything in one database."""

    other_user: ClassVar[str | None] = "mysql"
    more_settings: ClassVar[Mapping[str, str]] = {"innodb-log-file-size": "8M"}

    def __init__(self, engine: str, folder: Path, name: str, *, durable: bool) -> None:
        """Keep the data below the folder."""
        super().__init__(engine, folder, name, durable=durable)
        self._password = secrets.token_hex(16)
        self._begin = self.folder / "begin.sql"

    def url_at(self, hosts: str) -> str:
        """The URL for this address."""
        return f"{self.engine}://leasehold:{self._password}@{hosts}/leasehold"

    def prepare(self) -> None:
        """Make the data folder, and what it is to do at each start."""
        self._begin.write_text(
            "CREATE DATABASE IF NOT EXISTS leasehold;\n"
            f"CREATE USER IF NOT EXISTS leasehold IDENTIFIED BY '{self._password}';\n"
            "GRANT ALL ON leasehold.* TO leasehold;\n"
        )
        self._begin.chmod(0o600)
        self.own_files()
        places = (f"--datadir={self.data}", f"--tmpdir={self.folder}", *self._as_server_user())
        self.run(*self._to_install(), *places)

    def _to_install(self) -> list[str]:
        install = shutil.which("mariadb-install-db") or "mariadb-install-db"
        return [install, "--no-defaults", "--skip-test-db"]

    def _as_server_user(self) -> list[str]:
        return [f"--user={self.other_user}"] if os.geteuid() == 0 else []

    def command(self) -> list[str]:
        """What starts it."""
        settings = {
            "datadir": str(self.data),
            "tmpdir": str(self.folder),  # when it starts, it deletes the temporary tables of all others in this folder
            "port": str(self.port),
            "bind-address": "127.0.0.1",
            "socket": str(self.folder / "socket"),
            "pid-file": str(self.folder / "pid"),
            "init-file": str(self._begin),
            "max-connections": "200",
            "innodb-buffer-pool-size": "32M",
            "skip-name-resolve": "1",
            **self.more_settings,
        }
        return [str(self.program), "--no-defaults", *(f"--{name}={value}" for name, value in settings.items())]

    def answers(self) -> bool:
        """Whether it greets."""
        return bool(heard(self.port))


class MysqlServer(MariadbServer):
    """The same of MySQL itself."""

    more_settings: ClassVar[Mapping[str, str]] = {
        "loose-innodb-redo-log-capacity": "8M",  # older ones do not know it
        "innodb-use-native-aio": "OFF",  # what writes past system calls of its own is not seen by a witness
        "mysqlx": "OFF",
        "secure-file-priv": "NULL",
    }

    def _to_install(self) -> list[str]:
        return [str(self.program), "--no-defaults", "--initialize-insecure", "--loose-innodb-redo-log-capacity=8M"]
