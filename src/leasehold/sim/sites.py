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
CLOCKED: Final = frozenset({"back", "forward", "strobe"})
"""What can happen to a server's wall clock."""
PINNED: Final = CONNECTED | CLOCKED | {"half", "proxy", "failover"}
"""What can happen where a lease lives and dies with a connection."""


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


def _mysql(network: Network, events: list[Event], rate: float) -> Site:
    from leasehold.sim.mysql import MysqlSite

    return MysqlSite(network, events, rate)


def _postgres_sessions(network: Network, events: list[Event], rate: float) -> Site:
    from leasehold.sim.sessions import PostgresSessionSite

    return PostgresSessionSite(network, events, rate)


def _mysql_sessions(network: Network, events: list[Event], rate: float) -> Site:
    from leasehold.sim.sessions import MysqlSessionSite

    return MysqlSessionSite(network, events, rate)


def _in_sessions(engine: str, faults: frozenset[str], ttls: tuple[float, ...]) -> Traits:
    """Locks of connections are exclusive, and nothing stays behind of them."""
    return Traits(engine, faults, ttls, lock_delays=(0.0,), permits=(0,), sharing=(0.0,))


_ALL: Final = (
    Kind(TABLE, SimServer),
    Kind(Traits("etcd", CONNECTED | {"election"}, (2.0, 3.0, 4.0), (0.0,)), _etcd),
    Kind(Traits("zookeeper", CONNECTED | {"election"}, (2.0, 3.0, 4.0), (0.0,)), _zookeeper),
    Kind(Traits("consul", CONNECTED | {"election"}, (2.0, 3.0, 4.0)), _consul),
    Kind(Traits("postgresql", CONNECTED | CLOCKED), _postgres),
    Kind(Traits("mysql", CONNECTED | CLOCKED), _mysql),
    Kind(_in_sessions("postgresql+session", PINNED | {"collision"}, (0.6, 1.2, 2.4)), _postgres_sessions),
    Kind(_in_sessions("mysql+session", PINNED, (2.0, 2.4, 3.6)), _mysql_sessions),
)
KINDS: Final = {kind.traits.engine: kind for kind in _ALL}
