"""Whichever engine cannot be reached: an error that names it and its address and says what to do, in time."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from leasehold import AsyncLeasehold, EngineError, EngineUnavailable, Leasehold
from leasehold.testing.ports import free_port

CANARY = "canary-Tq7"
ENGINES = {
    "redis": ("redis://u:{secret}@{at}", "Redis at"),
    "valkey": ("valkey://u:{secret}@{at}", "Redis at"),
    "sentinel": ("redis+sentinel://u:{secret}@{at}/main", "Sentinel"),
    "cluster": ("redis+cluster://u:{secret}@{at}", "redis+cluster://"),
    "redlock": ("redlock://:{secret}@{at},127.0.0.1:1,127.0.0.1:2", "0 of 3 Redis servers"),
    "etcd": ("etcd://u:{secret}@{at}", "etcd at"),
    "zookeeper": ("zookeeper://u:{secret}@{at}", "ZooKeeper at"),
    "consul": ("consul://{at}?token={secret}", "consul at"),
    "postgresql": ("postgresql://u:{secret}@{at}/d", "postgresql://"),
    "postgresql+session": ("postgresql+session://u:{secret}@{at}/d", "postgresql+session://"),
    "mysql": ("mysql://u:{secret}@{at}/d", "mysql://"),
    "mysql+session": ("mysql+session://u:{secret}@{at}/d", "mysql+session://"),
}
WITHIN = 1.0
"""What a request may take. An attempt is at most two: the second gives back what the first may have taken."""


def blocking(url: str) -> None:
    with Leasehold(url, request_timeout=WITHIN) as locks:
        locks.lock("a", ttl=30, wait=0).acquire()


def in_asyncio(url: str) -> None:
    async def take() -> None:
        async with AsyncLeasehold(url, request_timeout=WITHIN) as locks:
            await locks.lock("a", ttl=30, wait=0).acquire()

    asyncio.run(take())


@pytest.fixture
def silent() -> Iterator[str]:
    """An address where connections are accepted, and nobody ever answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=50) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize("use", [blocking, in_asyncio])
@pytest.mark.parametrize("engine", ENGINES)
def test_where_nobody_listens(engine: str, use: Callable[[str], None]) -> None:
    shape, named = ENGINES[engine]
    at = f"127.0.0.1:{free_port()}"
    since = time.monotonic()
    with pytest.raises(EngineUnavailable) as caught:
        use(shape.format(secret=CANARY, at=at))
    assert time.monotonic() - since < 2 * WITHIN + 1
    said = str(caught.value)
    assert named in said
    assert at in said
    assert "refused" in said.lower()
    assert "is the server running" in said or "is the agent running" in said or "check that it runs" in said
    assert CANARY not in said + repr(caught.value)


@pytest.mark.parametrize("use", [blocking, in_asyncio])
@pytest.mark.parametrize("engine", ENGINES)
def test_where_nobody_answers(engine: str, use: Callable[[str], None], silent: str) -> None:
    shape, _ = ENGINES[engine]
    since = time.monotonic()
    with pytest.raises(EngineError) as caught:
        use(shape.format(secret=CANARY, at=silent))
    assert time.monotonic() - since < 2 * WITHIN + 1.5
    assert silent in str(caught.value)
    assert CANARY not in str(caught.value) + repr(caught.value)
