"""Where the programs of servers are on this machine: on PATH, where distributions put them, or in a folder of yours.

The folder is named by `LEASEHOLD_SERVERS`; in it each engine has a folder of its own, laid out as `/` is.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FOLDER: Final = "LEASEHOLD_SERVERS"


@dataclass(frozen=True)
class Program:
    """How a server's program is recognised."""

    file: str
    package: str
    """What Debian and Ubuntu call it."""
    places: tuple[str, ...] = ()
    """Patterns of places that are not on everybody's PATH; the newest version wins."""
    beside: tuple[str, ...] = ()
    """Programs that must stand in the same folder."""
    needs: tuple[str, ...] = ()
    """Other programs that must be on PATH."""
    impostors: tuple[str, ...] = ()
    """Programs to which a link of its name may lead, and which are another server."""


PROGRAMS: Final = {
    "redis": Program("redis-server", "redis-server"),
    "valkey": Program("valkey-server", "valkey-server"),
    "etcd": Program("etcd", "etcd-server"),
    "zookeeper": Program(
        "zookeeper.jar", "libzookeeper-java", places=("/usr/share/java/zookeeper.jar",), needs=("java",)
    ),
    "consul": Program("consul", "consul"),
    "postgresql": Program("postgres", "postgresql", places=("/usr/lib/postgresql/*/bin/postgres",), beside=("initdb",)),
    "mariadb": Program(
        "mariadbd",
        "mariadb-server",
        places=("/usr/sbin/mariadbd", "/usr/libexec/mariadbd"),
        needs=("mariadb-install-db",),
    ),
    "mysql": Program(
        "mysqld", "mysql-server", places=("/usr/sbin/mysqld", "/usr/libexec/mysqld"), impostors=("mariadbd",)
    ),
}


class NoServer(Exception):
    """A server cannot be started here; the message says what would help."""


def find(engine: str) -> Path:
    """The engine's program, or `NoServer`."""
    program = PROGRAMS[engine]
    lacking = [one for one in program.needs if not shutil.which(one)]
    if lacking:
        raise NoServer(f"a {engine} server needs {' and '.join(lacking)}, which {_are(lacking)} not on PATH")
    for path in _candidates(engine, program):
        is_it = path.is_file() and path.resolve().name not in program.impostors
        if is_it and all(path.with_name(name).is_file() for name in program.beside):
            return path
    raise NoServer(
        f"no {engine} server is on this machine: put {program.file} on PATH (Debian and Ubuntu have it in the package "
        f"{program.package}), or name the folder of your servers in {FOLDER}"
    )


def _are(things: list[str]) -> str:
    return "is" if len(things) == 1 else "are"


def _candidates(engine: str, program: Program) -> Iterator[Path]:
    on_path = shutil.which(program.file)
    if on_path:
        yield Path(on_path)
    for pattern in program.places:
        yield from sorted(Path("/").glob(pattern.removeprefix("/")), key=_by_version, reverse=True)
    folder = os.environ.get(FOLDER)
    if folder:
        yield from (Path(folder).resolve().joinpath(engine, "usr", part, program.file) for part in ("bin", "sbin"))


def _by_version(path: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", str(path))]
