"""What Consul promises and what it does not."""

from __future__ import annotations

from typing import Final

from leasehold.core.engine import FEW, Capability, Facts, Guarantee
from leasehold.wires.consul_address import Address

_CAPABILITIES: Final = frozenset(Capability) - {Capability.OVERTAKE, Capability.TOKEN_SURVIVES_DATA_LOSS}

_GUARANTEE: Final = Guarantee(
    not_guaranteed=(
        "A holder that stalls past its TTL still runs, as with every lease: only a fence, or a transaction that "
        "checks ownership, stops its writes. All leases of a client that have the same TTL share one session, and are "
        "lost together if it ends. A session belongs to the agent that it was made through: if that agent leaves the "
        "cluster, or is forced out of it, its sessions end at once, while their holders still believe. So may those "
        "that a leader knew which stood still for twice their TTL and leads again within five minutes: Consul tries "
        "again to end what was overdue there, renewed or not. A waiter whose process died or hangs keeps its place "
        "until its session ends, after twice the shortest TTL. A lock-delay is at most 60 s, and is forgotten when all "
        "servers restart."
    ),
    tokens=(
        "The cluster's index at which the holder's key was created, fixed when it joined the queue. It goes back only "
        "if the cluster is restored from a snapshot, or is built anew."
    ),
    fit_for_correctness=True,
    timekeeper=(
        "The leader's monotonic clock ends sessions, not before their TTL and usually after twice as long; a new "
        "leader starts them anew. Nobody's wall clock matters. The holder's own clock ends its belief, at the TTL."
    ),
    ends=(
        "Release, the end of its session (no renewal, destroyed by an operator, or its agent left the cluster), or a "
        "release by force."
    ),
    loss_told="At the TTL, by the holder's own clock, whether or not the agent can be reached.",
    takeover=(
        "Twice the TTL after the last renewal, and the lock-delay if there is one; after a change of leaders up to "
        "twice the TTL more."
    ),
    failover=(
        "A new leader is elected while a majority of the servers is up: leases and the queue survive, tokens go on, "
        "waiters stay. Without a majority nothing is granted, and leases end by their holders' clocks."
    ),
    proxies=(
        "An HTTP proxy must pass the query index of blocking requests, wait as long as they do, and share no answers "
        "between clients. Web proxies of the environment are ignored. Agents allow 200 connections from one address."
    ),
    enforce_with="leasehold.engines.consul.ownership(lease) in one's own transaction, or a fence at another resource.",
)


def facts_of(address: Address) -> Facts:
    """Describe a cluster, before anything is sent to it."""
    return Facts("consul", str(address), _CAPABILITIES, _GUARANTEE, address.least_ttl, takes_at_once=FEW)
