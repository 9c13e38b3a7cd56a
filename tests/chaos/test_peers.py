"""The adapters of peers: each really takes, waits, believes and releases through its library, on a real engine."""

from __future__ import annotations

import contextlib
import gc
import math
import time
from collections.abc import Iterator

import pytest
from tests.support.server_process import memory_folder

from leasehold.chaos.peers import PEERS, Peer
from leasehold.chaos.servers import started
from leasehold.chaos.site import Server
from leasehold.errors import Misuse

# What libraries leave open, or say about themselves, is not ours to turn into errors.
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.nightly]
INSTALLED = [name for name, kind in PEERS.items() if kind.installed()]
TTL = 2.0


@pytest.fixture(params=INSTALLED)
def kind(request: pytest.FixtureRequest) -> type[Peer]:
    return PEERS[request.param]


@pytest.fixture
def engine(kind: type[Peer]) -> Iterator[tuple[str, Server]]:
    with memory_folder() as folder, started(kind.engines[0], folder) as (url, [server]):
        yield url, server


@contextlib.contextmanager
def client(kind: type[Peer], url: str, namespace: str = "test") -> Iterator[Peer]:
    with contextlib.closing(kind(url, namespace)) as one:
        yield one
    gc.collect()  # so that what it left open is not found in somebody else's test


def nobody() -> None:
    """Who is told of nothing."""


def test_a_peer_takes_waits_believes_and_releases(kind: type[Peer], engine: tuple[str, Server]) -> None:
    url, server = engine
    with client(kind, url) as first, client(kind, url) as second, client(kind, url, "elsewhere") as third:
        held = first.take("orders", ttl=30, wait=20, told=nobody)
        assert held is not None
        assert held.believes()
        assert held.token is None
        assert (held.until == math.inf) == kind.renews
        began = time.monotonic()
        assert second.take("orders", ttl=30, wait=1, told=nobody) is None
        assert time.monotonic() - began >= 0.8
        for other, name in ((second, "others"), (third, "orders")):
            free = other.take(name, ttl=30, wait=20, told=nobody)
            assert free is not None
            assert free.release()
        assert held.release()
        again = second.take("orders", ttl=30, wait=20, told=nobody)
        assert again is not None
        # Who cannot ask does not believe, except where the library never asks.
        server.stop(hard=True)
        if kind.name not in ("pals", "kazoo"):
            assert not again.believes()
        server.start()
        with contextlib.suppress(Exception):  # a library may take its time to find its server again
            again.release()


@pytest.mark.parametrize("kind", [PEERS["redis-py"], PEERS["python-redis-lock"]])
def test_a_lock_that_ran_out_is_known_to_have(kind: type[Peer], engine: tuple[str, Server]) -> None:
    url, _ = engine
    with client(kind, url) as first, client(kind, url) as second:
        held = first.take("orders", ttl=TTL, wait=20, told=nobody)
        assert held is not None
        successor = second.take("orders", ttl=TTL, wait=4, told=nobody)
        # Those who renew keep it; of the others it is the next one's by now.
        assert (successor is None) == kind.renews
        if successor is None:
            assert held.believes()
            assert held.release()
        else:
            assert not held.believes()
            assert not held.release()
            assert successor.believes()
            assert successor.release()


def test_kazoo_is_heard_when_it_tells_of_a_loss() -> None:
    with memory_folder() as folder, started("zookeeper", folder) as (url, [server]), client(PEERS["kazoo"], url) as one:
        told: list[bool] = []
        held = one.take("orders", ttl=TTL, wait=20, told=lambda: told.append(True))
        assert held is not None
        server.stop(hard=True)
        give_up_at = time.monotonic() + 30
        while not told and time.monotonic() < give_up_at:
            time.sleep(0.01)
        assert told
        assert not held.believes()
        server.start()


def test_a_peer_says_what_it_has_not_and_how_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PEERS["redis-py"], "package", "no_such_library")
    with pytest.raises(Misuse, match="pip install redis"):
        PEERS["redis-py"]("redis://127.0.0.1:1", "test")
    monkeypatch.undo()
    with client(PEERS["redis-py"], "redis://127.0.0.1:1") as one, pytest.raises(Misuse, match="no shared ones"):
        one.take("orders", ttl=TTL, wait=1, told=nobody, mode="shared")


def test_those_of_the_development_tools_are_there() -> None:
    assert {"redis-py", "python-redis-lock", "kazoo"} <= set(INSTALLED)
