"""What a quorum of independent Redis or Valkey servers promises, and what it does not."""

from __future__ import annotations

from typing import Final

from leasehold.core.engine import FEW, Capability, Facts, Guarantee

LEAST_TTL: Final = 0.05
CLOCK_ERROR: Final = 5.0
"""What is added to the longest TTL for the time that a server which lost its data is kept out, in seconds."""

_CAPABILITIES: Final = frozenset(
    {
        Capability.PUSH_WAIT,
        Capability.INSPECT,
        Capability.BREAK,
        Capability.OUTLIVES_CONNECTION,
        Capability.TOKEN_SURVIVES_RESTART,
        Capability.TOKEN_SURVIVES_DATA_LOSS,
        Capability.TOKEN_SURVIVES_FAILOVER,
    }
)

_GUARANTEE: Final = Guarantee(
    not_guaranteed=(
        "That two holders never believe at the same time: as with every lease, that needs clocks that run at about the "
        "same speed, and holders that do not stall past their TTL; only a fence at the resource stops a stale write. "
        "A server whose wall clock is set forward ends its leases early. Waiters are woken in about the order of their "
        "arrival, and not promised it. A server that is rolled back to an older copy of its data while it runs (a "
        "restored virtual machine) cannot be told from one that was not."
    ),
    tokens=(
        "Each server counts for each name, and a token is good once a majority has accepted it: any two majorities "
        "share a server, and no server accepts a token at or below one that it accepted before. So tokens increase "
        "whatever clocks, pauses, delays, lost and repeated messages do, and whichever minority fails. After a server "
        "lost its data its counters start above all that it ever granted, by its clock: there, and only there, its "
        "clock must be right to within two seconds."
    ),
    fit_for_correctness=True,
    timekeeper=(
        "Each server's wall clock ends its part of a lease; the holder's own monotonic clock ends its belief, earlier."
    ),
    ends="Release, its TTL, a release by force, or the loss of the data of a majority of the servers.",
    loss_told="At the TTL, by the holder's own clock; at the next renewal when a majority has refused it.",
    takeover=(
        "The TTL after the holder's last renewal. A lost wake-up, or a woken waiter that hangs, costs those behind it "
        "2 s. A server whose clock was set back keeps its part of a dead holder's lease for longer; a majority of "
        "such servers, the name."
    ),
    failover=(
        "None is needed: any minority of the servers may be down, hang or be cut off, and is not waited for. A server "
        "that comes back without its data, or was restarted without a log of every write (appendfsync always), is "
        "recognised and kept out until every lease that it may have forgotten is over."
    ),
    proxies=(
        "A proxy must pass RESP3, EVALSHA and SUBSCRIBE on one connection, and lead to one server: two addresses of "
        "one server are refused where they can be recognised. No replicas, no Cluster, no Sentinel behind an address."
    ),
    enforce_with=(
        "appendonly yes, appendfsync always, maxmemory-policy noeviction, one failure domain a server, and a fence."
    ),
)


def facts_of(address: str) -> Facts:
    """Describe a quorum, before anything is sent to it."""
    return Facts("redlock", address, _CAPABILITIES, _GUARANTEE, LEAST_TTL, takes_at_once=FEW)
