"""What PostgreSQL promises and what it does not, and how to find out about one deployment."""

from __future__ import annotations

import warnings
from typing import Any, Final

from leasehold.core.engine import FEW, Capability, Facts, Guarantee
from leasehold.core.table import PLACE_STAYS
from leasehold.engines.sql_lease import LEAST_TTL
from leasehold.engines.sql_session import SESSION_CAPABILITIES
from leasehold.errors import GuaranteeWarning

_LEASE: Final = Guarantee(
    not_guaranteed=(
        "A holder that stalls past its TTL still runs, as with every lease: only a fence at the resource stops its "
        "writes. If the server's wall clock is set forward, leases end early, and two holders may believe at the same "
        "time. If the server loses its data or fails over to a replica that lacks the latest commits, leases granted "
        "just before are forgotten, and tokens increase only if the clock there is not behind the last token given."
    ),
    tokens=(
        "The name's last token plus one, or the server's clock in microseconds where that is higher. While the data "
        "survives, tokens increase whatever clocks do; the last token of a name that was not used for a day is kept in "
        "a common floor. With durable=false a crash may undo the latest grants: then only the clock keeps them "
        "increasing."
    ),
    fit_for_correctness=True,
    timekeeper="The server's wall clock ends leases; the holder's own monotonic clock ends its belief, earlier.",
    ends="Release, its TTL, a release by force, or the loss of the server's data.",
    loss_told=(
        "At the TTL, by the holder's own clock, whether or not the server can be reached. After a release by force: at "
        "the next renewal, which is a third of the TTL at most."
    ),
    takeover=(
        "The TTL after the holder's last renewal; also when the server's clock was set back, for waiters time the "
        "holder's renewals on their own clock. A hung waiter costs those behind it 2 s, one whose connection ended "
        "nothing; its TTL, if it was handed the name within a quarter of a second of asking. A process "
        "that stalls in the middle of a request can keep one name closed for 1 s."
    ),
    failover=(
        "With synchronous replication (synchronous_standby_names) no grant is lost, and the clock of the new primary "
        "goes on counting: its difference from the old one is part of no margin, so keep clocks within a few "
        "milliseconds. With asynchronous replicas, grants of the last moments may be lost."
    ),
    proxies=(
        "Poolers in transaction mode are fine for taking, renewing and releasing. Nobody can be woken through one: "
        "give the server's own address as ?listen=host:port, or waiters ask twice a second. Poolers in statement mode, "
        "and balancers over several servers, do not work."
    ),
    enforce_with=(
        "fsync and synchronous_commit on, synchronous replicas if any, and a fence at the resource; in the same "
        "database, leasehold.engines.postgres.lock_in_transaction, which commits with the write."
    ),
)

_SESSION: Final = Guarantee(
    not_guaranteed=(
        "A holder whose connection ends (its backend is terminated, the server restarts or fails over) has lost its "
        "lock at that moment, and believes in it until it notices: for a tenth of a second, or up to its TTL if the "
        "network swallows the news. Another may hold the name by then, and only a fence at the resource stops the "
        "writes of one that was overtaken."
    ),
    tokens=(
        "The name's last token plus one, or the server's clock in microseconds where that is higher. While the data "
        "survives, tokens increase whatever clocks do; the last token of a name that was not used for a day is kept in "
        "a common floor. With durable=false a crash may undo the latest tokens: then only the clock keeps them "
        "increasing."
    ),
    fit_for_correctness=True,
    timekeeper=(
        "The server ends a connection that was silent for a TTL, by a timer of its own (idle_session_timeout); the "
        "holder's own monotonic clock ends its belief, earlier."
    ),
    ends="Release, the end of its connection or of its process, its TTL, or a release by force.",
    loss_told=(
        "Within a tenth of a second when its connection is closed; at the TTL, by the holder's own clock, when the "
        "network swallows everything."
    ),
    takeover=(
        "At once when the holder's process or connection ends; the TTL after its last heartbeat when its host vanished "
        "or it stalls. Waiters are queued and woken by the server; every 30 s each of them queues anew."
    ),
    failover="Every lock ends with the server. Tokens go on as far as their table was replicated, or by the clock.",
    proxies=(
        "Poolers in transaction or statement mode: they are recognised and refused. In session mode they are fine; say "
        "so with ?pooler=session."
    ),
    enforce_with=(
        "fsync and synchronous_commit on, synchronous replicas if any, and a fence at the resource, which is needed "
        "more here: locks end with connections."
    ),
)

_CAPABILITIES: Final = frozenset(Capability) - {Capability.TOKEN_SURVIVES_FAILOVER}


def lease_facts(address: str) -> Facts:
    """Describe leases in tables."""
    return Facts(
        "postgresql",
        address,
        _CAPABILITIES,
        _LEASE,
        LEAST_TTL,
        place_stays=PLACE_STAYS,
        hands_over=True,
        takes_at_once=FEW,
    )


def session_facts(address: str) -> Facts:
    """Describe leases that live in a connection."""
    return Facts("postgresql+session", address, SESSION_CAPABILITIES, _SESSION, LEAST_TTL)


SETTINGS: Final = """
SELECT current_setting('fsync') = 'on', current_setting('synchronous_commit') <> 'off',
    current_setting('synchronous_standby_names') <> '', (SELECT count(*) FROM pg_stat_replication)
"""


def warn_if_weak(address: str, settings: tuple[Any, ...], *, durable: bool) -> None:
    """Judge what the server says of itself (the answer to `SETTINGS`), for a correctness lock."""
    syncs, waits_for_disk, waits_for_replicas, replicas = settings
    weak = []
    if not syncs:
        weak.append("a crash may damage or lose all of it (set fsync on)")
    if not waits_for_disk or not durable:
        weak.append(
            "a crash may undo its latest grants, and only its clock keeps tokens increasing (set synchronous_commit "
            "on, and do not say durable=false)"
        )
    if replicas and not waits_for_replicas:
        weak.append(
            f"it has {replicas} replica(s) that may lack the latest grants when one takes over, and only clocks keep "
            "tokens increasing then (set synchronous_standby_names)"
        )
    if weak:
        warnings.warn(f"{address} is weak for correctness: {'; '.join(weak)}", GuaranteeWarning, stacklevel=3)
