"""Peers on Redis: redis-py's own lock, python-redis-lock and pottery."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, ClassVar

from leasehold.chaos.peers.base import Peer, PeerHeld, imported
from leasehold.chaos.subject import Held


class OnRedis(Peer):
    """A library over a client of redis-py with its defaults."""

    engines: ClassVar[tuple[str, ...]] = ("redis", "valkey")

    def connect(self, url: str) -> None:
        """Make a client of redis-py."""
        self._client: Any = imported("redis").Redis.from_url(url)

    def close(self) -> None:
        """Close its connections."""
        self._client.close()


class RedisPy(OnRedis):
    """`Redis.lock`: SET NX with a TTL, polled ten times a second; not renewed."""

    name: ClassVar[str] = "redis-py"
    label: ClassVar[str] = "redis-py Lock"
    package: ClassVar[str] = "redis"
    distribution: ClassVar[str] = "redis"
    renews: ClassVar[bool] = False

    def acquire(self, key: str, ttl: float, wait: float, _told: Callable[[], None]) -> Held | None:
        """Take one lock."""
        lock = self._client.lock(key, timeout=ttl, blocking_timeout=wait)
        if not lock.acquire():
            return None
        return PeerHeld(lock.owned, lambda: self._release(lock), time.monotonic() + ttl)

    @staticmethod
    def _release(lock: Any) -> bool:
        try:
            lock.release()
        except imported("redis.exceptions").LockError:
            return False
        return True


class PythonRedisLock(OnRedis):
    """`redis_lock.Lock` with `auto_renewal`: a thread renews each lock; waiters are woken by a list."""

    name: ClassVar[str] = "python-redis-lock"
    label: ClassVar[str] = "python-redis-lock, renewing"
    package: ClassVar[str] = "redis_lock"
    distribution: ClassVar[str] = "python-redis-lock"
    renews: ClassVar[bool] = True

    def acquire(self, key: str, ttl: float, wait: float, _told: Callable[[], None]) -> Held | None:
        """Take one lock; the library takes whole seconds only."""
        lock = imported("redis_lock").Lock(self._client, key, expire=max(round(ttl), 1), auto_renewal=True)
        if not lock.acquire(timeout=max(round(wait), 1)):
            return None
        return PeerHeld(lambda: bool(lock.get_owner_id() == lock.id), lambda: self._release(lock))

    @staticmethod
    def _release(lock: Any) -> bool:
        try:
            lock.release()
        except imported("redis_lock").NotAcquired:
            return False
        return True


class Pottery(OnRedis):
    """`pottery.Redlock` on one server; not renewed."""

    name: ClassVar[str] = "pottery"
    label: ClassVar[str] = "pottery Redlock, one server"
    package: ClassVar[str] = "pottery"
    distribution: ClassVar[str] = "pottery"
    renews: ClassVar[bool] = False

    def acquire(self, key: str, ttl: float, wait: float, _told: Callable[[], None]) -> Held | None:
        """Take one lock."""
        lock = imported("pottery").Redlock(key=key, masters={self._client}, auto_release_time=ttl)
        if not lock.acquire(timeout=wait):
            return None
        return PeerHeld(lambda: bool(lock.locked()), lambda: self._release(lock), time.monotonic() + ttl)

    @staticmethod
    def _release(lock: Any) -> bool:
        try:
            lock.release()
        except imported("pottery").ReleaseUnlockedLock:
            return False
        return True
