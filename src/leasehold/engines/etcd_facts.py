"""What etcd promises and what it does not."""

from __future__ import annotations

from typing import Final

from leasehold.core.engine import FEW, Capability, Facts, Guarantee
from leasehold.wires.etcd_address import Address

LEAST_TTL: Final = 1.0
"""Etcd counts in whole seconds. It lets no session be shorter than its election timeout and a half: 2 s, usually."""

_CAPABILITIES: Final = frozenset(Capability) - {
    Capability.LOCK_DELAY,
    Capability.OVERTAKE,
    Capability.TOKEN_SURVIVES_DATA_LOSS,
}

_GUARANTEE: Final = Guarantee(
    not_guaranteed=(
        "A holder that stalls past its TTL still runs, as with every lease: only a fence, or a transaction that "
        "compares ownership, stops its writes. All leases of a client that have the same TTL in whole seconds share "
        "one session, and are lost together if it ends. An overloaded leader may end sessions early in etcd before "
        "3.4.31 and 3.5.13. A waiter whose process lives but whose thread hangs keeps its place in the queue."
    ),
    tokens=(
        "The cluster's revision at which the holder's key was created, fixed when it joined the queue. It goes back "
        "only if the cluster is restored from a snapshot without --bump-revision."
    ),
    fit_for_correctness=True,
    timekeeper=(
        "The leader's monotonic clock ends sessions, and a new leader starts them anew; nobody's wall clock matters. "
        "The holder's own clock ends its belief, earlier."
    ),
    ends="Release, the end of its session (no keep-alive for its TTL, or a revocation), or a release by force.",
    loss_told="At the TTL, by the holder's own clock, whether or not the cluster can be reached.",
    takeover=(
        "The TTL after the last keep-alive, rounded up to whole seconds and to the least that the cluster allows (2 s "
        "by default), and up to 1 s until etcd notices; after a change of leaders up to one more TTL and the election, "
        "a few seconds. A waiter that died holds up those behind it for 5 s and that second; on a busy machine 11 s "
        "were seen."
    ),
    failover=(
        "A new leader is elected while a majority is up: leases and the queue survive, tokens go on, waiters stay. "
        "Without a majority nothing is granted, and leases end by their holders' clocks."
    ),
    proxies=(
        "An HTTP or TCP balancer works if it passes HTTP/2 through; etcd's grpc-proxy works without its lease and "
        "watch coalescing. Web proxies of the environment are ignored."
    ),
    enforce_with="leasehold.engines.etcd.ownership(lease) in one's own transaction, or a fence at another resource.",
)


def facts_of(address: Address) -> Facts:
    """Describe a cluster, before anything is sent to it."""
    return Facts("etcd", str(address), _CAPABILITIES, _GUARANTEE, LEAST_TTL, takes_at_once=FEW)
