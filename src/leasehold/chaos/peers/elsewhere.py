"""Peers on other engines: kazoo on ZooKeeper, etcd3gw on etcd, pals on PostgreSQL."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any, ClassVar
from urllib.parse import urlsplit

from leasehold.chaos.addresses import addresses
from leasehold.chaos.peers.base import Peer, PeerHeld, imported
from leasehold.chaos.subject import Held


class Kazoo(Peer):
    """`KazooClient.Lock`: a node in a session, which the client keeps alive; a lost session is told to listeners."""

    name: ClassVar[str] = "kazoo"
    label: ClassVar[str] = "kazoo Lock"
    package: ClassVar[str] = "kazoo"
    distribution: ClassVar[str] = "kazoo"
    engines: ClassVar[tuple[str, ...]] = ("zookeeper",)
    renews: ClassVar[bool] = True

    def connect(self, url: str) -> None:
        """Remember where it is: the TTL of a session is known with the first lock."""
        self._hosts = urlsplit(url).netloc
        self._client: Any = None
        self._told: dict[int, Callable[[], None]] = {}

    def _session(self, ttl: float) -> Any:
        if self._client is None:
            client = imported("kazoo.client").KazooClient(hosts=self._hosts, timeout=ttl)
            client.add_listener(self._listen)
            client.start(timeout=30)
            self._client = client
        return self._client

    def _listen(self, state: str) -> None:
        """Its documentation says that a holder has to stop in both of these states."""
        if state in ("SUSPENDED", "LOST"):
            for told in list(self._told.values()):
                told()

    def acquire(self, key: str, ttl: float, wait: float, told: Callable[[], None]) -> Held | None:
        """Take one lock."""
        client = self._session(ttl)
        lock = client.Lock(f"/{key}")
        # It may be lost before anybody has been told that it was granted.
        lost: list[bool] = []

        def note() -> None:
            lost.append(True)
            told()

        self._told[id(lock)] = note
        try:
            granted = lock.acquire(timeout=wait)
        except imported("kazoo.exceptions").LockTimeout:
            granted = False
        if not granted:
            del self._told[id(lock)]
            return None

        def release() -> bool:
            try:
                return bool(lock.release()) and not lost
            finally:
                self._told.pop(id(lock), None)

        return PeerHeld(lambda: bool(lock.is_acquired) and not lost and client.state == "CONNECTED", release)

    def close(self) -> None:
        """End the session."""
        if self._client is not None:
            self._client.stop()
            self._client.close()


class Etcd3gw(Peer):
    """`etcd3gw.Lock`: a key in a lease, through the JSON gateway; not renewed, and it does not wait."""

    name: ClassVar[str] = "etcd3gw"
    label: ClassVar[str] = "etcd3gw Lock"
    package: ClassVar[str] = "etcd3gw"
    distribution: ClassVar[str] = "etcd3gw"
    engines: ClassVar[tuple[str, ...]] = ("etcd",)
    renews: ClassVar[bool] = False
    asks_every: ClassVar[float] = 0.1

    def connect(self, url: str) -> None:
        """Make a client for the first host: it takes one only."""
        [(host, port), *_] = addresses(url)
        self._client: Any = imported("etcd3gw").client(host=host, port=port, api_path="/v3/", timeout=5)

    def acquire(self, key: str, ttl: float, wait: float, _told: Callable[[], None]) -> Held | None:
        """Take one lock, asking again and again: the library leaves the waiting to its caller."""
        give_up_at = time.monotonic() + wait
        lock = self._client.lock(key, max(round(ttl), 1))
        while not lock.acquire():
            # A try that failed leaves its lease behind, unless its caller takes it back.
            with contextlib.suppress(Exception):
                lock.lease.revoke()
            if time.monotonic() > give_up_at:
                return None
            time.sleep(self.asks_every)
        return PeerHeld(lock.is_acquired, lambda: bool(lock.release()), time.monotonic() + ttl)

    def close(self) -> None:
        """Close its connections."""
        self._client.session.close()


class Pals(Peer):
    """`pals.Locker`: an advisory lock of a session of PostgreSQL, which ends with its connection."""

    name: ClassVar[str] = "pals"
    label: ClassVar[str] = "pals, advisory lock"
    package: ClassVar[str] = "pals"
    distribution: ClassVar[str] = "PALs psycopg2-binary"
    engines: ClassVar[tuple[str, ...]] = ("postgresql",)
    renews: ClassVar[bool] = True

    def connect(self, url: str) -> None:
        """Make a locker; SQLAlchemy speaks by psycopg2."""
        self._locker: Any = imported("pals").Locker(self._namespace, url)

    def acquire(self, key: str, _ttl: float, wait: float, _told: Callable[[], None]) -> Held | None:
        """Take one lock; there is no TTL."""
        lock = self._locker.lock(key, acquire_timeout=round(wait * 1000))
        if not lock.acquire():
            return None
        return PeerHeld(lambda: lock.conn is not None and not lock.conn.closed, lambda: bool(lock.release()))

    def close(self) -> None:
        """Close its connections."""
        self._locker.engine.dispose()
