"""Where a run took place: the machine and every version that matters, so that figures can be compared."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import sqlite3
from datetime import UTC, datetime
from pathlib import Path

from leasehold.bench.places import OF_ITS_OWN, Place
from leasehold.bench.resp import BareSocket
from leasehold.bench.results import LOAD

PACKAGES = (
    "leasehold",
    "hiredis",
    "redis",
    "python-redis-lock",
    "pottery",
    "redlock-py",
    "filelock",
    "portalocker",
    "fasteners",
    "psycopg",
    "PALs",
    "sqlalchemy-dlock",
    "pymysql",
    "grpcio",
    "etcd3gw",
    "etcd-client-py",
    "kazoo",
    "py-consul",
)
NAMES = {
    "postgresql": "PostgreSQL",
    "mysql": "MySQL/MariaDB",
    "etcd": "etcd",
    "consul": "Consul",
    "zookeeper": "ZooKeeper",
}


def machine() -> dict[str, str]:
    """The machine, without anything that identifies it."""
    return {
        "": f"{_cores()} cores of {_processor()}",
        LOAD: f"{os.getloadavg()[0]:.1f}",
        "system": f"{platform.system()} {platform.release().partition('-')[0]}",
        "on": datetime.now(UTC).strftime("%Y-%m-%d"),
    }


def versions(places: list[Place]) -> dict[str, str]:
    """Python, the engines, and every package that is measured and installed."""
    found = {platform.python_implementation(): platform.python_version()}
    for place in places:
        if place.speaks_redis:
            with BareSocket(place.on) as asked:
                info = asked.info("server")
            name = "valkey_version" if "valkey_version" in info else "redis_version"
            found[name.removesuffix("_version").capitalize()] = info[name]
        elif place.kind in OF_ITS_OWN:
            found[NAMES[place.kind]] = importlib.import_module(OF_ITS_OWN[place.kind]).version(place)
        elif place.engine == "sqlite":
            found["SQLite"] = sqlite3.sqlite_version
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
