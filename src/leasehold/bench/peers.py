"""The peers, as their documentation shows them: a TTL of 30 s where there is one, and everything else by default.

A library that leaves waiting to its caller is asked again each 0.1 s, and one who got nothing sleeps in between.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from leasehold.bench.contestant import PATIENCE, TTL, AsyncContestant, AsyncOpened, Contestant, Opened
from leasehold.bench.places import Place

ASKS_EVERY = 0.1


class Polled:
    """A lock that its caller has to ask for again and again."""

    def __init__(self, acquire: Callable[[], Any], release: Callable[[Any], object]) -> None:
        self._acquire, self._release = acquire, release
        self._grant: Any = None

    def __enter__(self) -> None:
        while not (grant := self._acquire()):
            time.sleep(ASKS_EVERY)
        self._grant = grant

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._release(self._grant)


class InLoop:
    """A lock of the asyncio world, for a process that does nothing else meanwhile."""

    def __init__(self, runner: asyncio.Runner, lock: AbstractAsyncContextManager[Any]) -> None:
        self._runner, self._lock = runner, lock

    def __enter__(self) -> None:
        self._runner.run(self._enter())

    async def _enter(self) -> None:
        await self._lock.__aenter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._runner.run(self._exit(kind, error, trace))

    async def _exit(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._lock.__aexit__(kind, error, trace)


# Redis


def _for_redis_py(url: str) -> str:
    """The same address in the words of redis-py."""
    scheme, colon, rest = url.partition(":")
    return {"redis+unix": "unix", "valkey": "redis", "valkeys": "rediss"}.get(scheme, scheme) + colon + rest


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


def _members(place: Place) -> list[Any]:
    """A client of redis-py for each server of a place."""
    redis, parts = importlib.import_module("redis"), urlsplit(place.on)
    if parts.scheme != "redlock":
        return [redis_py_client(place)]
    return [redis.Redis.from_url(f"redis://{host}") for host in parts.netloc.split(",")]


def _pottery(place: Place, name: str, ttl: int = TTL) -> Opened:
    clients, pottery = _members(place), importlib.import_module("pottery")
    key = f"{place.namespace}:{name}:pottery"

    def fresh() -> AbstractContextManager[Any]:
        lock: AbstractContextManager[Any] = pottery.Redlock(key=key, masters=set(clients), auto_release_time=ttl)
        return lock

    lock = fresh()
    return Opened(lambda: lock, fresh, lambda: [client.close() for client in clients])


def _redlock_py(place: Place, name: str, ttl: int = TTL) -> Opened:
    clients, redlock = _members(place), importlib.import_module("redlock")
    manager = redlock.Redlock(clients, retry_count=1)
    key = f"{place.namespace}:{name}:redlock-py"

    def fresh() -> Polled:
        return Polled(lambda: manager.lock(key, ttl * 1000), manager.unlock)

    lock = fresh()
    return Opened(lambda: lock, fresh, lambda: [client.close() for client in clients])


def _redis_py_async(place: Place, name: str) -> AsyncOpened:
    redis = importlib.import_module("redis.asyncio")
    client = redis.Redis.from_url(_for_redis_py(place.on))
    key = f"{place.namespace}:{name}:redis-py-asyncio"
    lock = client.lock(key, timeout=TTL)
    return AsyncOpened(lambda: lock, lambda: client.lock(key, timeout=TTL), client.aclose)


# Files


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


def _portalocker(place: Place, name: str, _ttl: int = TTL) -> Opened:
    portalocker, path = importlib.import_module("portalocker"), place.folder / f"{name}.portalocker"

    def fresh() -> AbstractContextManager[Any]:
        lock: AbstractContextManager[Any] = portalocker.Lock(path, timeout=PATIENCE)
        return lock

    lock = fresh()
    return Opened(lambda: lock, fresh, lambda: None)


def _fasteners(place: Place, name: str, _ttl: int = TTL) -> Opened:
    fasteners, path = importlib.import_module("fasteners"), place.folder / f"{name}.fasteners"
    lock = fasteners.InterProcessLock(path)
    return Opened(lambda: lock, lambda: fasteners.InterProcessLock(path), lambda: None)


# Databases


def _advisory_lock(place: Place, _name: str, _ttl: int = TTL) -> Opened:
    from leasehold.bench.postgres import AdvisoryLock

    lock = AdvisoryLock(place)
    return Opened(lambda: lock, lambda: lock, lock.close)


def _named_lock(place: Place, _name: str, _ttl: int = TTL) -> Opened:
    from leasehold.bench.mysql import NamedLock

    lock = NamedLock(place)
    return Opened(lambda: lock, lambda: lock, lock.close)


def _pals(place: Place, name: str, _ttl: int = TTL) -> Opened:
    locker = importlib.import_module("pals").Locker(place.namespace, place.on.replace("+session", "", 1))

    def fresh() -> AbstractContextManager[Any]:
        lock: AbstractContextManager[Any] = locker.lock(name, acquire_timeout=round(PATIENCE * 1000))
        return lock

    lock = fresh()
    return Opened(lambda: lock, fresh, locker.engine.dispose)


def _sqlalchemy_dlock(place: Place, name: str, _ttl: int = TTL) -> Opened:
    sqlalchemy, dlock = importlib.import_module("sqlalchemy"), importlib.import_module("sqlalchemy_dlock")
    driver = {"postgresql": "postgresql+psycopg2", "mysql": "mysql+pymysql"}[place.kind]
    engine = sqlalchemy.create_engine(driver + place.on[place.on.index(":") :])
    connection = engine.connect()
    # It waits for ever by default, which MariaDB refuses; on PostgreSQL a bound would make it poll.
    patience = {"contextual_timeout": PATIENCE} if place.kind == "mysql" else {}

    def fresh() -> AbstractContextManager[Any]:
        lock: AbstractContextManager[Any] = dlock.create_sadlock(connection, f"{place.namespace}-{name}", **patience)
        return lock

    return Opened(fresh, fresh, lambda: (connection.close(), engine.dispose()))


# Stores that agree


def _etcd3gw(place: Place, name: str, ttl: int = TTL) -> Opened:
    parts = urlsplit(place.on)
    client = importlib.import_module("etcd3gw").client(
        host=parts.hostname, port=parts.port or 2379, api_path="/v3/", timeout=60
    )

    def fresh() -> Polled:
        lock = client.lock(f"{place.namespace}-{name}", ttl)

        def acquire() -> bool:
            if lock.acquire():
                return True
            lock.lease.revoke()  # a try that failed leaves its lease behind
            return False

        return Polled(acquire, lambda _grant: lock.release())

    lock = fresh()
    return Opened(lambda: lock, fresh, client.session.close)


def _etcd_client_py(place: Place, name: str, ttl: int = TTL) -> Opened:
    library = importlib.import_module("etcd_client")
    client = library.Client([f"http://{urlsplit(place.on).netloc}"])
    option = library.EtcdLockOption(f"{place.namespace}-{name}".encode(), ttl=ttl)
    runner = asyncio.Runner()

    def fresh() -> InLoop:
        return InLoop(runner, client.with_lock(option))

    return Opened(fresh, fresh, runner.close)


def _kazoo(place: Place, name: str, ttl: int = TTL) -> Opened:
    client = importlib.import_module("kazoo.client").KazooClient(hosts=urlsplit(place.on).netloc, timeout=ttl)
    client.start(timeout=30)
    path = f"/{place.namespace}-{name}"
    lock = client.Lock(path)

    def close() -> None:
        with contextlib.suppress(Exception):  # others may have left their nodes in it, and remove it themselves
            client.delete(path)
        client.stop()
        client.close()

    return Opened(lambda: lock, lambda: client.Lock(path), close)


def _py_consul(place: Place, name: str, ttl: int = TTL) -> Opened:
    from leasehold.bench.consul import HandMade

    lock = HandMade(place, name, ttl)
    return Opened(lambda: lock, lambda: lock, lock.close)


def _redis_queue(place: Place, name: str, _ttl: int = TTL) -> Opened:
    from leasehold.bench.redis_queue import RedisQueue

    queue = RedisQueue(place, name)
    return Opened(lambda: queue, lambda: queue, queue.close)


REDIS_PY = Contestant("redis-py", "redis-py Lock", "redis", "redis", _redis_py)
PYTHON_REDIS_LOCK = Contestant("python-redis-lock", "python-redis-lock", "redis", "redis_lock", _python_redis_lock)
PEERS = (
    REDIS_PY,
    PYTHON_REDIS_LOCK,
    Contestant("redis-queue", "bare queue by hand, without leases", "redis", "hiredis", _redis_queue, bare=True),
    Contestant(
        "python-redis-lock-renewing",
        "python-redis-lock, renewing",
        "redis",
        "redis_lock",
        _python_redis_lock_renewing,
        contends=False,
    ),
    Contestant("pottery", "pottery Redlock, one server", "redis", "pottery", _pottery),
    Contestant("redlock-py", "redlock-py, one server", "redis", "redlock", _redlock_py),
    Contestant("pottery-majority", "pottery Redlock", "redlock", "pottery", _pottery),
    Contestant("redlock-py-majority", "redlock-py", "redlock", "redlock", _redlock_py),
    Contestant("filelock", "filelock", "sqlite", "filelock", _filelock),
    Contestant("filelock-sqlite", "filelock's SQLite lock", "sqlite", "filelock", _filelock_sqlite),
    Contestant("portalocker", "portalocker", "sqlite", "portalocker", _portalocker),
    Contestant("fasteners", "fasteners", "sqlite", "fasteners", _fasteners),
    Contestant(
        "advisory-lock", "pg_advisory_lock by hand, psycopg", "postgresql", "psycopg", _advisory_lock, bare=True
    ),
    Contestant("pals", "pals", "postgresql", "pals", _pals),
    Contestant("sqlalchemy-dlock", "sqlalchemy-dlock", "postgresql", "sqlalchemy_dlock", _sqlalchemy_dlock),
    Contestant("named-lock", "GET_LOCK by hand, PyMySQL", "mysql", "pymysql", _named_lock, bare=True),
    Contestant("sqlalchemy-dlock-mysql", "sqlalchemy-dlock", "mysql", "sqlalchemy_dlock", _sqlalchemy_dlock),
    Contestant("etcd3gw", "etcd3gw Lock", "etcd", "etcd3gw", _etcd3gw),
    Contestant("etcd-client-py", "etcd-client-py", "etcd", "etcd_client", _etcd_client_py),
    Contestant("kazoo", "kazoo Lock", "zookeeper", "kazoo", _kazoo),
    Contestant("py-consul", "session and key by hand, py-consul", "consul", "consul", _py_consul),
)
"""In blocking code; a library stands here once for each kind of place that it runs on."""
ASYNC_PEERS = (AsyncContestant("redis-py asyncio Lock", "redis", "redis", _redis_py_async),)
