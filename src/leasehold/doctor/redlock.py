"""A quorum of Redis servers: each of them, and how many may fail."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from leasehold.core.worlds import run_blocking
from leasehold.doctor import redis
from leasehold.doctor.findings import Finding, Look
from leasehold.engines.redis import RedisFamily
from leasehold.errors import EngineError

if TYPE_CHECKING:
    from leasehold.engines.redlock import RedlockEngine, RedlockFamily


def look(family: RedlockFamily, _engine: RedlockEngine, within: float) -> Look:
    """Ask each server by itself."""
    findings, versions, answered = [], set(), 0
    targets = family._quorum.targets
    for target in targets:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # said once for the quorum
            member = RedisFamily(target, family.namespace, "doctor")
        engine = member.blocking()
        try:
            seen = redis.look(member, engine, within)
        except EngineError as error:
            findings.append(Finding("member", "warning", str(error), "bring it back: the others bear no more failures"))
            continue
        finally:
            run_blocking(engine.close())
        answered += 1
        versions.add(seen.version)
        findings += [_of_member(target.address, one) for one in seen.findings if one.level != "ok"]
    return Look(", ".join(sorted(versions)), [_quorum(len(targets), answered), *findings])


def _of_member(address: str, finding: Finding) -> Finding:
    return finding._replace(seen=f"{address}: {finding.seen}")


def _quorum(servers: int, answered: int) -> Finding:
    majority = servers // 2 + 1
    seen = f"{answered} of {servers} servers answer; a majority is {majority}"
    if answered < majority:
        return Finding("quorum", "problem", seen, "bring servers back")
    if answered == majority:
        return Finding("quorum", "warning", f"{seen}: no other may fail now", "bring servers back, or use five")
    return Finding("quorum", "ok", f"{seen}: {answered - majority} more may fail")
