"""The engines that can be simulated, each with the system behind it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from leasehold.sim.plan import TABLE, Traits
from leasehold.sim.server import SimServer

if TYPE_CHECKING:
    from leasehold.sim.history import Event
    from leasehold.sim.network import Network
    from leasehold.sim.site import Site

CONNECTED: Final = frozenset(
    {"delay", "loss", "cut", "reset", "pause", "crash", "restart", "stall", "drift", "interrupt"}
    | {"force", "wild", "freeze"}
)
"""What can happen between clients and a server that they have connections to: nothing is carried out twice."""


class Kind(NamedTuple):
    """A system that keeps leases, and what can be asked of it."""

    traits: Traits
    site: Callable[[Network, list[Event], float], Site]


def _etcd(network: Network, events: list[Event], rate: float) -> Site:
    from leasehold.sim.etcd import EtcdSite

    return EtcdSite(network, events, rate)


def _zookeeper(network: Network, events: list[Event], rate: float) -> Site:
    from leasehold.sim.zookeeper import ZooKeeperSite

    return ZooKeeperSite(network, events, rate)


def _consul(network: Network, events: list[Event], rate: float) -> Site:
    from leasehold.sim.consul import ConsulSite

    return ConsulSite(network, events, rate)


def _postgres(network: Network, events: list[Event], rate: float) -> Site:
    from leasehold.sim.postgres import PostgresSite

    return PostgresSite(network, events, rate)


_ALL: Final = (
    Kind(TABLE, SimServer),
    Kind(Traits("etcd", CONNECTED | {"election"}, (2.0, 3.0, 4.0), (0.0,)), _etcd),
    Kind(Traits("zookeeper", CONNECTED | {"election"}, (2.0, 3.0, 4.0), (0.0,)), _zookeeper),
    Kind(Traits("consul", CONNECTED - {"force"} | {"election"}, (2.0, 3.0, 4.0)), _consul),
    Kind(Traits("postgresql", CONNECTED - {"force"} | {"back", "forward", "strobe"}), _postgres),
)
KINDS: Final = {kind.traits.engine: kind for kind in _ALL}
