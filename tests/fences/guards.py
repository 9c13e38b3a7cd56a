"""One protected text at one resource, as the scenarios see it, for every kind of fence."""

from __future__ import annotations

import asyncio
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Self, TypeVar

import redis
import redis.asyncio

from leasehold.fences import AsyncRedisFence, RedisFence, SqliteFence
from leasehold.fences.redis import FLOORS
from leasehold.names import HIGHEST_TOKEN

T = TypeVar("T")


class Blocked(Exception):
    """The resource made the caller wait for another one, for longer than it wanted to."""


class Guard(ABC):
    """A client of the resource. Small tokens and huge ones are mixed freely here, so jumps are not limited."""

    resource: str

    def __init__(self) -> None:
        self._others: list[Guard] = []

    def another(self) -> Self:
        """Another client of the same resource, which is closed with this one."""
        other = self._another()
        self._others.append(other)
        return other

    @abstractmethod
    def _another(self) -> Self: ...

    @abstractmethod
    def write(self, token: int, value: str, *, once: bool = False, between: Callable[[], object] | None = None) -> None:
        """Write behind the check; `between` runs after the check and before the write, where there is a between."""

    @abstractmethod
    def write_past(self, value: str) -> None:
        """The same write by the same client, past the fence; there must have been a fenced one before."""

    @abstractmethod
    def floor_size(self) -> int:
        """How much is kept for floors there, of this resource and of others, in records or bytes."""

    @abstractmethod
    def read(self, token: int) -> str | None:
        """Read behind the check."""

    @abstractmethod
    def peek(self) -> str | None:
        """Read past the fence."""

    @abstractmethod
    def delete(self, token: int) -> None: ...

    @abstractmethod
    def announce(self, token: int) -> None: ...

    @abstractmethod
    def raise_floor(self, token: int) -> None: ...

    @abstractmethod
    def floor(self) -> int | None: ...

    def close(self) -> None:
        for other in self._others:
            other.close()
        self._close()

    @abstractmethod
    def _close(self) -> None: ...


class SqliteGuard(Guard):
    def __init__(self, folder: str, resource: str = "thing/1", *, patience: float = 0.2) -> None:
        super().__init__()
        self.folder, self.resource, self.patience = folder, resource, patience
        path = Path(folder) / "thing.db"
        # Whoever closes it may be another thread than the one that used it.
        self.database = sqlite3.connect(path, timeout=patience, isolation_level=None, check_same_thread=False)
        self.database.execute("PRAGMA synchronous = OFF")  # no test here cuts the power
        self.database.execute("CREATE TABLE IF NOT EXISTS thing (resource TEXT PRIMARY KEY, value TEXT)")
        self.fence = SqliteFence(self.database, jump_limit=HIGHEST_TOKEN)
        self.fence.create()

    def _another(self) -> Self:
        return type(self)(self.folder, self.resource, patience=self.patience)

    def write(self, token: int, value: str, *, once: bool = False, between: Callable[[], object] | None = None) -> None:
        try:
            with self.fence.writing(self.resource, token, once=once):
                if between is not None:
                    between()
                self.put(value)
        except sqlite3.OperationalError as error:
            raise Blocked(str(error)) from error

    def put(self, value: str) -> None:
        self.database.execute("INSERT OR REPLACE INTO thing VALUES (?, ?)", (self.resource, value))

    def write_past(self, value: str) -> None:
        self.database.execute("BEGIN IMMEDIATE")
        self.put(value)
        self.database.execute("COMMIT")

    def floor_size(self) -> int:
        return int(self.database.execute("SELECT count(*) FROM leasehold_fence").fetchone()[0])

    def read(self, token: int) -> str | None:
        with self.fence.reading(self.resource, token):
            return self.peek()

    def peek(self) -> str | None:
        row = self.database.execute("SELECT value FROM thing WHERE resource = ?", (self.resource,)).fetchone()
        return None if row is None else str(row[0])

    def delete(self, token: int) -> None:
        with self.fence.writing(self.resource, token) as connection:
            connection.execute("DELETE FROM thing WHERE resource = ?", (self.resource,))

    def announce(self, token: int) -> None:
        self.fence.announce(self.resource, token)

    def raise_floor(self, token: int) -> None:
        self.fence.raise_floor(self.resource, token)

    def floor(self) -> int | None:
        return self.fence.floor(self.resource)

    def _close(self) -> None:
        self.database.close()


class RedisGuard(Guard):
    def __init__(self, url: str, resource: str = "thing:1", *, patience: float = 0.2) -> None:
        super().__init__()
        self.url, self.resource = url, resource
        self.client = redis.Redis.from_url(url, decode_responses=True)
        self.fence = RedisFence(self.client, jump_limit=HIGHEST_TOKEN)

    def _another(self) -> Self:
        return type(self)(self.url, self.resource)

    def write(self, token: int, value: str, *, once: bool = False, between: Callable[[], object] | None = None) -> None:
        self.fence.set(self.resource, token, value, once=once)  # one script: there is no between

    def write_past(self, value: str) -> None:
        self.client.set(self.resource, value)

    def floor_size(self) -> int:
        return _size_of_floors(self.client)

    def read(self, token: int) -> str | None:
        return _text(self.fence.get(self.resource, token))

    def peek(self) -> str | None:
        return _text(self.client.get(self.resource))

    def delete(self, token: int) -> None:
        self.fence.delete(self.resource, token)

    def announce(self, token: int) -> None:
        self.fence.announce(self.resource, token)

    def raise_floor(self, token: int) -> None:
        self.fence.raise_floor(self.resource, token)

    def floor(self) -> int | None:
        return self.fence.floor(self.resource)

    def _close(self) -> None:
        self.client.close()


class AsyncRedisGuard(Guard):
    """Drives the asyncio fence from blocking scenarios, with an event loop of its own."""

    def __init__(self, url: str, resource: str = "thing:1", *, patience: float = 0.2) -> None:
        super().__init__()
        self.url, self.resource = url, resource
        self._runner = asyncio.Runner()
        self.client = redis.asyncio.Redis.from_url(url, decode_responses=True)
        self.fence = AsyncRedisFence(self.client, jump_limit=HIGHEST_TOKEN)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(coroutine)

    def _another(self) -> Self:
        return type(self)(self.url, self.resource)

    def write(self, token: int, value: str, *, once: bool = False, between: Callable[[], object] | None = None) -> None:
        self.run(self.fence.set(self.resource, token, value, once=once))

    def write_past(self, value: str) -> None:
        async def setting() -> None:
            await self.client.set(self.resource, value)

        self.run(setting())

    def floor_size(self) -> int:
        with redis.Redis.from_url(self.url) as client:
            return _size_of_floors(client)

    def read(self, token: int) -> str | None:
        return _text(self.run(self.fence.get(self.resource, token)))

    def peek(self) -> str | None:
        with redis.Redis.from_url(self.url, decode_responses=True) as client:
            return _text(client.get(self.resource))

    def delete(self, token: int) -> None:
        self.run(self.fence.delete(self.resource, token))

    def announce(self, token: int) -> None:
        self.run(self.fence.announce(self.resource, token))

    def raise_floor(self, token: int) -> None:
        self.run(self.fence.raise_floor(self.resource, token))

    def floor(self) -> int | None:
        return self.run(self.fence.floor(self.resource))

    def _close(self) -> None:
        self.run(self.client.aclose())
        self._runner.close()


def _size_of_floors(client: redis.Redis) -> int:
    return sum(int(client.memory_usage(key) or 0) for key in client.scan_iter(match=f"{FLOORS}*", count=1000))


def _text(value: object) -> str | None:
    return None if value is None else str(value)
