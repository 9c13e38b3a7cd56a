"""All bugs that can be planted, by the engine whose code has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasehold.sim.mutations import MUTATIONS
from leasehold.sim.plan import TABLE

if TYPE_CHECKING:
    from leasehold.sim.mutating import Mutation


def mutations_of(engine: str) -> dict[str, Mutation]:
    """The bugs that can be planted in what runs when this engine is simulated."""
    if engine == TABLE.engine:
        return MUTATIONS
    from leasehold.sim.consul_mutations import CONSUL_MUTATIONS
    from leasehold.sim.etcd_mutations import ETCD_MUTATIONS
    from leasehold.sim.mysql_mutations import MYSQL_MUTATIONS
    from leasehold.sim.postgres_mutations import POSTGRES_MUTATIONS
    from leasehold.sim.session_mutations import MYSQL_SESSION_MUTATIONS, POSTGRES_SESSION_MUTATIONS
    from leasehold.sim.zookeeper_mutations import ZOOKEEPER_MUTATIONS

    every = {
        "etcd": ETCD_MUTATIONS,
        "zookeeper": ZOOKEEPER_MUTATIONS,
        "consul": CONSUL_MUTATIONS,
        "postgresql": POSTGRES_MUTATIONS,
        "mysql": MYSQL_MUTATIONS,
        "postgresql+session": POSTGRES_SESSION_MUTATIONS,
        "mysql+session": MYSQL_SESSION_MUTATIONS,
    }
    return every[engine]
