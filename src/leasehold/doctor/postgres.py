"""PostgreSQL: durability, replicas, poolers and clock."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from leasehold.core.worlds import run_blocking
from leasehold.doctor.findings import Finding, Look, clock_finding
from leasehold.wires.sql_table import Request, Statement

if TYPE_CHECKING:
    from leasehold.engines.postgres import PostgresEngine, PostgresFamily

_ASK = Statement(
    "SELECT current_setting('server_version'), pg_is_in_recovery(), current_setting('fsync'), "
    "current_setting('synchronous_commit'), current_setting('synchronous_standby_names'), "
    "current_setting('full_page_writes'), (SELECT count(*) FROM pg_stat_replication), pg_backend_pid(), "
    "extract(epoch FROM clock_timestamp())::float8",
    "leasehold_doctor",
)


def look(family: PostgresFamily, _engine: PostgresEngine, within: float) -> Look:
    """Ask the server what it is and how it is set."""
    asked_at = time.time()
    row, claimed_pid = run_blocking(_asked(family, within))
    version, standby, fsync, commit, sync_standbys, full_pages, replicas, pid, now = row
    findings = [
        durability(fsync, commit, full_pages, durable=family.target.durable),
        topology(standby=bool(standby), replicas=int(replicas), sync_standbys=sync_standbys, commit=commit),
        pooler(claimed_pid != int(pid), trusted=family.target.trusts_pooler, listens=bool(family.target.listen)),
        clock_finding(float(now), asked_at, time.time()),
    ]
    return Look(f"PostgreSQL {version}", findings)


async def _asked(family: PostgresFamily, within: float) -> tuple[tuple[Any, ...], int]:
    """Settings of the server, and the process that the connection was told of when it began."""
    from leasehold.wires.postgres import blocking_wire

    wire = blocking_wire(family.target, "doctor")
    try:
        line = await wire.lend(wire.world.now() + within)
        try:
            [[row]] = await line.ask_all([Request(_ASK)], wire.world.now() + within, commits=False)
        except BaseException as error:
            wire.drop(line, error)
            raise
        claimed_pid = line.claimed_pid
        wire.give_back(line)
    finally:
        await wire.close()
    return row, int(claimed_pid)


def durability(fsync: str, commit: str, full_pages: str, *, durable: bool) -> Finding:
    """Whether a grant survives a crash."""
    if fsync != "on":
        fix = "set fsync = on"
        return Finding("persistence", "problem", "fsync is off: a crash may damage or lose the whole database", fix)
    if full_pages != "on":
        fix = "set full_page_writes = on, unless the file system writes pages atomically"
        return Finding("persistence", "warning", "full_page_writes is off: a crash may damage pages", fix)
    if commit == "off" or not durable:
        what = "synchronous_commit is off" if commit == "off" else "the URL says durable=false"
        return Finding(
            "persistence",
            "warning",
            f"{what}: a crash may undo the latest grants, and only the clock keeps tokens increasing then",
            "set synchronous_commit = on" if commit == "off" else "leave durable=false out",
        )
    return Finding("persistence", "ok", f"fsync on, synchronous_commit {commit}")


def topology(*, standby: bool, replicas: int, sync_standbys: str, commit: str = "on") -> Finding:
    """What a failover may do."""
    if standby:
        return Finding("topology", "problem", "this server is a standby and takes no writes", "connect to the primary")
    if replicas and not sync_standbys:
        return Finding(
            "topology",
            "warning",
            f"{replicas} replica(s), asynchronous: one that takes over may lack the latest grants, and only clocks "
            "keep tokens increasing then",
            "set synchronous_standby_names, such as 'ANY 1 (*)'",
        )
    if sync_standbys and commit == "local":
        return Finding(
            "topology",
            "warning",
            f"synchronous_standby_names is {sync_standbys}, but synchronous_commit is local: commits do not wait, and "
            "a standby that takes over may lack the latest grants",
            "set synchronous_commit = on",
        )
    if sync_standbys and not replicas:
        return Finding(
            "topology",
            "problem",
            f"commits wait for a standby ({sync_standbys}), and none is connected: nobody gets a lease",
            "bring a standby back, or empty synchronous_standby_names until then",
        )
    if sync_standbys:
        return Finding("topology", "ok", f"{replicas} replica(s), and commits wait for them ({sync_standbys})")
    return Finding("topology", "ok", "one server without replicas")


def pooler(stands_between: bool, *, trusted: bool, listens: bool) -> Finding:
    """Whether connections have a session of their own."""
    if not stands_between:
        return Finding("pooler", "ok", "connections go to the server itself")
    if trusted:
        seen = "a pooler stands before the server, and the URL says that it keeps one session for each connection"
        return Finding("pooler", "note", seen, "make sure that its pool_mode is session")
    if listens:
        return Finding("pooler", "ok", "a pooler stands before the server; wake-ups go past it (?listen=)")
    return Finding(
        "pooler",
        "warning",
        "a pooler stands before the server: nobody can be woken through it, so waiters ask twice a second",
        "give the server's own address as ?listen=host:port, or say ?pooler=session if it keeps sessions",
    )
