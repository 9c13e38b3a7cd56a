"""A run: workers are started, faults strike by a schedule that a seed gives, everything settles, judges look at it."""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final, Literal

from leasehold import Capability, Facts, Leasehold
from leasehold.chaos.addresses import addresses, no_proxies, with_addresses
from leasehold.chaos.checkers import judge
from leasehold.chaos.checkers.gaps import BOUNDS, USUAL
from leasehold.chaos.checkers.verdict import Verdict
from leasehold.chaos.crew import Crew
from leasehold.chaos.faults import FAULTS
from leasehold.chaos.faults.engine import NOT_OURS, DiskFault
from leasehold.chaos.faults.workers import NO_PROXY
from leasehold.chaos.history import RUN, Event, Recorder, merged
from leasehold.chaos.marks import Marks
from leasehold.chaos.resource import Resource
from leasehold.chaos.run_info import RunInfo
from leasehold.chaos.schedule import How, Strike, strikes
from leasehold.chaos.servers.shim import shim
from leasehold.chaos.servers.witness import NoWitness, Witness
from leasehold.chaos.site import Fault, Server, Site
from leasehold.chaos.subjects import offer_of
from leasehold.chaos.worker import MARKS_FILE, RESOURCE_FILE, Settings
from leasehold.chaos.workloads import WORKLOADS, Workload
from leasehold.errors import Misuse, NotSupported, quoted
from leasehold.testing.boots import believe_in_boot
from leasehold.testing.proxy import Proxy

LOOKS_EVERY: Final = 0.05
STARTS_WITHIN: Final = 60.0
PATIENCE: Final = 15.0
"""Seconds, and two waits, in which a worker that is told to end has to."""
BY_SERVER: Final = "ended-by-server"
"""What is called so in a history was not done by the run: a server says that it may have ended leases by itself."""
Phase = Literal["starting", "breaking things", "settling", "stopping", "judging", "over"]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be run."""

    url: str = field(repr=False)
    workload: str = "register"
    faults: tuple[str, ...] = ()
    how: How = "alone"
    subject: str = "leasehold"
    seed: int = 0
    seconds: float = 30.0
    ttl: float = 2.0
    wait: float = 4.0
    workers: int = 5
    permits: int = 2
    command: str = ""
    """Repeats the run; it is only passed on."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a run."""

    info: RunInfo
    history: list[Event]
    verdicts: list[Verdict]
    struck: dict[str, int]
    """How often each fault struck; those that never had their turn are there with 0."""

    @property
    def violated(self) -> bool:
        """Whether any claim was."""
        return any(verdict.status == "violated" for verdict in self.verdicts)


class Run:
    """One run. `go` does it; the rest tells how far it is, from any thread."""

    def __init__(self, plan: Plan, folder: Path, servers: Sequence[Server] = (), own_file: Path | None = None) -> None:
        """Check what can be checked without sending anything; what the run writes is in the folder, which is there.

        Servers, or the file of an embedded engine, are the run's own: it may break them.
        """
        self._own_file = own_file
        self._plan, self._folder, self._servers = plan, folder, list(servers)
        self._workload = WORKLOADS[_known(plan.workload, WORKLOADS, "workload")]
        for name in plan.faults:
            _known(name, FAULTS, "fault")
        self._facts = facts_of(plan.url)
        _check(plan, self._workload, self._facts)
        self.phase: Phase = "starting"
        self.began = time.monotonic()
        self.now_broken: tuple[str, ...] = ()
        self.struck: Counter[str] = Counter()
        self.left_out: dict[str, str] = {}
        self.tell: Callable[[str], object] = lambda _news: None
        """Called with each thing that people may want to know while it runs."""
        self._crew: Crew | None = None
        self._grants: dict[str, int] = {}
        self._op = 0
        self._unseen = ""

    @property
    def grants(self) -> dict[str, int]:
        """How often each worker was granted what it asked for."""
        with contextlib.suppress(ValueError):  # the run is over, and the marks are closed
            self._grants = {worker.name: worker.grants for worker in self._crew.workers} if self._crew else {}
        return self._grants

    def go(self) -> Outcome:
        """Do it. Whatever was started is ended when this returns or raises."""
        with contextlib.ExitStack() as stack:
            with Leasehold(self._plan.url, label="chaos") as locks:
                locks.status("chaos")  # an engine that is not there is told at once, not by every worker
            record = Recorder(self._folder / "events-run.jsonl", RUN, self.began)
            stack.callback(record.close)
            resource = Resource(self._folder / RESOURCE_FILE, self.began)
            stack.callback(resource.close)
            resource.create()
            self._workload.prepare(resource)
            site, crew = self._site(stack)
            info = self._info(site)
            record("begin", run={name: value for name, value in asdict(info).items() if name != "guarantee"})
            self._wait_for_grants(site, crew, STARTS_WITHIN)
            self._break_things(site, crew, record, info)
            self._settle(site, crew, record, info)
            self._enter("stopping")
            hung = crew.stop(within=PATIENCE + 2 * self._plan.wait)
            self._read_all(resource, record)
            self._ask_for_robberies(record)
            record("end", hung=hung)
            self._enter("judging")
            files = [path for worker in crew.workers for path in worker.histories()]
            history = sorted(
                [*merged([*files, self._folder / "events-run.jsonl"]), *resource.log()], key=lambda event: event.at
            )
        outcome = Outcome(info, history, judge(history, info), {name: self.struck[name] for name in info.faults})
        self.phase = "over"
        return outcome

    # Setting up

    def _site(self, stack: contextlib.ExitStack) -> tuple[Site, Crew]:
        plan = self._plan
        marks = Marks(self._folder / MARKS_FILE, plan.workers)
        stack.callback(marks.close)
        witness = self._witness(stack)
        crew = self._crew = Crew(marks, witness)
        namespace = f"chaos-{secrets.token_hex(4)}"
        clock = shim(self._folder, "workers") if any(name.startswith("client-clock") for name in plan.faults) else None
        each = [] if no_proxies(plan.url) else addresses(plan.url)
        proxies = [self._proxy(stack, host, port) for _ in range(plan.workers) for host, port in each]
        stack.callback(crew.kill)
        for number in range(plan.workers):
            mine = proxies[number * len(each) : (number + 1) * len(each)]
            url = with_addresses(plan.url, [f"{proxy.host}:{proxy.port}" for proxy in mine]) if mine else plan.url
            settings = Settings(
                name=f"w{number + 1}",
                number=number,
                life=0,
                folder=str(self._folder),
                began=self.began,
                parent=os.getpid(),
                workers=plan.workers,
                url=url,
                namespace=namespace,
                subject=plan.subject,
                workload=plan.workload,
                ttl=plan.ttl,
                wait=plan.wait,
                permits=plan.permits,
                seed=plan.seed,
            )
            crew.add(settings, clock.environment if clock else {})
        site = Site(
            plan.url,
            plan.ttl,
            [*crew.workers],
            proxies,
            self._servers,
            random.Random(f"faults/{plan.seed}"),
            namespace,
            plan.subject,
            clock,
            witness,
        )
        return site, crew

    def _witness(self, stack: contextlib.ExitStack) -> Witness | None:
        """Who sees what workers write to a file of the run's own, where faults need that and it can be."""
        if self._own_file is None or not any(issubclass(FAULTS[name], DiskFault) for name in self._plan.faults):
            return None
        try:
            witness = Witness(self._folder, str(self._own_file.resolve()))
        except NoWitness as why:
            self._unseen = str(why)
            return None
        stack.callback(witness.close)
        stack.callback(believe_in_boot, 0)
        return witness

    @staticmethod
    def _proxy(stack: contextlib.ExitStack, host: str, port: int) -> Proxy:
        proxy = Proxy(host, port)
        proxy.start()
        stack.callback(proxy.stop)
        return proxy

    def _info(self, site: Site) -> RunInfo:
        plan = self._plan
        for name in plan.faults:
            reason = FAULTS[name]().missing(site)
            if reason is not None:
                self.left_out[name] = self._why(name, reason)
        for reason, names in by_reason(self.left_out).items():
            self.tell(f"left out {', '.join(names)}: {reason}")
        faults = tuple(name for name in plan.faults if name not in self.left_out)
        if plan.faults and not faults:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in self.left_out.items())
            raise Misuse(f"none of these faults can be made here: {reasons}")
        return RunInfo(
            engine=self._facts.engine,
            address=self._facts.address,
            subject=plan.subject,
            workload=plan.workload,
            faults=faults,
            seed=plan.seed,
            seconds=plan.seconds,
            ttl=plan.ttl,
            workers=plan.workers,
            command=plan.command,
            wait=plan.wait,
            permits=plan.permits if self._workload.mode == "permit" else 1,
            pauses_holders=any(self._robs(FAULTS[name]) for name in faults),
            left_out=dict(self.left_out),
            guarantee=self._facts.guarantee if plan.subject == "leasehold" else None,
        )

    def _robs(self, fault: Fault | type[Fault]) -> bool:
        """Whether a fault may stop a holder, or take its lease before it can know."""
        in_connections = Capability.OUTLIVES_CONNECTION not in self._facts.capabilities
        return fault.pauses_holders or (fault.ends_connections and in_connections)

    def _why(self, fault: str, missing: str) -> str:
        """Why a fault is left out, in the words of this engine."""
        if missing == NOT_OURS and self._plan.url.startswith("sqlite:"):
            if issubclass(FAULTS[fault], DiskFault):
                return self._unseen or "the file is not this run's own, so nothing in it may be lost (leave out --on)"
            return "the engine is a file: it has no server"
        return (no_proxies(self._plan.url) if missing == NO_PROXY else None) or missing

    # Running

    def _wait_for_grants(self, site: Site, crew: Crew, within: float) -> bool:
        """Wait until each worker was granted something from now on; whether that happened in time."""
        before = [worker.grants for worker in crew.workers]
        give_up_at = time.monotonic() + within
        while any(worker.grants <= count for worker, count in zip(crew.workers, before, strict=True)):
            if time.monotonic() > give_up_at:
                return False
            self._pause(LOOKS_EVERY, site, crew)
        return True

    def _pause(self, seconds: float, site: Site, crew: Crew) -> None:
        give_up_at = time.monotonic() + seconds
        while (left := give_up_at - time.monotonic()) > 0:
            crew.check(site.struck)
            time.sleep(min(left, LOOKS_EVERY))

    def _break_things(self, site: Site, crew: Crew, record: Recorder, info: RunInfo) -> None:
        plan = self._plan
        self._enter("breaking things")
        over_at = time.monotonic() + plan.seconds
        for strike in strikes(info.faults, plan.how, seed=plan.seed, ttl=plan.ttl):
            left = over_at - time.monotonic()
            self._pause(min(strike.calm, left), site, crew)
            if strike.calm >= left:
                return
            with self._struck(strike, site, record) as lasts:
                self._pause(lasts, site, crew)
        self._pause(over_at - time.monotonic(), site, crew)

    @contextlib.contextmanager
    def _struck(self, strike: Strike, site: Site, record: Recorder) -> Iterator[float]:
        """Have faults strike, and mended at the end of the block; for how long they are to last."""
        with contextlib.ExitStack() as stack:
            stack.callback(setattr, self, "now_broken", ())
            for name in strike.faults:
                fault: Fault = FAULTS[name]()
                self._op += 1
                # The intent comes first: whatever happens to this run, what it may have done is in the history.
                record("fault", op=self._op, fault=name, robs=self._robs(fault), loses=fault.loses_answers)
                stack.callback(self._mend, fault, self._op, site, record)
                detail = fault.strike(site)
                record.event("struck", name="", op=self._op, token=None, detail=detail)
                self.struck[name] += detail.get("at") is not None
                self.tell(f"{record.now():.1f}s {name} strikes {detail.get('at') or 'nobody'}")
                self.now_broken = (*self.now_broken, name)
            yield max(FAULTS[name].lasts for name in strike.faults) * self._plan.ttl * strike.stretch

    @staticmethod
    def _mend(fault: Fault, op: int, site: Site, record: Recorder) -> None:
        fault.mend(site)
        record("fault over", op=op, fault=fault.name)

    def _settle(self, site: Site, crew: Crew, record: Recorder, info: RunInfo) -> None:
        self._enter("settling")
        record("settled")
        lapse, slack = BOUNDS.get(info.engine, USUAL)
        self._wait_for_grants(site, crew, lapse * info.ttl + slack + info.wait + PATIENCE)

    def _ask_for_robberies(self, record: Recorder) -> None:
        """Have it in the history when servers took leases away by themselves, in the wake of what was done to them."""
        now = record.now()
        ahead = time.time() - now
        found = [(since, until, one.name) for one in self._servers for since, until in one.robberies()]
        for since, until, name in found:
            if since - ahead < now:
                self._op += 1
                record("fault", op=self._op, at=since - ahead, fault=BY_SERVER, robs=True, loses=False)
                record.event("struck", name="", op=self._op, token=None, at=since - ahead, detail={"at": name})
                record("fault over", op=self._op, at=min(until - ahead, now), fault=BY_SERVER)

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
        self.tell(f"{time.monotonic() - self.began:.1f}s {phase}")

    def _read_all(self, resource: Resource, record: Recorder) -> None:
        for final in self._workload.final(resource):
            detail = {"resource": final.side, "kind": final.kind, "key": final.key, "value": final.value, "final": True}
            record.event("got", name=final.key, op=0, token=None, detail={**detail, **final.more})


def run(plan: Plan, folder: Path, servers: Sequence[Server] = (), own_file: Path | None = None) -> Outcome:
    """Do a whole run."""
    return Run(plan, folder, servers, own_file).go()


def by_reason(left_out: Mapping[str, str]) -> dict[str, list[str]]:
    """The faults that were left out, for each reason.

    >>> by_reason({"a": "no proxy", "b": "no server", "c": "no proxy"})
    {'no proxy': ['a', 'c'], 'no server': ['b']}
    """
    found: dict[str, list[str]] = {}
    for name, reason in left_out.items():
        found.setdefault(reason, []).append(name)
    return found


def _known(name: str, table: Mapping[str, object], what: str) -> str:
    if name not in table:
        raise Misuse(f"there is no {what} {quoted(name)}; there are {', '.join(table)}")
    return name


def facts_of(url: str) -> Facts:
    """What the engine behind a URL says of itself; nothing is sent."""
    with Leasehold(url) as locks:
        return locks.facts


def _check(plan: Plan, workload: Workload, facts: Facts) -> None:
    """Raise what is wrong with a plan, before anything is started."""
    needed = {"shared": Capability.SHARED, "permit": Capability.PERMITS}.get(workload.mode)
    if needed is not None and needed not in facts.capabilities:
        raise NotSupported(
            f"the workload {workload.name} needs what the {facts.engine} engine cannot do: {needed.value}"
        )
    offered = offer_of(plan.subject)
    if workload.mode not in offered.modes or (workload.several and not offered.several):
        raise NotSupported(f"the workload {workload.name} needs locks that {plan.subject} has not")
    if offered.engines is not None and facts.engine not in offered.engines:
        raise NotSupported(f"{plan.subject} runs on {' or '.join(offered.engines)}, not on {facts.engine}")
    if workload.only_leasehold and plan.subject != "leasehold":
        raise NotSupported(f"the workload {workload.name} is about a pattern of Leasehold; {plan.subject} has no such")
    if plan.ttl < facts.least_ttl:
        raise Misuse(f"on the {facts.engine} engine a TTL is at least {facts.least_ttl:g} s, not {plan.ttl:g} s")
    if plan.workers < 2:
        raise Misuse("it takes two workers at least to get in each other's way")
