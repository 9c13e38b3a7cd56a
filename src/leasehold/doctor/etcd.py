"""etcd: members, leader, alarms and the size of its database."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasehold.core.worlds import run_blocking
from leasehold.doctor.clusters import members_finding
from leasehold.doctor.findings import Finding, Look
from leasehold.errors import EngineError
from leasehold.wires import etcd_messages as messages

if TYPE_CHECKING:
    from leasehold.engines.etcd import EtcdEngine, EtcdFamily

DEFAULT_QUOTA = 2 * 1024**3
_ALARMS = {1: "no space is left in its database: it takes no writes", 2: "its data is damaged"}
_ALARM_FIXES = {1: "compact and defragment it, then `etcdctl alarm disarm`", 2: "replace the damaged member"}


def look(_family: EtcdFamily, engine: EtcdEngine, within: float) -> Look:
    """Ask a member of itself and of its cluster."""
    until = engine.world.now() + within
    status = run_blocking(engine._requests.ask(messages.STATUS, b"", until, messages.status_of))
    findings = [_leader(status), _size(status.size)]
    other = [error for error in status.errors if "alarm:" not in error]
    findings += [Finding("health", "problem", f"etcd says: {error}", "see its log") for error in other]
    try:
        members = run_blocking(engine._requests.ask(messages.MEMBERS, b"", until, messages.members_of))
        alarms = run_blocking(engine._requests.ask(messages.ALARMS, b"", until, messages.alarms_of))
    except EngineError as error:
        findings.append(Finding("topology", "note", f"etcd does not tell its members: {error}"))
        return Look(f"etcd {status.version}", findings)
    findings.append(members_finding(sum(not member.is_learner for member in members)))
    for alarm in sorted(set(alarms)):
        seen, fix = _ALARMS.get(alarm, f"alarm {alarm}"), _ALARM_FIXES.get(alarm, "see `etcdctl alarm list`")
        findings.append(Finding("alarm", "problem", seen, fix))
    return Look(f"etcd {status.version}", findings)


def _leader(status: messages.MemberStatus) -> Finding:
    if status.is_learner:
        return Finding("leader", "problem", "this member only learns: it serves no locks", "connect to a voting member")
    if not status.leader:
        return Finding("leader", "problem", "there is no leader: a majority is missing", "bring members back")
    return Finding("leader", "ok", "there is a leader")


def _size(size: int) -> Finding:
    seen = f"its database has {size // 1024} KiB"
    if size > 0.8 * DEFAULT_QUOTA:
        fix = "compact and defragment it: at its quota (2 GiB by default) it takes no more writes"
        return Finding("disk", "warning", seen, fix)
    return Finding("disk", "ok", seen)
