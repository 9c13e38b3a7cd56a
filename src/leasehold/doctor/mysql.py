"""MySQL and MariaDB: durability, replicas, clusters and clock."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from leasehold.core.worlds import run_blocking
from leasehold.doctor.findings import Finding, Look, clock_finding
from leasehold.engines.mysql_facts import REPLICAS
from leasehold.wires.sql_table import Request, Statement

if TYPE_CHECKING:
    from leasehold.engines.mysql import MysqlEngine, MysqlFamily

_VERSION = Statement(
    "SELECT version(), CAST(unix_timestamp(sysdate(6)) * 1000000 AS SIGNED)", "leasehold_doctor_version"
)
_SETTINGS = Statement(
    "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('innodb_flush_log_at_trx_commit', 'log_bin', 'sync_binlog', "
    "'wsrep_on', 'rpl_semi_sync_master_enabled', 'rpl_semi_sync_source_enabled', 'read_only', "
    "'innodb_doublewrite', 'binlog_format')",
    "leasehold_doctor_settings",
)
_REPLICAS = Statement(REPLICAS, "leasehold_doctor_replicas")
_CONFIRMING = Statement(
    "SHOW GLOBAL STATUS WHERE Variable_name IN ('Rpl_semi_sync_master_clients', 'Rpl_semi_sync_source_clients')",
    "leasehold_doctor_confirming",
)
_SEES_REPLICAS = Statement(
    "SELECT COUNT(*) FROM information_schema.user_privileges WHERE privilege_type = 'PROCESS'", "leasehold_doctor_sees"
)


def look(_family: MysqlFamily, engine: MysqlEngine, within: float) -> Look:
    """Ask the server what it is and how it is set."""
    asked_at = time.time()
    asked = [Request(one) for one in (_VERSION, _SETTINGS, _REPLICAS, _CONFIRMING, _SEES_REPLICAS)]
    answers = run_blocking(engine._ask_all(asked, engine.world.now() + within))
    [[(version, now)], settings, [[replicas]], confirming, [[sees]]] = answers
    answered_at = time.time()
    told = {_text(key).lower(): _text(value) for key, value in settings}
    product = "MariaDB" if "mariadb" in _text(version).lower() else "MySQL"
    findings = [
        durability(told),
        topology(
            told,
            int(_text(replicas)),
            confirming=sum(int(_text(count)) for _, count in confirming),
            sees_replicas=bool(int(_text(sees))),
        ),
        clock_finding(int(_text(now)) / 1e6, asked_at, answered_at),
    ]
    return Look(f"{product} {_text(version).partition('-')[0]}", findings)


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def durability(told: Mapping[str, str]) -> Finding:
    """Whether a grant survives a crash."""
    flush = told.get("innodb_flush_log_at_trx_commit", "1")
    if flush != "1":
        return Finding(
            "persistence",
            "warning",
            f"innodb_flush_log_at_trx_commit is {flush}: a crash may undo the grants of the last second",
            "set innodb_flush_log_at_trx_commit = 1",
        )
    if told.get("innodb_doublewrite", "ON").upper() in ("OFF", "0"):
        fix = "set innodb_doublewrite = ON, unless the file system writes pages atomically"
        return Finding("persistence", "warning", "innodb_doublewrite is off: a crash may damage pages", fix)
    if told.get("log_bin") == "ON" and told.get("sync_binlog", "1") != "1":
        return Finding(
            "persistence",
            "warning",
            f"sync_binlog is {told['sync_binlog']}: after a crash the binary log, and so replicas, may lack grants",
            "set sync_binlog = 1",
        )
    return Finding("persistence", "ok", "each commit is on disk before it is confirmed")


def topology(told: Mapping[str, str], replicas: int, *, confirming: int = 0, sees_replicas: bool = True) -> Finding:
    """What a failover may do."""
    if told.get("read_only", "OFF") not in ("OFF", "0"):
        return Finding("topology", "problem", "the server is read-only: a replica?", "connect to the primary")
    if told.get("wsrep_on") == "ON":
        return Finding(
            "topology",
            "warning",
            "this is a node of a Galera cluster: row locks and wake-ups end at the node",
            "let all programs use the same node",
        )
    semi_sync = "ON" in (told.get("rpl_semi_sync_master_enabled"), told.get("rpl_semi_sync_source_enabled"))
    if replicas and not (semi_sync and confirming):
        but = " (semi-synchronous replication is on, and none takes part in it)" if semi_sync else ""
        return Finding(
            "topology",
            "warning",
            f"{replicas} replica(s), asynchronous{but}: one that takes over may lack the latest grants",
            "let replicas confirm each commit (semi-synchronous replication, waiting after sync)",
        )
    if not replicas and not sees_replicas and told.get("log_bin") == "ON":
        return Finding(
            "topology",
            "note",
            "the binary log is on, and this user is not told who reads it: a replica that takes over may lack grants",
            "GRANT PROCESS ON *.* TO this user, for this question only",
        )
    return Finding(
        "topology",
        "ok",
        f"{replicas} replica(s), {confirming} of which confirm commits" if replicas else "no replica seen",
    )
