"""Consul: servers, leader and access."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leasehold.core.worlds import run_blocking
from leasehold.doctor.clusters import members_finding
from leasehold.doctor.findings import Finding, Look
from leasehold.errors import EngineError

if TYPE_CHECKING:
    from leasehold.engines.consul import ConsulEngine, ConsulFamily


def look(_family: ConsulFamily, engine: ConsulEngine, within: float) -> Look:
    """Ask an agent of itself and of its servers."""
    until = engine.world.now() + within

    def ask(path: str) -> Any:
        return run_blocking(engine._wire.get(path, until))

    findings = []
    leader, peers = ask("status/leader"), ask("status/peers")
    if leader:
        findings.append(Finding("leader", "ok", f"the leader is {leader}"))
    else:
        fix = "bring servers back"
        findings.append(Finding("leader", "problem", "there is no leader: a majority of servers is missing", fix))
    findings.append(members_finding(len(peers), "server"))
    try:
        told = ask("agent/self")
    except EngineError as error:
        fix = "give this token agent:read, for this question only"
        findings.append(Finding("settings", "note", f"the agent does not tell its settings: {error}", fix))
        return Look("Consul", findings)
    config, debug = told.get("Config", {}), told.get("DebugConfig", {})
    findings.append(_access(enabled=bool(debug.get("ACLsEnabled"))))
    if debug.get("DevMode") is True or debug.get("DataDir") == "":
        seen = "this agent runs in development mode: a restart forgets all leases and tokens"
        findings.append(Finding("persistence", "warning", seen, "start servers with a data_dir"))
    else:
        findings.append(Finding("persistence", "ok", "servers keep their log on disk"))
    return Look(f"Consul {config.get('Version', '')}".strip(), findings)


def _access(*, enabled: bool) -> Finding:
    if enabled:
        return Finding("access", "ok", "access control is on")
    seen = "access control is off: whoever reaches an agent can end every session and take every lock"
    return Finding("access", "note", seen, "turn ACLs on where others share the network")
