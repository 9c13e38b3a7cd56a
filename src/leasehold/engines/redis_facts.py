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
        "holder's renewals on their own clock. A hung waiter costs those behind it 2 s, a dead one nothing."
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


def facts_of(target: Target) -> Facts:
    """Describe a target, before anything is sent to it."""
    guarantee = _ONE_PRIMARY if target.service is None else _SENTINEL
    return Facts("redis", target.address, _CAPABILITIES, guarantee, LEAST_TTL, place_stays=PLACE_STAYS)


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
