"""What Redis and Valkey promise and what they do not, and how to find out about one deployment."""

from __future__ import annotations

import re
import warnings
from typing import Any, Final

from leasehold.core.engine import Capability, Facts, Guarantee
from leasehold.core.table import PLACE_STAYS
from leasehold.errors import GuaranteeTooWeak, GuaranteeWarning
from leasehold.wires.redis_target import Target

LEAST_TTL: Final = 0.05

_CAPABILITIES: Final = frozenset(Capability) - {Capability.TOKEN_SURVIVES_FAILOVER}

_ONE_PRIMARY: Final = Guarantee(
    not_guaranteed=(
        "A holder that stalls past its TTL still runs, as with every lease: only a fence at the resource stops its "
        "writes. If the server's wall clock is set forward, leases end early, and two holders may believe at the same "
        "time. If the server loses its data (a crash without an append-only file, FLUSHALL, eviction), every lease "
        "on it ends, and from then on tokens increase only if its clock is not behind the last token that it gave."
    ),
    tokens=(
        "The highest of: the name's last token plus one, the server's clock in microseconds, and one above any token "
        "that the asking process has seen from this server. While the data survives, tokens increase whatever clocks "
        "do. The last token of an idle name is kept for 24 hours; after that, a clock that is set back by more than "
        "those 24 hours could repeat it."
    ),
    fit_for_correctness=True,
    timekeeper="The server's wall clock ends leases; the holder's own monotonic clock ends its belief, earlier.",
    ends="Release, its TTL, a release by force, or the loss of the server's data.",
    loss_told="At the TTL, by the holder's own clock, whether or not the server can be reached.",
    takeover=(
        "The TTL after the holder's last renewal; also when the server's clock was set back, for waiters time the "
        "holder's renewals on their own clock. A hung waiter costs those behind it 2 s, a dead one nothing; "
        "its TTL, if it was handed the name within a quarter of a second of asking."
    ),
    failover="There is none: the name is closed while the server is away, and leases run on by the clock.",
    proxies=(
        "A proxy must pass RESP3, EVALSHA and SUBSCRIBE on one connection; those that share connections between "
        "clients do not. Never put replicas, or a balancer over several servers, behind the address."
    ),
    enforce_with="appendonly yes, appendfsync always, maxmemory-policy noeviction, no replicas, and a fence.",
)

_SENTINEL: Final = Guarantee(
    not_guaranteed=(
        "A failover may lose what the primary had not yet sent to the replica: a lease that is held can be granted "
        "again, and its token can be repeated if the new primary's clock is behind. " + _ONE_PRIMARY.not_guaranteed
    ),
    tokens=_ONE_PRIMARY.tokens + " A replica that becomes the primary may lack the last tokens: then only clocks help.",
    fit_for_correctness=False,
    timekeeper=_ONE_PRIMARY.timekeeper + " After a failover it is another server's clock.",
    ends=_ONE_PRIMARY.ends + " A failover may end it, too.",
    loss_told=_ONE_PRIMARY.loss_told,
    takeover=_ONE_PRIMARY.takeover,
    failover=(
        "Sentinel promotes a replica; we ask the Sentinels again, check that the new server is a primary, and go on. "
        "Grants of the last moments may be lost, silently."
    ),
    proxies=_ONE_PRIMARY.proxies,
    enforce_with="min-replicas-to-write 1 narrows the window and does not close it; use it for efficiency only.",
)

_CLUSTER: Final = Guarantee(
    not_guaranteed=(
        "A replica that is promoted may lack what its primary had not yet sent to it: a lease that is held can be "
        "granted again, and its token can be repeated if the new primary's clock is behind. A primary that is cut off "
        "from the others grants for up to cluster-node-timeout after a replica has taken its place. While a slot is "
        "being moved key by key, the names in it are closed (the cluster answers TRYAGAIN), and a lease that cannot be "
        "renewed for its TTL is lost; a node that a slot comes to and whose clock is ahead ends leases early by as "
        "much. Waiters may be served out of order after a slot has moved. " + _ONE_PRIMARY.not_guaranteed
    ),
    tokens=(
        "The highest of: the name's last token plus one, the node's clock in microseconds, and one above any token "
        "that the asking process has seen from any node of this cluster. The last token moves along with its slot. "
        "While the data survives, tokens increase whatever clocks do. A replica that becomes the primary may lack the "
        "last tokens: then what the asking process has seen helps, and else only clocks. The last token of an idle "
        "name is kept for 24 hours; after that, a clock that is set back by more than that could repeat it."
    ),
    fit_for_correctness=False,
    timekeeper=(
        "The wall clock of the name's node ends leases; the holder's own monotonic clock ends its belief, earlier. "
        "After a failover, or when the slot has moved, it is another node's clock."
    ),
    ends=_ONE_PRIMARY.ends + " A failover may end it, too.",
    loss_told=_ONE_PRIMARY.loss_told,
    takeover=_ONE_PRIMARY.takeover,
    failover=(
        "The cluster promotes a replica once most primaries have missed the old one for cluster-node-timeout; we ask "
        "the other nodes which of them serves what, check that the new one is a primary, and go on. Grants of the last "
        "moments may be lost, silently. The names of a primary without a replica are closed until it is back."
    ),
    proxies=(
        "A proxy must pass RESP3, EVALSHA, SSUBSCRIBE and CLUSTER SLOTS on one connection; better none: clients must "
        "reach every node at the address that CLUSTER SLOTS tells."
    ),
    enforce_with="min-replicas-to-write 1 narrows the window and does not close it; use it for efficiency only.",
)


def cluster_facts(address: str) -> Facts:
    """Describe a cluster, before anything is sent to it."""
    return Facts("redis+cluster", address, _CAPABILITIES, _CLUSTER, LEAST_TTL, place_stays=PLACE_STAYS, hands_over=True)


def facts_of(target: Target) -> Facts:
    """Describe a target, before anything is sent to it."""
    guarantee = _ONE_PRIMARY if target.service is None else _SENTINEL
    return Facts("redis", target.address, _CAPABILITIES, guarantee, LEAST_TTL, place_stays=PLACE_STAYS, hands_over=True)


def check_correctness(address: str, replication: Any, memory: Any, persistence: Any) -> None:
    """Judge what the server says of itself (the answers to INFO); refuse what cannot keep tokens increasing."""
    replicas = _field(replication, "connected_slaves")
    if replicas not in {None, "0"}:
        raise GuaranteeTooWeak(
            f"{address} has {replicas} replica(s): a failover may promote one that lacks the latest tokens, and a "
            "stale holder could then pass a fence. Use a server without replicas, or purpose='efficiency'"
        )
    weak = []
    if _field(memory, "maxmemory") not in {None, "0"} and _field(memory, "maxmemory_policy") != "noeviction":
        weak.append("it may evict leases when memory runs short (set maxmemory-policy noeviction)")
    if _field(persistence, "aof_enabled") == "0":
        weak.append(
            "it forgets its latest tokens in a crash, and only its clock keeps them increasing (set appendonly yes)"
        )
    if None in {replicas, _field(memory, "maxmemory_policy"), _field(persistence, "aof_enabled")}:
        weak.append("it does not say whether it has replicas, evicts keys or keeps a log (let this user run INFO)")
    if weak:
        warnings.warn(f"{address} is weak for correctness: {'; '.join(weak)}", GuaranteeWarning, stacklevel=2)


def refuse_sentinel(address: str) -> None:
    """Correctness is refused where a failover can forget tokens."""
    raise GuaranteeTooWeak(
        f"{address} fails over to a replica that may lack the latest tokens, and a stale holder could then pass a "
        "fence. Use one server without replicas for correctness, or purpose='efficiency'"
    )


def _field(info: Any, name: str) -> str | None:
    text = info.decode("utf-8", "replace") if isinstance(info, bytes) else ""
    match = re.search(rf"^{name}:([^\r\n]*)", text, re.MULTILINE)
    return match[1] if match else None
