"""What ZooKeeper promises and what it does not."""

from __future__ import annotations

from typing import Final

from leasehold.core.engine import FEW, Capability, Facts, Guarantee
from leasehold.wires.zookeeper_address import Address

LEAST_TTL: Final = 1.0

_CAPABILITIES: Final = frozenset(Capability) - {
    Capability.LOCK_DELAY,
    Capability.OVERTAKE,
    Capability.TOKEN_SURVIVES_DATA_LOSS,
}

_GUARANTEE: Final = Guarantee(
    not_guaranteed=(
        "A holder that stalls past its TTL still runs, as with every lease: only a fence stops its writes. All leases "
        "of a client that have the same TTL share one session, and are lost together if it ends. Observers and "
        "followers must learn of the leader's ticks as configured: an ensemble whose tickTime is longer than the "
        "tick of the URL (2 s) may end a session before its holder knows."
    ),
    tokens=(
        "The id of the transaction that created the holder's node (czxid), fixed when it joined the queue. It goes "
        "back only if the ensemble loses its data or is restored from an older copy."
    ),
    fit_for_correctness=True,
    timekeeper=(
        "The leader's monotonic clock ends sessions, and a new leader starts them anew; nobody's wall clock matters. "
        "The holder's own clock ends its belief, earlier."
    ),
    ends="Release, the end of its session (nothing heard for its timeout, or closed), or a release by force.",
    loss_told="At the TTL, by the holder's own clock, whether or not the ensemble can be reached.",
    takeover=(
        "1.4 times the TTL and 2.5 ticks (5 s as ZooKeeper is usually configured) after the holder was last heard of, "
        "and not less than the ensemble's least session timeout, usually 4 s; after a change of leaders up to that "
        "long again, and the election."
    ),
    failover=(
        "A new leader is elected while a majority is up: leases and the queue survive, tokens go on, waiters stay. "
        "Without a majority nothing is granted, and leases end by their holders' clocks."
    ),
    proxies="A TCP balancer works if it keeps connections open and all servers behind it are of one ensemble.",
    enforce_with="A fence at the resource.",
)


def facts_of(address: Address) -> Facts:
    """Describe an ensemble, before anything is sent to it."""
    return Facts("zookeeper", str(address), _CAPABILITIES, _GUARANTEE, LEAST_TTL, takes_at_once=FEW)
