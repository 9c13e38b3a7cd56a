"""What MySQL and MariaDB promise and what they do not, and how to find out about one deployment."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Final

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
        "a common floor."
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
        "holder's renewals on their own clock. A hung waiter costs those behind it 2 s, and so does one that died less "
        "than a second before; its TTL, if it was handed the name within a quarter of a second of asking. A process "
        "that stalls in the middle of a request can keep one name closed for 2 s."
    ),
    failover=(
        "With replicas that confirm each commit (semi-synchronous, waiting after sync) no grant is lost, and the "
        "clock of the new primary goes on counting: its difference from the old one is part of no margin, so keep "
        "clocks within a few milliseconds. With asynchronous replicas, grants of the last moments may be lost."
    ),
    proxies=(
        "A proxy must keep one session for each connection: sessions are set up, and a listener waits in one. Never "
        "let it spread requests over several servers. In a Galera or group-replication cluster all programs must use "
        "the same node: row locks and wake-ups end at the node."
    ),
    enforce_with=(
        "innodb_flush_log_at_trx_commit=1, sync_binlog=1 where there is a binary log, binlog_format ROW or MIXED, and "
        "a fence at the resource."
    ),
)

_SESSION: Final = Guarantee(
    not_guaranteed=(
        "A holder whose connection ends (it is killed there, the server restarts or fails over) has lost its lock at "
        "that moment, and believes in it until it notices: for a tenth of a second, or up to its TTL if the network "
        "swallows the news. Another may hold the name by then, and only a fence at the resource stops the writes of "
        "one that was overtaken."
    ),
    tokens=(
        "The name's last token plus one, or the server's clock in microseconds where that is higher. While the data "
        "survives, tokens increase whatever clocks do; the last token of a name that was not used for a day is kept in "
        "a common floor."
    ),
    fit_for_correctness=True,
    timekeeper=(
        "The server ends a connection that was silent for a TTL, rounded up to whole seconds, by a timer of its own "
        "(wait_timeout); the holder's own monotonic clock ends its belief, earlier."
    ),
    ends="Release, the end of its connection or of its process, its TTL, or a release by force.",
    loss_told=(
        "Within a tenth of a second when its connection is closed; at the TTL, by the holder's own clock, when the "
        "network swallows everything."
    ),
    takeover=(
        "At once when the holder's process or connection ends; its TTL, rounded up to whole seconds, after its last "
        "heartbeat when its host vanished or it stalls. Waiters are queued and woken by the server; every 30 s each of "
        "them queues anew."
    ),
    failover="Every lock ends with the server. Tokens go on as far as their table was replicated, or by the clock.",
    proxies=(
        "A proxy must keep one session for each connection. In a Galera or group-replication cluster all programs must "
        "use the same node: these locks end at the node."
    ),
    enforce_with=(
        "innodb_flush_log_at_trx_commit=1, sync_binlog=1 where there is a binary log, binlog_format ROW or MIXED, and "
        "a fence at the resource, which is needed more here: locks end with connections."
    ),
)

_CAPABILITIES: Final = frozenset(Capability) - {Capability.TOKEN_SURVIVES_FAILOVER}

LEAST_SESSION_TTL: Final = 1.0
"""The server's timer counts whole seconds."""


def lease_facts(address: str) -> Facts:
    """Describe leases in tables."""
    return Facts(
        "mysql",
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
    return Facts("mysql+session", address, SESSION_CAPABILITIES, _SESSION, LEAST_SESSION_TTL)


# Not @@name: of these, each kind of server has some and calls the others unknown.
SETTINGS: Final = (
    "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('innodb_flush_log_at_trx_commit', 'log_bin', 'sync_binlog', "
    "'wsrep_on', 'rpl_semi_sync_master_enabled', 'rpl_semi_sync_source_enabled')"
)
REPLICAS: Final = "SELECT COUNT(*) FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%'"
"""Without the privilege PROCESS a user sees none."""


def warn_if_weak(address: str, settings: Mapping[str, str], replicas: int) -> None:
    """Judge what the server says of itself, for a correctness lock."""
    weak = []
    if settings.get("innodb_flush_log_at_trx_commit", "1") != "1":
        weak.append(
            "a crash may undo its latest grants, and only its clock keeps tokens increasing (set "
            "innodb_flush_log_at_trx_commit to 1)"
        )
    if settings.get("log_bin") == "ON" and settings.get("sync_binlog") != "1":
        weak.append("a crash may undo what its binary log lacks, its latest grants among that (set sync_binlog to 1)")
    waits = "ON" in {settings.get(f"rpl_semi_sync_{role}_enabled") for role in ("master", "source")}
    if replicas and not waits:
        weak.append(
            f"it has {replicas} replica(s) that may lack the latest grants when one takes over, and only clocks keep "
            "tokens increasing then (make them semi-synchronous)"
        )
    if settings.get("wsrep_on") == "ON":
        weak.append("it is one of several nodes that take writes: let all programs use the same node")
    if weak:
        warnings.warn(f"{address} is weak for correctness: {'; '.join(weak)}", GuaranteeWarning, stacklevel=3)
