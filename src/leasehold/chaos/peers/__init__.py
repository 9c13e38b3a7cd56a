"""Peers: other lock libraries as subjects of the same runs, under the same faults."""

from __future__ import annotations

from typing import Final

from leasehold.chaos.peers.base import Peer
from leasehold.chaos.peers.elsewhere import Etcd3gw, Kazoo, Pals
from leasehold.chaos.peers.on_redis import Pottery, PythonRedisLock, RedisPy

__all__ = ["PEERS", "Peer"]

PEERS: Final[dict[str, type[Peer]]] = {
    kind.name: kind for kind in (RedisPy, PythonRedisLock, Pottery, Kazoo, Etcd3gw, Pals)
}
