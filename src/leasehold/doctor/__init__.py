"""Looks at an engine for real, and says what this deployment guarantees and how to raise it. One file a family."""

from __future__ import annotations

import importlib
import secrets
import time
import warnings
from statistics import median
from typing import TYPE_CHECKING, Final, NamedTuple

from leasehold.client import Leasehold
from leasehold.core.engine import Capability, Facts
from leasehold.core.worlds import run_blocking
from leasehold.doctor.findings import Finding, Level, Look
from leasehold.errors import (
    EngineError,
    EngineUnavailable,
    GuaranteeTooWeak,
    GuaranteeWarning,
    LeaseholdError,
    OutcomeUnknown,
)

if TYPE_CHECKING:
    from leasehold import Lease
    from leasehold.core.engine import Engine

_FAMILIES: Final = {
    "sqlite": "sqlite",
    "redis": "redis",
    "redis+cluster": "redis_cluster",
    "redlock": "redlock",
    "postgresql": "postgres",
    "postgresql+session": "postgres",
    "mysql": "mysql",
    "mysql+session": "mysql",
    "mariadb": "mysql",
    "etcd": "etcd",
    "consul": "consul",
    "zookeeper": "zookeeper",
}
ROUND_TRIPS: Final = 5
SLOW: Final = 0.1
"""A round trip that takes longer than this makes every lock slow, and short TTLs risky."""
PROBE_TTL: Final = 10.0
ELSEWHERE: Final = "leases live on the primary"
"""What every wire says of a server that takes no writes."""


class Diagnosis(NamedTuple):
    """What was found, and what it means."""

    engine: str
    address: str
    version: str
    reachable: bool
    findings: list[Finding]
    fit_for: str
    """In plain words: what locks here may be used for."""
    not_guaranteed: str

    @property
    def worst(self) -> Level:
        """The gravest level of all findings."""
        levels = [finding.level for finding in self.findings]
        return next((level for level in ("problem", "warning", "note") if level in levels), "ok")


def examine(on: object = None, *, namespace: str = "", within: float = 5.0) -> Diagnosis:
    """Look at the engine behind a URL; each request has `within` seconds. Takes and gives back one lease of its own."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", GuaranteeWarning)
        with Leasehold(on, namespace=namespace, label="doctor", request_timeout=within) as locks:
            return _examined(locks, within, said)


def _examined(locks: Leasehold, within: float, said: list[warnings.WarningMessage]) -> Diagnosis:
    facts = locks.facts
    findings = [Finding("transport", "warning", str(one.message)) for one in said]
    said.clear()
    reach = _reach(locks)
    look = _look(locks, within)
    if isinstance(look, EngineError) and reach.level == "problem":
        is_there = reach.check != "reachable"
        nothing = "Nothing: a lease is a write." if is_there else "Nothing: it cannot be reached."
        return Diagnosis(facts.engine, facts.address, "", is_there, [*findings, reach], nothing, "")
    if isinstance(look, EngineError):
        fix = "let this user ask for them; they are only read"
        look = Look("", [Finding("settings", "note", f"the engine does not tell its settings: {look}", fix)])
    findings += [reach, *look.findings, *_use(locks)]
    said.clear()
    purpose = _purpose(locks, within)
    return Diagnosis(
        facts.engine,
        facts.address,
        look.version,
        True,
        findings,
        _fit_for(facts, purpose, {finding.level for finding in findings if finding.check != "transport"}),
        facts.guarantee.not_guaranteed,
    )


def _reach(locks: Leasehold) -> Finding:
    """Several round trips, the first of which also connects."""
    took = []
    try:
        locks.status("leasehold-doctor")
        for _ in range(ROUND_TRIPS):
            began = time.perf_counter()
            locks.status("leasehold-doctor")
            took.append(time.perf_counter() - began)
    except EngineError as error:
        return _not_served(error, locks.facts.engine)
    seen = f"a round trip takes {median(took) * 1000:.1f} ms (median of {ROUND_TRIPS})"
    if median(took) > SLOW:
        fix = "use an engine that is nearer, and TTLs of at least 10 s"
        return Finding("reachable", "warning", f"{seen}, which makes every lock slow", fix)
    return Finding("reachable", "ok", seen)


def _not_served(error: EngineError, engine: str) -> Finding:
    """Why it cannot even be asked who holds a name."""
    if ELSEWHERE in str(error):
        fix = "give the address of the primary, and examine that: what it guarantees depends on its replicas"
        return Finding("topology", "problem", str(error), fix)
    if engine == "sqlite":
        fix = "check who may read and write the file and its folder, and that there is room on the disk"
        return Finding("reachable", "problem", str(error), fix)
    if isinstance(error, EngineUnavailable | OutcomeUnknown):
        return Finding("reachable", "problem", str(error), "start it, or check the address, the network and the login")
    return Finding("reachable", "problem", f"it answers, and refuses: {error}", "do as it says")


def _look(locks: Leasehold, within: float) -> Look | EngineError:
    """What this kind of engine says of itself, or why it says nothing."""
    family = _FAMILIES.get(locks.facts.engine)
    if family is None:
        return Look("", [Finding("settings", "note", "nothing is known of the settings of this kind of engine")])
    look = importlib.import_module(f"leasehold.doctor.{family}").look
    engine: Engine = locks._desk.engine
    try:
        found: Look = look(locks._family, engine, within)
    except EngineError as error:
        return error
    return found


def _use(locks: Leasehold) -> list[Finding]:
    """Do for real what every lock does, under a name that nobody else has."""
    name = f"leasehold-doctor-{secrets.token_hex(4)}"
    lock = locks.lock(name, ttl=max(PROBE_TTL, locks.facts.least_ttl), wait=0, renew=False)
    doing, times = "taking a lease", list[float]()

    def taken() -> Lease:
        began = time.perf_counter()
        lease = lock.acquire()
        times.append(time.perf_counter() - began)
        return lease

    try:
        lease = taken()
        doing = "renewing a lease"
        lease.extend()
        if Capability.INSPECT in locks.facts.capabilities:
            doing = "seeing who holds a lease"
            locks.status(name)
        doing = "releasing a lease"
        lease.release()
        doing = "taking and releasing a lease once more"
        while len(times) < ROUND_TRIPS:  # one slow moment of a disk says nothing
            taken().release()
    except LeaseholdError as error:
        fix = "do as the engine says; which rights a user needs is on its page in the documentation"
        return [Finding("permissions", "problem", f"{doing} failed: {error}", fix)]
    took = median(times)
    seen = f"a lease was taken (in {took * 1000:.1f} ms, median of {ROUND_TRIPS}), renewed, seen and released"
    if took > SLOW:
        fix = "look at its disk: most engines wait for it before they grant"
        return [Finding("permissions", "warning", f"{seen}: that is slow", fix)]
    return [Finding("permissions", "ok", seen)]


def _purpose(locks: Leasehold, within: float) -> str | None:
    """Why the engine refuses correctness locks; None when it does not."""
    engine = locks._desk.engine
    try:
        run_blocking(engine.check_purpose("correctness", until=engine.world.now() + within))
    except GuaranteeTooWeak as error:
        return str(error)
    except EngineError:  # what is wrong was found by the other checks
        return None
    return None


def _fit_for(facts: Facts, refusal: str | None, levels: set[Level]) -> str:
    if "problem" in levels:
        return "Nothing to rely on, until the problems above are solved."
    if refusal is not None:
        return f"Efficiency only: {refusal}."
    if not facts.guarantee.fit_for_correctness:
        return f"Efficiency only. {facts.guarantee.tokens}"
    if "warning" in levels:
        return "Correctness with a fence at the resource, weakened by what is listed above."
    return "Correctness, together with a fence at the resource."
