"""What is known about libraries: which call makes which kind of thing, and what that kind promises."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """A kind of thing that rules care about."""

    library: str
    role: str
    """client, pipeline, cache, lock, lease, locks (makes locks), session, engine, connection, cursor, http"""
    awaited: bool = False
    """Its calls are awaited."""
    local: bool = False
    """A lock within one process."""
    expires: bool = False
    """A lock that ends by itself when its time is over."""
    raises: bool = False
    """Its acquire raises instead of returning False."""
    renews: bool = False
    """It renews by itself, in the background."""
    guessed: bool = False
    """Known by its name alone; whether its calls are awaited is not known."""


REDIS = Kind("redis", "client")
GUESSED_REDIS = Kind("redis", "client", guessed=True)
GUESSED_PIPELINE = Kind("redis", "pipeline", guessed=True)
GUESSED_REDIS_LOCK = Kind("redis", "lock", expires=True, guessed=True)
ASYNC_REDIS = Kind("redis", "client", awaited=True)
PIPELINE = Kind("redis", "pipeline")
ASYNC_PIPELINE = Kind("redis", "pipeline", awaited=True)
CACHE = Kind("django", "cache")
REDIS_LOCK = Kind("redis", "lock", expires=True)
ASYNC_REDIS_LOCK = Kind("redis", "lock", awaited=True, expires=True)
PYTHON_REDIS_LOCK = Kind("python-redis-lock", "lock", expires=True)
POTTERY_LOCK = Kind("pottery", "lock", expires=True)
ASYNC_POTTERY_LOCK = Kind("pottery", "lock", awaited=True, expires=True)
REDLOCK = Kind("redlock-py", "locks")
REDLOCK_LOCK = Kind("redlock-py", "lock", expires=True)
AIOREDLOCK = Kind("aioredlock", "locks", awaited=True)
KAZOO = Kind("kazoo", "client")
KAZOO_LOCK = Kind("kazoo", "lock")
ETCD = Kind("etcd3", "client")
ETCD_LOCK = Kind("etcd3", "lock", expires=True)
CONSUL = Kind("python-consul", "client")
FILE_LOCK = Kind("filelock", "lock", raises=True)
ASYNC_FILE_LOCK = Kind("filelock", "lock", awaited=True, raises=True)
PORTALOCKER_LOCK = Kind("portalocker", "lock", raises=True)
FASTENERS_LOCK = Kind("fasteners", "lock")
SHERLOCK_LOCK = Kind("sherlock", "lock", expires=True)
THREAD_LOCK = Kind("threading", "lock", local=True)
THREAD_CONDITION = Kind("threading", "condition", local=True)
PROCESS_LOCK = Kind("multiprocessing", "lock", local=True)
ASYNCIO_LOCK = Kind("asyncio", "lock", awaited=True, local=True)
SESSION = Kind("sqlalchemy", "session")
ASYNC_SESSION = Kind("sqlalchemy", "session", awaited=True)
SESSION_MAKER = Kind("sqlalchemy", "sessions")
ASYNC_SESSION_MAKER = Kind("sqlalchemy", "sessions", awaited=True)
ENGINE = Kind("sqlalchemy", "engine")
ASYNC_ENGINE = Kind("sqlalchemy", "engine", awaited=True)
SA_CONNECTION = Kind("sqlalchemy", "connection")
DB_CONNECTION = Kind("dbapi", "connection")
DB_CURSOR = Kind("dbapi", "cursor")
ASYNCPG_CONNECTION = Kind("asyncpg", "connection", awaited=True)
ASYNCPG_POOL = Kind("asyncpg", "engine", awaited=True)
HTTP = Kind("http", "http")
LEASEHOLD = Kind("leasehold", "locks")
ASYNC_LEASEHOLD = Kind("leasehold", "locks", awaited=True)
LEASEHOLD_LOCK = Kind("leasehold", "lock", expires=True, raises=True, renews=True)
ASYNC_LEASEHOLD_LOCK = Kind("leasehold", "lock", awaited=True, expires=True, raises=True, renews=True)
LEASE = Kind("leasehold", "lease", expires=True, raises=True, renews=True)
ASYNC_LEASE = Kind("leasehold", "lease", awaited=True, expires=True, raises=True, renews=True)


def _each(module: str, names: str, kind: Kind) -> dict[str, Kind]:
    return {f"{module}.{name}": kind for name in names.split()}


_SYNC_CLIENTS = "Redis StrictRedis RedisCluster from_url Valkey StrictValkey ValkeyCluster"

MADE_BY: dict[str, Kind] = {
    **_each("redis", f"{_SYNC_CLIENTS} client.Redis client.StrictRedis cluster.RedisCluster", REDIS),
    **_each("valkey", _SYNC_CLIENTS, REDIS),
    **_each("rediscluster", "RedisCluster StrictRedisCluster", REDIS),
    **_each("fakeredis", "FakeRedis FakeStrictRedis FakeValkey", REDIS),
    "flask_redis.FlaskRedis": REDIS,
    "django_redis.get_redis_connection": REDIS,
    "walrus.Database": REDIS,
    "upstash_redis.Redis": REDIS,
    **_each("redis.asyncio", "Redis StrictRedis RedisCluster from_url client.Redis", ASYNC_REDIS),
    **_each("valkey.asyncio", "Valkey StrictValkey ValkeyCluster from_url", ASYNC_REDIS),
    **_each("aioredis", "Redis StrictRedis from_url create_redis create_redis_pool", ASYNC_REDIS),
    "fakeredis.aioredis.FakeRedis": ASYNC_REDIS,
    **_each("redis.client", "Pipeline", PIPELINE),
    **_each("redis.asyncio.client", "Pipeline", ASYNC_PIPELINE),
    "django.core.cache.cache": CACHE,
    "redis.lock.Lock": REDIS_LOCK,
    "redis.asyncio.lock.Lock": ASYNC_REDIS_LOCK,
    "redis_lock.Lock": PYTHON_REDIS_LOCK,
    "pottery.Redlock": POTTERY_LOCK,
    "pottery.AIORedlock": ASYNC_POTTERY_LOCK,
    **_each("redlock", "Redlock", REDLOCK),
    **_each("redlock", "RedLock ReentrantRedLock RedLockFactory.create_lock", REDLOCK_LOCK),
    "aioredlock.Aioredlock": AIOREDLOCK,
    "kazoo.client.KazooClient": KAZOO,
    **_each("kazoo.recipe.lock", "Lock ReadLock WriteLock Semaphore", KAZOO_LOCK),
    **_each("etcd3", "client Etcd3Client MultiEndpointEtcd3Client", ETCD),
    "etcd3.locks.Lock": ETCD_LOCK,
    **_each("consul", "Consul", CONSUL),
    **_each("filelock", "FileLock SoftFileLock UnixFileLock WindowsFileLock BaseFileLock", FILE_LOCK),
    **_each("filelock", "AsyncFileLock AsyncSoftFileLock AsyncUnixFileLock BaseAsyncFileLock", ASYNC_FILE_LOCK),
    **_each("portalocker", "Lock RLock TemporaryFileLock BoundedSemaphore NamedBoundedSemaphore", PORTALOCKER_LOCK),
    **_each("fasteners", "InterProcessLock InterProcessReaderWriterLock", FASTENERS_LOCK),
    **_each("fasteners.process_lock", "InterProcessLock", FASTENERS_LOCK),
    **_each("sherlock", "Lock RedisLock EtcdLock MCLock KubernetesLock", SHERLOCK_LOCK),
    **_each("threading", "Lock RLock Semaphore BoundedSemaphore", THREAD_LOCK),
    "threading.Condition": THREAD_CONDITION,
    **_each("_thread", "allocate_lock RLock", THREAD_LOCK),
    **_each("multiprocessing", "Lock RLock Semaphore BoundedSemaphore", PROCESS_LOCK),
    **_each("asyncio", "Lock Semaphore BoundedSemaphore", ASYNCIO_LOCK),
    **_each("anyio", "Lock Semaphore", ASYNCIO_LOCK),
    **_each("sqlalchemy.orm", "Session scoped_session session.Session", SESSION),
    "sqlalchemy.orm.sessionmaker": SESSION_MAKER,
    **_each("sqlalchemy.ext.asyncio", "AsyncSession async_scoped_session", ASYNC_SESSION),
    "sqlalchemy.ext.asyncio.async_sessionmaker": ASYNC_SESSION_MAKER,
    **_each("sqlmodel", "Session", SESSION),
    **_each("sqlalchemy", "create_engine engine.create_engine Engine engine.Engine", ENGINE),
    **_each("sqlalchemy.ext.asyncio", "create_async_engine AsyncEngine", ASYNC_ENGINE),
    **_each("sqlalchemy", "Connection engine.Connection", SA_CONNECTION),
    **_each("psycopg", "connect Connection Connection.connect", DB_CONNECTION),
    **_each("psycopg2", "connect extensions.connection", DB_CONNECTION),
    **_each("pymysql", "connect Connection", DB_CONNECTION),
    **_each("MySQLdb", "connect", DB_CONNECTION),
    "mysql.connector.connect": DB_CONNECTION,
    "django.db.connection": DB_CONNECTION,
    "asyncpg.connect": ASYNCPG_CONNECTION,
    "asyncpg.Connection": ASYNCPG_CONNECTION,
    **_each("asyncpg", "create_pool Pool", ASYNCPG_POOL),
    **_each("requests", "Session session sessions.Session", HTTP),
    **_each("httpx", "Client AsyncClient", HTTP),
    "aiohttp.ClientSession": HTTP,
    "leasehold.Leasehold": LEASEHOLD,
    "leasehold.AsyncLeasehold": ASYNC_LEASEHOLD,
    "leasehold.Lock": LEASEHOLD_LOCK,
    "leasehold.AsyncLock": ASYNC_LEASEHOLD_LOCK,
    "leasehold.Lease": LEASE,
    "leasehold.AsyncLease": ASYNC_LEASE,
}
"""The dotted name of a class or function -> what it makes; an annotation with that name means the same."""

_LOCK_MAKERS = ("lock", "shared", "permits")

GIVES: dict[tuple[Kind, str], Kind] = {
    (REDIS, "lock"): REDIS_LOCK,
    (ASYNC_REDIS, "lock"): ASYNC_REDIS_LOCK,
    (GUESSED_REDIS, "lock"): GUESSED_REDIS_LOCK,
    (GUESSED_REDIS, "pipeline"): GUESSED_PIPELINE,
    (REDIS, "pipeline"): PIPELINE,
    (ASYNC_REDIS, "pipeline"): ASYNC_PIPELINE,
    (CACHE, "lock"): REDIS_LOCK,
    **{(KAZOO, name): KAZOO_LOCK for name in ("Lock", "ReadLock", "WriteLock", "Semaphore")},
    (ETCD, "lock"): ETCD_LOCK,
    (SESSION_MAKER, "()"): SESSION,
    (SESSION_MAKER, "begin"): SESSION,
    (ASYNC_SESSION_MAKER, "()"): ASYNC_SESSION,
    (ASYNC_SESSION_MAKER, "begin"): ASYNC_SESSION,
    (SESSION, "()"): SESSION,
    (ENGINE, "connect"): SA_CONNECTION,
    (ENGINE, "begin"): SA_CONNECTION,
    (ASYNC_ENGINE, "connect"): SA_CONNECTION,
    (ASYNC_ENGINE, "begin"): SA_CONNECTION,
    (SESSION, "connection"): SA_CONNECTION,
    (DB_CONNECTION, "cursor"): DB_CURSOR,
    (ASYNCPG_POOL, "acquire"): ASYNCPG_CONNECTION,
    **{(LEASEHOLD, name): LEASEHOLD_LOCK for name in _LOCK_MAKERS},
    **{(ASYNC_LEASEHOLD, name): ASYNC_LEASEHOLD_LOCK for name in _LOCK_MAKERS},
    (LEASEHOLD_LOCK, "acquire"): LEASE,
    (LEASEHOLD_LOCK, "try_acquire"): LEASE,
    (ASYNC_LEASEHOLD_LOCK, "acquire"): ASYNC_LEASE,
    (ASYNC_LEASEHOLD_LOCK, "try_acquire"): ASYNC_LEASE,
    (LEASEHOLD_LOCK, "with"): LEASE,
    (ASYNC_LEASEHOLD_LOCK, "with"): ASYNC_LEASE,
}
"""Kind and method (``()`` is a call of the thing itself, ``with`` what its block binds) -> what that returns."""

SAME_IN_WITH = frozenset({"client", "pipeline", "session", "engine", "connection", "cursor", "locks", "lock", "http"})
"""Roles of things whose ``with`` block binds the thing itself, unless `GIVES` says otherwise."""
