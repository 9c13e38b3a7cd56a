"""Redis and Valkey: persistence, eviction, replicas, cluster and clock."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

from leasehold.core.worlds import run_blocking
from leasehold.doctor.findings import Finding, Look, clock_finding
from leasehold.wires.redis_replies import ErrorReply, command

if TYPE_CHECKING:
    from leasehold.engines.redis import RedisEngine, RedisFamily

_NOT_TOLD = "the server does not say"


def look(family: RedisFamily, engine: RedisEngine, within: float) -> Look:
    """Ask the server what it is and how it is set."""
    asked_at = time.time()
    requests = [command("TIME"), command("INFO"), command("CONFIG", "GET", "appendfsync"), command("CLUSTER", "INFO")]
    replies = run_blocking(engine._ask_all([one.decode() for one in requests], engine.world.now() + within))
    answered_at = time.time()
    clock, info, fsync, cluster = replies
    told = fields(info) | fields(cluster)
    findings = [
        persistence(told, _setting(fsync)),
        eviction(told),
        topology(told, sentinel=family.target.service is not None),
    ]
    if isinstance(clock, list):
        findings.append(clock_finding(int(clock[0]) + int(clock[1]) / 1e6, asked_at, answered_at))
    return Look(_version(told), findings)


def fields(info: Any) -> dict[str, str]:
    """The answer to INFO as a dictionary; empty when the server refused it."""
    text = info.decode("utf-8", "replace") if isinstance(info, bytes) else ""
    return dict(re.findall(r"^(\w+):([^\r\n]*)", text, re.MULTILINE))


def _setting(reply: Any) -> str | None:
    """The value in an answer to CONFIG GET; None when it was refused, as managed services do."""
    if isinstance(reply, ErrorReply) or not isinstance(reply, list | dict):
        return None
    values = list(reply.values()) if isinstance(reply, dict) else reply[1::2]
    return bytes(values[0]).decode() if values else None


def _version(told: dict[str, str]) -> str:
    if "valkey_version" in told:
        return f"Valkey {told['valkey_version']}"
    return f"Redis {told['redis_version']}" if "redis_version" in told else ""


def persistence(told: dict[str, str], fsync: str | None) -> Finding:
    """Whether leases and tokens survive a crash."""
    aof = told.get("aof_enabled")
    if aof is None:
        return Finding("persistence", "note", f"{_NOT_TOLD} whether it keeps a log", "let this user run INFO")
    if aof == "0":
        return Finding(
            "persistence",
            "warning",
            "there is no append-only file: a restart forgets leases that are held, so that two may hold one name, and "
            "only the clock keeps tokens increasing",
            "set appendonly yes and appendfsync always (or everysec)",
        )
    if told.get("aof_last_write_status", "ok") != "ok":
        return Finding("persistence", "problem", "its last write to the log failed", "see to its disk")
    if fsync in (None, "always"):
        return Finding("persistence", "ok", f"append-only file, fsync {fsync or 'not told'}")
    lost = "the last second" if fsync == "everysec" else "up to half a minute"
    return Finding(
        "persistence",
        "note" if fsync == "everysec" else "warning",
        f"append-only file with appendfsync {fsync}: a crash of the machine forgets the grants of {lost}",
        "set appendfsync always where two holders at a time would do harm that no fence stops",
    )


def eviction(told: dict[str, str]) -> Finding:
    """Whether the server may drop leases to save memory."""
    policy, most = told.get("maxmemory_policy"), told.get("maxmemory")
    if policy is None:
        return Finding("eviction", "note", f"{_NOT_TOLD} whether it evicts keys", "let this user run INFO")
    if policy == "noeviction":
        return Finding("eviction", "ok", "noeviction: no lease is dropped to save memory")
    if most in (None, "0"):
        seen = f"maxmemory-policy is {policy}, but there is no maxmemory: nothing is dropped unless one is set"
        return Finding("eviction", "note", seen, "set maxmemory-policy noeviction, before somebody sets maxmemory")
    return Finding(
        "eviction",
        "problem",
        f"maxmemory-policy {policy} with a maxmemory of {most} bytes: the server may drop leases that are held, and "
        f"their tokens ({told.get('evicted_keys', '0')} keys evicted so far)",
        "set maxmemory-policy noeviction, or use a server of their own for locks",
    )


def topology(told: dict[str, str], *, sentinel: bool = False) -> Finding:
    """What a failover may do."""
    role, replicas = told.get("role"), told.get("connected_slaves")
    if role is None:
        return Finding("topology", "note", f"{_NOT_TOLD} whether it has replicas", "let this user run INFO")
    if role != "master":
        return Finding("topology", "problem", "this is a replica", "connect to the primary, or through Sentinel")
    if told.get("cluster_enabled") == "1" and told.get("cluster_size", "1") not in ("0", "1"):
        return Finding(
            "topology",
            "problem",
            f"this is one of the {told['cluster_size']} nodes over which a cluster spreads its keys: it serves the "
            "locks whose names fall to it, and refuses the others",
            "write redis+cluster:// for all of them; for correctness use one server that is no cluster, a quorum of "
            "such servers (redlock://), or etcd",
        )
    if told.get("cluster_enabled") == "1":
        return Finding(
            "topology",
            "warning",
            "this is a node of a cluster: a failover may promote a replica that lacks the latest grants and tokens",
            "use one server without replicas, a quorum (redlock://), or etcd for correctness",
        )
    if sentinel or replicas not in (None, "0"):
        by = "Sentinel promotes" if sentinel else "a failover may promote"
        return Finding(
            "topology",
            "warning",
            f"{replicas} replica(s), asynchronous: {by} one that lacks the latest grants and tokens",
            "use it for efficiency only; for correctness one server without replicas, redlock:// or etcd",
        )
    return Finding("topology", "ok", "one server without replicas")
