"""A Redis Cluster: each of its primaries, whether all slots are served, and what a failover may do."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from leasehold.core.worlds import run_blocking
from leasehold.doctor import redis
from leasehold.doctor.findings import Finding, Look
from leasehold.engines.redis import RedisFamily
from leasehold.errors import EngineError

if TYPE_CHECKING:
    from leasehold.engines.redis_cluster import ClusterEngine, ClusterFamily


def look(family: ClusterFamily, engine: ClusterEngine, within: float) -> Look:
    """Ask each primary by itself."""
    run_blocking(engine._primaries(engine.world.now() + within))
    findings, versions = [], set()
    for endpoint in family.slots.primaries:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # said once for the cluster
            node = RedisFamily(family.cluster.at(endpoint), family.shared.namespace, "doctor")
        one = node.blocking()
        try:
            seen = redis.look(node, one, within)
        except EngineError as error:
            fix = "bring it back, or promote a replica of it: its names are closed"
            findings.append(Finding("node", "problem", str(error), fix))
            continue
        finally:
            run_blocking(one.close())
        versions.add(seen.version)
        findings += [
            finding._replace(seen=f"{endpoint}: {finding.seen}")
            for finding in seen.findings
            if finding.level != "ok" and finding.check != "topology"  # that is about one node as an engine of its own
        ]
    return Look(", ".join(sorted(versions)), [_coverage(family), _topology(family), *findings])


def _coverage(family: ClusterFamily) -> Finding:
    closed = sum(owner is None for owner in family.slots.owners)
    if closed:
        seen = f"no node serves {closed} of the {len(family.slots.owners)} slots: names that fall into them are closed"
        return Finding("slots", "problem", seen, "give them to a node: redis-cli --cluster fix")
    return Finding("slots", "ok", f"{len(family.slots.primaries)} primaries serve all slots")


def _topology(family: ClusterFamily) -> Finding:
    return Finding(
        "topology",
        "warning",
        f"a cluster of {len(family.slots.primaries)} primaries: a failover promotes a replica that may lack the latest "
        "grants and tokens, and names are closed while their slot is being moved",
        "use it for efficiency only; for correctness one server without replicas, redlock:// or etcd",
    )
