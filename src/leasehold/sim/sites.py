"""The engines that can be simulated, each with the system behind it."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
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


def _site(module: str, name: str) -> Callable[[Network, list[Event], float], Site]:
    """Imported when it is run: the packages that an engine needs may not be installed."""

    def site(network: Network, events: list[Event], rate: float) -> Site:
        made: Site = getattr(import_module(f"leasehold.sim.{module}"), name)(network, events, rate)
        return made

    return site


def _in_sessions(engine: str, faults: frozenset[str], ttls: tuple[float, ...]) -> Traits:
    """Locks of connections are exclusive, and nothing stays behind of them."""
    return Traits(engine, faults, ttls, lock_delays=(0.0,), permits=(0,), sharing=(0.0,))


_ALL: Final = (
    Kind(TABLE, SimServer),
    Kind(Traits("etcd", CONNECTED | {"election"}, (2.0, 3.0, 4.0), (0.0,)), _site("etcd", "EtcdSite")),
    Kind(Traits("zookeeper", CONNECTED | {"election"}, (2.0, 3.0, 4.0), (0.0,)), _site("zookeeper", "ZooKeeperSite")),
    Kind(Traits("consul", CONNECTED | {"election"}, (2.0, 3.0, 4.0)), _site("consul", "ConsulSite")),
    Kind(Traits("postgresql", CONNECTED | CLOCKED), _site("postgres", "PostgresSite")),
    Kind(Traits("mysql", CONNECTED | CLOCKED), _site("mysql", "MysqlSite")),
    Kind(
        _in_sessions("postgresql+session", PINNED | {"collision"}, (0.6, 1.2, 2.4)),
        _site("sessions", "PostgresSessionSite"),
    ),
    Kind(_in_sessions("mysql+session", PINNED, (2.0, 2.4, 3.6)), _site("sessions", "MysqlSessionSite")),
)
KINDS: Final = {kind.traits.engine: kind for kind in _ALL}
