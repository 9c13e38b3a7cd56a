"""Who is measured: Leasehold, its peers, and the floor of each engine. Peers run as their documentation shows.

All are alike from outside: a context manager that holds one name. A TTL of 30 s is set wherever there is one.
"""

from __future__ import annotations

import importlib
import importlib.util
import sqlite3
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Protocol

from leasehold.bench.places import Place
from leasehold.bench.resp import BareSocket, packed

TTL = 30
PATIENCE = 600.0

Use = Callable[[], AbstractContextManager[Any]]
AsyncUse = Callable[[], AbstractAsyncContextManager[Any]]
Close = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Opened:
    """A contestant that is connected. `again` uses one lock object again and again, `fresh` makes one for each use."""

    again: Use
    fresh: Use
    close: Close


@dataclass(frozen=True, slots=True)
class AsyncOpened:
    """A connected contestant of the asyncio world; `close` returns an awaitable."""

    again: AsyncUse
    fresh: AsyncUse
    close: Callable[[], Any]


class Opener(Protocol):
    """Connects a contestant to an engine, to hold the name."""

    def __call__(self, place: Place, name: str, ttl: int = TTL, /) -> Opened:
        """Connect."""
        ...


@dataclass(frozen=True, slots=True)
class Contestant:
    """A way to hold a name in blocking code."""

    key: str
    label: str
    engine: Literal["any", "redis", "sqlite", "postgresql", "mysql", "etcd", "zookeeper"]
    package: str | None
    """What must be installed for it."""
    open: Opener

    def runs_on(self, place: Place) -> bool:
        """Whether it can be measured there."""
        return (
            self.engine == "any"
            or (self.engine == "redis" and place.speaks_redis)
            or (self.engine in ("sqlite", "etcd", "zookeeper") and place.engine == self.engine)
            or (self.engine == "postgresql" and place.speaks_postgres)
            or (self.engine == "mysql" and place.engine == "mysql")
        ) and (self.package is None or importlib.util.find_spec(self.package) is not None)


@dataclass(frozen=True, slots=True)
class AsyncContestant:
    """A way to hold a name in asyncio code. It is opened, used and closed in one event loop."""

    label: str
    open: Callable[[Place, str], AsyncOpened]


class RawRedis:
    """Two commands on a bare socket, with nothing between Python and the server: what any lock must cost."""

    def __init__(self, place: Place, name: str, ttl: int) -> None:
        self._bare = BareSocket(place.on)
        key = f"{place.namespace}:{name}:floor"
        self._take = packed("SET", key, "0123456789abcdef0123456789abcdef", "NX", "PX", ttl * 1000)
        self._release = packed("DEL", key)
        self._socket = self._bare.socket

    def __enter__(self) -> None:
        self._socket.sendall(self._take)
        if self._socket.recv(64) != b"+OK\r\n":
            raise RuntimeError("the floor's own key was taken")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.sendall(self._release)
        self._socket.recv(64)

    def close(self) -> None:
        """Close the connection."""
        self._bare.close()


class RawSQLite:
    """Two transactions of one row each, prepared: what any lock in such a file must cost."""

    def __init__(self, place: Place, name: str) -> None:
        self._name = name
        self._connection = sqlite3.connect(place.folder / "floor.db", isolation_level=None)
        for statement in (
            "PRAGMA journal_mode = WAL",
            "PRAGMA synchronous = NORMAL",
            "CREATE TABLE IF NOT EXISTS lease (name TEXT PRIMARY KEY, holder TEXT, token INTEGER, expires INTEGER)",
        ):
            self._connection.execute(statement).fetchall()
        self._execute = self._connection.execute

    def __enter__(self) -> None:
        self._execute(
            "INSERT INTO lease VALUES (?, ?, 1, ?) ON CONFLICT (name) DO UPDATE"
            " SET holder = excluded.holder, token = token + 1, expires = excluded.expires RETURNING token",
            (self._name, "0123456789abcdef0123456789abcdef", 1_700_000_000_000_000),
        ).fetchall()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._execute("UPDATE lease SET holder = NULL WHERE name = ? AND holder IS NOT NULL", (self._name,))

    def close(self) -> None:
        """Close the file."""
        self._connection.close()


def _raw_redis(place: Place, name: str, ttl: int = TTL) -> Opened:
    raw = RawRedis(place, name, ttl)
    return Opened(lambda: raw, lambda: raw, raw.close)


def _raw_sqlite(place: Place, name: str, _ttl: int = TTL) -> Opened:
    raw = RawSQLite(place, name)
    return Opened(lambda: raw, lambda: raw, raw.close)


def _raw_postgres(place: Place, name: str, _ttl: int = TTL) -> Opened:
    from leasehold.bench.postgres import RawPostgres

    raw = RawPostgres(place, name)
    return Opened(lambda: raw, lambda: raw, raw.close)


def _raw_etcd(place: Place, name: str, _ttl: int = TTL) -> Opened:
    from leasehold.bench.etcd import RawEtcd

    raw = RawEtcd(place, name)
    return Opened(lambda: raw, lambda: raw, raw.close)


def _advisory_lock(place: Place, _name: str, _ttl: int = TTL) -> Opened:
    from leasehold.bench.postgres import AdvisoryLock

    lock = AdvisoryLock(place)
    return Opened(lambda: lock, lambda: lock, lock.close)


def _raw_zookeeper(place: Place, name: str, _ttl: int = TTL) -> Opened:
    from leasehold.bench.zookeeper import RawZooKeeper

    raw = RawZooKeeper(place, name)
    return Opened(lambda: raw, lambda: raw, raw.close)


def _raw_mysql(place: Place, name: str, _ttl: int = TTL) -> Opened:
    from leasehold.bench.mysql import RawMysql

    raw = RawMysql(place, name)
    return Opened(lambda: raw, lambda: raw, raw.close)


def _named_lock(place: Place, _name: str, _ttl: int = TTL) -> Opened:
    from leasehold.bench.mysql import NamedLock

    lock = NamedLock(place)
    return Opened(lambda: lock, lambda: lock, lock.close)


def _leasehold(place: Place, name: str, ttl: int = TTL) -> Opened:
    from leasehold import Leasehold

    locks = Leasehold(place.on, namespace=place.namespace)
    lock = locks.lock(name, ttl=ttl, wait=PATIENCE)
    return Opened(lambda: lock, lambda: locks.lock(name, ttl=ttl, wait=PATIENCE), locks.close)


def redis_py_client(place: Place) -> Any:
    """A client of redis-py, with its defaults."""
    return importlib.import_module("redis").Redis.from_url(_for_redis_py(place.on))


def _redis_py(place: Place, name: str, ttl: int = TTL) -> Opened:
    client = redis_py_client(place)
    key = f"{place.namespace}:{name}:redis-py"
    lock = client.lock(key, timeout=ttl)
    return Opened(lambda: lock, lambda: client.lock(key, timeout=ttl), client.close)


def _python_redis_lock(place: Place, name: str, ttl: int = TTL, *, auto_renewal: bool = False) -> Opened:
    redis_lock, client = importlib.import_module("redis_lock"), redis_py_client(place)
    key = f"{place.namespace}:{name}"

    def fresh() -> AbstractContextManager[Any]:
        lock: AbstractContextManager[Any] = redis_lock.Lock(client, key, expire=ttl, auto_renewal=auto_renewal)
        return lock

    lock = fresh()
    return Opened(lambda: lock, fresh, client.close)


def _python_redis_lock_renewing(place: Place, name: str, ttl: int = TTL) -> Opened:
    return _python_redis_lock(place, name, ttl, auto_renewal=True)


def _filelock(place: Place, name: str, _ttl: int = TTL) -> Opened:
    filelock = importlib.import_module("filelock")
    path = place.folder / f"{name}.lock"
    lock = filelock.FileLock(path)
    return Opened(lambda: lock, lambda: filelock.FileLock(path, is_singleton=False), lambda: None)


def _filelock_sqlite(place: Place, name: str, _ttl: int = TTL) -> Opened:
    filelock = importlib.import_module("filelock")
    path = place.folder / f"{name}.filelock.db"
    lock = filelock.ReadWriteLock(path, is_singleton=False)

    def fresh() -> AbstractContextManager[Any]:
        one: AbstractContextManager[Any] = filelock.ReadWriteLock(path, is_singleton=False).write_lock()
        return one

    return Opened(lock.write_lock, fresh, lock.close)


def _leasehold_async(place: Place, name: str) -> AsyncOpened:
    from leasehold import AsyncLeasehold

    locks = AsyncLeasehold(place.on, namespace=place.namespace)
    lock = locks.lock(name, ttl=TTL, wait=PATIENCE)
    return AsyncOpened(lambda: lock, lambda: locks.lock(name, ttl=TTL, wait=PATIENCE), locks.close)


def _redis_py_async(place: Place, name: str) -> AsyncOpened:
    redis = importlib.import_module("redis.asyncio")
    client = redis.Redis.from_url(_for_redis_py(place.on))
    key = f"{place.namespace}:{name}:redis-py-asyncio"
    lock = client.lock(key, timeout=TTL)
    return AsyncOpened(lambda: lock, lambda: client.lock(key, timeout=TTL), client.aclose)


def _for_redis_py(url: str) -> str:
    """The same address in the words of redis-py."""
    scheme, colon, rest = url.partition(":")
    return {"redis+unix": "unix", "valkey": "redis", "valkeys": "rediss"}.get(scheme, scheme) + colon + rest


FLOOR_REDIS = Contestant("floor", "floor: two commands on a bare socket", "redis", None, _raw_redis)
FLOOR_SQLITE = Contestant("floor", "floor: two one-row transactions", "sqlite", None, _raw_sqlite)
FLOOR_POSTGRES = Contestant("floor", "floor: two one-row statements by libpq", "postgresql", "psycopg", _raw_postgres)
FLOOR_ETCD = Contestant("floor", "floor: two requests on a bare gRPC channel", "etcd", "grpc", _raw_etcd)
FLOOR_MYSQL = Contestant("floor", "floor: two one-row statements on a bare socket", "mysql", None, _raw_mysql)
FLOOR_ZOOKEEPER = Contestant("floor", "floor: two requests on a bare socket", "zookeeper", None, _raw_zookeeper)
LEASEHOLD = Contestant("leasehold", "Leasehold", "any", None, _leasehold)
REDIS_PY = Contestant("redis-py", "redis-py Lock", "redis", "redis", _redis_py)
PYTHON_REDIS_LOCK = Contestant("python-redis-lock", "python-redis-lock", "redis", "redis_lock", _python_redis_lock)
PYTHON_REDIS_LOCK_RENEWING = Contestant(
    "python-redis-lock-renewing", "python-redis-lock, renewing", "redis", "redis_lock", _python_redis_lock_renewing
)
FILELOCK = Contestant("filelock", "filelock", "sqlite", "filelock", _filelock)
FILELOCK_SQLITE = Contestant("filelock-sqlite", "filelock's SQLite lock", "sqlite", "filelock", _filelock_sqlite)
ADVISORY_LOCK = Contestant(
    "advisory-lock", "pg_advisory_lock by hand, psycopg", "postgresql", "psycopg", _advisory_lock
)
NAMED_LOCK = Contestant("named-lock", "GET_LOCK by hand, PyMySQL", "mysql", "pymysql", _named_lock)

LEASEHOLD_ASYNC = AsyncContestant("Leasehold", _leasehold_async)
REDIS_PY_ASYNC = AsyncContestant("redis-py asyncio Lock", _redis_py_async)

BY_KEY = {
    one.key: one
    for one in (
        LEASEHOLD,
        REDIS_PY,
        PYTHON_REDIS_LOCK,
        PYTHON_REDIS_LOCK_RENEWING,
        FILELOCK,
        FILELOCK_SQLITE,
        ADVISORY_LOCK,
        NAMED_LOCK,
    )
}


def floor_of(place: Place) -> Contestant | None:
    """The floor that ratios at a place are to; None where the benchmark knows none."""
    floors = (FLOOR_REDIS, FLOOR_SQLITE, FLOOR_POSTGRES, FLOOR_MYSQL, FLOOR_ETCD, FLOOR_ZOOKEEPER)
    return next((floor for floor in floors if floor.runs_on(place)), None)
