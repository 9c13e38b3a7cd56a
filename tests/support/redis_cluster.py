"""Redis Clusters of the tests' own: real nodes on free loopback ports, ended by process id."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

import hiredis
import pytest
from tests.support.redis_server import RedisServer, running
from tests.support.server_process import memory_folder

SLOTS = 16384
SETTLED_WITHIN = 60.0


def eventually(holds: Callable[[], bool], what: str) -> None:
    """Wait until something holds; nodes that are asked may be away meanwhile."""
    give_up_at = time.monotonic() + SETTLED_WITHIN
    while time.monotonic() < give_up_at:
        with contextlib.suppress(OSError, hiredis.ReplyError):
            if holds():
                return
        time.sleep(0.05)
    pytest.fail(f"{what}: not within {SETTLED_WITHIN:g} s")


class ClusterOfServers:
    """Some primaries that share the slots evenly, and replicas of the first of them."""

    def __init__(self, primaries: list[RedisServer], replicas: list[RedisServer]) -> None:
        self.primaries, self.replicas = primaries, replicas

    @property
    def nodes(self) -> list[RedisServer]:
        return [*self.primaries, *self.replicas]

    @property
    def url(self) -> str:
        return f"redis+cluster://{','.join(f'127.0.0.1:{node.port}' for node in self.nodes)}"

    def build(self) -> None:
        """Let the nodes meet, and share the slots out."""
        share = SLOTS // len(self.primaries)
        for number, node in enumerate(self.primaries):
            last = SLOTS - 1 if node is self.primaries[-1] else (number + 1) * share - 1
            node.ask("CLUSTER", "ADDSLOTSRANGE", number * share, last)
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for node in self.nodes[1:]:
            self.primaries[0].ask("CLUSTER", "MEET", "127.0.0.1", node.port)
        eventually(lambda: all(self._knows(node) == len(self.nodes) for node in self.nodes), "the nodes meet")
        for replica in self.replicas:
            self._follow_first(replica)
        self.settle()

    def _knows(self, node: RedisServer) -> int:
        return len([line for line in node.ask("CLUSTER", "NODES").splitlines() if b"handshake" not in line])

    def _follow_first(self, replica: RedisServer) -> None:
        first = self.id_of(self.primaries[0])
        eventually(lambda: bool(replica.ask("CLUSTER", "REPLICATE", first) == b"OK"), "a replica knows its primary")
        eventually(lambda: b"master_link_status:up" in replica.ask("INFO", "replication"), "a replica is sent all")

    def settle(self) -> None:
        """Wait until every node says that all is well."""
        eventually(lambda: all(self.is_well(node) for node in self.nodes), "the cluster is well")

    def is_well(self, node: RedisServer) -> bool:
        return b"cluster_state:ok" in node.ask("CLUSTER", "INFO")

    def id_of(self, node: RedisServer) -> str:
        return str(node.ask("CLUSTER", "MYID").decode())

    def owner_of(self, slot: int) -> RedisServer:
        """The primary that serves a slot, as it says itself."""
        for node in self.nodes:
            with contextlib.suppress(OSError):
                for first, last, (_, port, *_), *_ in node.ask("CLUSTER", "SLOTS"):
                    if first <= slot <= last and port == node.port:
                        return node
        raise AssertionError("nobody serves this slot")

    def pause(self) -> None:
        for node in self.nodes:
            node.pause()

    def resume(self) -> None:
        for node in self.nodes:
            node.resume()

    def restart(self) -> None:
        """Crash all nodes at once, and start them on their ports with what they had written."""
        for node in self.nodes:
            node.kill()
        for node in self.nodes:
            node.start()
        self.settle()

    # Moving a slot, step by step, as redis-cli does it.

    def begin_moving(self, slot: int, source: RedisServer, target: RedisServer) -> None:
        target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", self.id_of(source))
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", self.id_of(target))

    def move_keys(self, slot: int, source: RedisServer, target: RedisServer) -> int:
        """Move what the slot holds; returns how many keys that were."""
        keys = source.ask("CLUSTER", "GETKEYSINSLOT", slot, 1000)
        if keys:
            source.ask("MIGRATE", "127.0.0.1", target.port, "", 0, 10_000, "KEYS", *keys)
        return len(keys)

    def end_moving(self, slot: int, target: RedisServer) -> None:
        """The new owner first; the others would learn it by themselves, a little later."""
        for node in [target, *(one for one in self.primaries if one is not target)]:
            node.ask("CLUSTER", "SETSLOT", slot, "NODE", self.id_of(target))

    def move(self, slot: int, source: RedisServer, target: RedisServer) -> None:
        self.begin_moving(slot, source, target)
        while self.move_keys(slot, source, target):
            pass
        self.end_moving(slot, target)


@contextlib.contextmanager
def running_cluster(
    primaries: int = 3, replicas: int = 0, *settings: str, engine: str = "redis", timeout_ms: int = 15_000
) -> Iterator[ClusterOfServers]:
    """Run a cluster for as long as the block."""
    durable = ("--appendonly", "yes", "--appendfsync", "always")
    clustered = ("--cluster-enabled", "yes", "--cluster-node-timeout", str(timeout_ms))
    with contextlib.ExitStack() as stack:
        nodes = []
        for _ in range(primaries + replicas):
            folder = stack.enter_context(memory_folder())
            server = RedisServer(engine, folder, *durable, *clustered, *settings)
            nodes.append(stack.enter_context(running(server)))
        cluster = ClusterOfServers(nodes[:primaries], nodes[primaries:])
        cluster.build()
        yield cluster
