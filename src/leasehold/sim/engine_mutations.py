"""All bugs that can be planted, by the engine whose code has them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from leasehold.sim.mutations import MUTATIONS
from leasehold.sim.plan import TABLE

if TYPE_CHECKING:
    from leasehold.sim.mutating import Mutation

_WHERE: Final = {
    "etcd": ("etcd_mutations", "ETCD_MUTATIONS"),
    "zookeeper": ("zookeeper_mutations", "ZOOKEEPER_MUTATIONS"),
    "consul": ("consul_mutations", "CONSUL_MUTATIONS"),
    "postgresql": ("postgres_mutations", "POSTGRES_MUTATIONS"),
    "mysql": ("mysql_mutations", "MYSQL_MUTATIONS"),
    "postgresql+session": ("session_mutations", "POSTGRES_SESSION_MUTATIONS"),
    "mysql+session": ("session_mutations", "MYSQL_SESSION_MUTATIONS"),
}
"""Imported when they are asked for: the packages that another engine needs may not be installed."""


def mutations_of(engine: str) -> dict[str, Mutation]:
    """The bugs that can be planted in what runs when this engine is simulated."""
    if engine == TABLE.engine:
        return MUTATIONS
    module, name = _WHERE[engine]
    found: dict[str, Mutation] = getattr(import_module(f"leasehold.sim.{module}"), name)
    return found
