"""Redlock with fencing tokens: leases at a majority of independent Redis or Valkey servers.

The decisions are in `core/quorum.py`, what a server does in `core/quorum_server.py`; here is how they come together.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from leasehold.core.engine import Busy, Grant, Incumbent, NameStatus, Purpose, Renewal, Suspect, Want
from leasehold.core.quorum import (
    AskConfirm,
    AskGrant,
    AskRelease,
    Beaten,
    Behind,
    Granted,
    Occupied,
    Outcome,
    Request,
    Unreachable,
    Verdict,
    Won,
    failure_of,
    judge_grants,
    judge_release,
    judge_renewal,
    judge_second_phase,
    majority_of,
)
from leasehold.core.worlds import World, run_blocking
from leasehold.engines import redlock_scripts as scripts
from leasehold.engines.family import WiredFamily
from leasehold.engines.redlock_facts import CLOCK_ERROR, facts_of
from leasehold.engines.redlock_status import Seen, accepted, merged, seen_from
from leasehold.errors import EngineError, EngineUnavailable, InvalidTTL, NotSupported
from leasehold.wires.quorum import Quorum
from leasehold.wires.quorum_target import Servers, servers_from
from leasehold.wires.redis_replies import ErrorReply, command, error_from, nonsense
from leasehold.wires.redis_target import warn_of_transport

MOST_SPLITS = 12
"""How often a round in which nobody got a majority is followed by another one before the caller hears of it."""
SPLIT_PAUSE = 0.02
LONGEST_SECOND_PHASE = 0.5
"""One that granted a moment ago and now does not answer is not waited for: another round is quicker."""
SILENCE = 2.0
"""A waiter near the head of the queue asks again after this long even without news."""
LONGEST_SILENCE = 75.0
NOBODY_KNOWS = 1e9
MOST_REMEMBERED = 4096


class Wire(Protocol):
    """Our path to the servers, in one of the worlds. The simulator has one, too."""

    @property
    def world(self) -> World:
        """The world that it blocks or suspends in."""
        ...

    def wall(self) -> int:
        """The time of day in microseconds, right or wrong."""
        ...

    async def scatter(
        self, request: Request, to: Sequence[int], until: float, enough: Callable[[list[Any]], bool]
    ) -> list[Outcome]:
        """Ask servers at once; returns what is known of each when it is enough, or when time is up."""
        ...

    async def scatter_all(
        self, requests: Sequence[Request], until: float, enough: Callable[[list[Any]], bool]
    ) -> list[Any]:
        """Ask all servers all of this; the outcome of a server that answered is a list."""
        ...

    async def collect(
        self, part: bytes, to: Sequence[int], until: float, enough: Callable[[list[Any]], bool], *, plain: bool = False
    ) -> list[Any]:
        """Ask servers in the protocol's own form; each outcome is the reply as it came."""
        ...

    def cast(self, request: Request, to: Sequence[int]) -> None:
        """Tell servers, without waiting for what they say."""
        ...

    def settled(self, holder: str) -> None:
        """This holder waits no longer."""
        ...

    def wait(self, holder: str, until: float) -> Coroutine[Any, Any, None]:
        """Wait for a holder's wake-up."""
        ...

    async def close(self) -> None:
        """Close connections."""
        ...

    def forked(self) -> None:
        """Let go of connections without a word."""
        ...


class RedlockEngine:
    """The operations, the same in every world: only the wire differs."""

    def __init__(self, family: RedlockFamily, wire: Wire) -> None:
        self.facts = family.facts
        self.world = wire.world
        self._family, self._wire = family, wire
        self._servers = len(family.addresses)
        self._everybody = range(self._servers)

    async def take(
        self,
        want: Want,
        *,
        until: float,
        patience: float | None = None,
        suspect: Suspect | None = None,  # noqa: ARG002
    ) -> Grant | Busy:
        """Take the name under a token that a majority accepts, or say why not; with patience, wait to be woken."""
        self._check_ttl(want.ttl)
        if want.mode != "exclusive" or want.delay:
            raise NotSupported("the redlock engine knows exclusive leases without a lock-delay only")
        outcomes: list[Outcome] = []
        for _ in range(MOST_SPLITS):
            token, outcomes, verdict = await self._round(want, until, patience)
            if token is not None:
                if patience is not None:
                    self._wire.settled(want.holder)
                    self._family.arrivals.pop(want.holder, None)
                return Grant(token)
            if isinstance(verdict, Unreachable):
                raise failure_of(outcomes, self._family.addresses)
            if isinstance(verdict, Beaten) and not verdict.split:
                break
            await self.world.sleep(SPLIT_PAUSE * self.world.chance())
            if self.world.now() >= until:
                break
        return self._busy(outcomes)

    async def _round(
        self, want: Want, until: float, patience: float | None, *, force: bool = False
    ) -> tuple[int | None, list[Outcome], Verdict | None]:
        """One attempt under a number of its own; what it leaves behind when it fails is given back."""
        family = self._family
        number = next(family.rounds)
        ask = AskGrant(
            want.name, want.holder, number, want.ttl, family.floor(want.name, self._wire.wall()), want.about,
            patience, 0 if patience is None else family.arrived(want.holder, self._wire.wall()), force,
        )  # fmt: skip
        verdict: Verdict | None = None

        def is_enough(outcomes: Sequence[Outcome]) -> bool:
            nonlocal verdict
            verdict = judge_grants(outcomes, final=False)
            return verdict is not None

        outcomes = await self._wire.scatter(ask, self._everybody, until, is_enough)
        if verdict is None:
            verdict = judge_grants(outcomes, final=True)
        family.saw(want.name, outcomes)
        token = None
        if isinstance(verdict, Won):
            token = verdict.token
        elif isinstance(verdict, Behind):
            token = await self._second_phase(want, verdict, outcomes, until)
        if token is None:
            left = [server for server in self._everybody if not isinstance(outcomes[server], Occupied)]
            self._wire.cast(AskRelease(want.name, want.holder, number, leave=False), left)
        return token, outcomes, verdict

    async def _second_phase(self, want: Want, behind: Behind, grants: list[Outcome], until: float) -> int | None:
        """Ask those that granted less to move up to the token; the token, if a majority has accepted it then."""
        counted = sum(isinstance(one, Granted) for one in grants)

        def judge(outcomes: Sequence[Outcome]) -> bool | None:
            return judge_second_phase(self._servers, behind, counted, outcomes)

        confirm = AskConfirm(want.name, want.holder, behind.token, want.ttl)
        until = min(until, self.world.now() + LONGEST_SECOND_PHASE)
        outcomes = await self._wire.scatter(
            confirm, behind.laggards, until, lambda outcomes: judge(outcomes) is not None
        )
        return behind.token if judge(outcomes) else None

    def _busy(self, outcomes: Sequence[Outcome]) -> Busy:
        """When to ask again, and who holds it as far as the servers agree."""
        occupied = [one for one in outcomes if isinstance(one, Occupied)]
        held = [one for one in occupied if one.token]
        if len(occupied) < majority_of(self._servers) or not held:
            return Busy(SPLIT_PAUSE * (1 + self.world.chance()), None)
        holds = accepted(held, self._servers)
        nearness = max(min(one.rank for one in occupied), 1)
        silence = min(nearness * (nearness + 1) / 2 * SILENCE, LONGEST_SILENCE) * (0.75 + 0.5 * self.world.chance())
        # A majority is free once all but a minority of those that are occupied now have let go.
        still_needed = max(majority_of(self._servers) - (self._servers - len(occupied)), 1)
        ends = sorted(one.left for one in occupied)[still_needed - 1]
        incumbent = _incumbent(holds.token, holds.about)
        return Busy(min(ends + SPLIT_PAUSE * self.world.chance(), silence) + 0.001, incumbent)

    def wait(self, want: Want, until: float) -> Coroutine[Any, Any, None]:
        """Return when the waiting asker is woken, or at `until`."""
        return self._wire.wait(want.holder, until)

    async def renew(self, leases: Sequence[Renewal], *, until: float) -> list[bool | None]:
        """Let a majority accept each token once more; None for a lease of which that cannot be known now."""
        for lease in leases:
            self._check_ttl(lease.ttl)
        requests = [AskConfirm(lease.name, lease.holder, lease.token, lease.ttl) for lease in leases]

        def verdicts(outcomes: Sequence[Any]) -> list[bool | None]:
            return [
                judge_renewal([one[index] if isinstance(one, list) else one for one in outcomes])
                for index in range(len(requests))
            ]

        outcomes = await self._wire.scatter_all(requests, until, lambda outcomes: None not in verdicts(outcomes))
        kept = verdicts(outcomes)
        if all(one is None for one in kept):
            raise failure_of([one[0] if isinstance(one, list) else one for one in outcomes], self._family.addresses)
        return kept

    async def release(self, name: str, holder: str, *, until: float) -> bool:
        """Give the name back at a majority, and stop waiting for it."""
        self._family.arrivals.pop(holder, None)
        held: bool | None = None

        def is_enough(outcomes: Sequence[Outcome]) -> bool:
            nonlocal held
            held = judge_release(outcomes)
            return held is not None

        outcomes = await self._wire.scatter(AskRelease(name, holder), self._everybody, until, is_enough)
        self._wire.settled(holder)
        if held is None:
            held = judge_release(outcomes, final=True)
        if held is None:
            raise failure_of(outcomes, self._family.addresses)
        return held

    async def status(self, name: str, *, until: float) -> NameStatus | None:
        """Who holds and who waits, as a majority of the servers sees it."""
        request = scripts.status_request(name, self._family.namespace)
        replies = await self._wire.collect(request, self._everybody, until, _never)
        seen: list[Seen] = []
        outcomes: list[Outcome] = []
        for reply, address in zip(replies, self._family.addresses, strict=True):
            found = None if reply is None or isinstance(reply, EngineError | ErrorReply) else seen_from(reply)
            if found is not None:
                seen.append(found)
                outcomes.append(Granted(0))
            else:
                outcomes.append(_failure(reply, address))
        if len(seen) < majority_of(self._servers):
            raise failure_of(outcomes, self._family.addresses)
        return merged(name, seen, self._servers)

    async def names(self, *, after: str | None, limit: int, until: float) -> list[str]:
        """Names that are held or waited for, in the order of their text. Looks through all keys of the servers."""
        found: set[str] = set()
        outcomes: list[Outcome] = []
        for server in self._everybody:
            try:
                found |= await self._names_on(server, until)
                outcomes.append(Granted(0))
            except EngineError as error:
                outcomes.append(error)
        if sum(isinstance(one, Granted) for one in outcomes) < majority_of(self._servers):
            raise failure_of(outcomes, self._family.addresses)
        names: list[str] = []
        for name in sorted(name for name in found if after is None or name > after):
            status = await self.status(name, until=until)
            if status is not None and (status.holders or status.waiters):
                names.append(name)
                if len(names) >= limit:
                    break
        return names

    async def _names_on(self, server: int, until: float) -> set[str]:
        namespace, address = self._family.namespace, self._family.addresses[server]
        names: set[str] = set()
        for pattern in (scripts.names_pattern(namespace), scripts.queues_pattern(namespace)):
            cursor = b"0"
            while True:
                request = command("SCAN", cursor, "MATCH", pattern, "COUNT", 1000)
                replies = await self._wire.collect(request, [server], until, _never, plain=True)
                match replies[server]:
                    case [bytes() as cursor, list(keys)]:
                        found = (scripts.name_of(key, namespace) for key in keys)
                        names.update(name for name in found if name is not None)
                    case other:
                        raise _failure(other, address)
                if cursor == b"0":
                    break
        return names

    async def force_release(self, name: str, *, until: float) -> int:
        """Take the name from whoever holds it, under a token above theirs, and give it back at once."""
        want = Want(name, self.world.nonce(), 1.0, about="released by force")
        token = None
        outcomes: list[Outcome] = []
        for _ in range(MOST_SPLITS):
            token, outcomes, _ = await self._round(want, until, None, force=True)
            if token is not None:
                await self.release(name, want.holder, until=until)
                return token
            await self.world.sleep(SPLIT_PAUSE * self.world.chance())
        raise failure_of(outcomes, self._family.addresses)

    async def initialise(self, *, until: float) -> list[Any]:
        """Let every server take part at once; see the function of this name."""
        request = scripts.initialise_request()
        return [(await self._wire.collect(request, [server], until, _never))[server] for server in self._everybody]

    async def check_purpose(self, purpose: Purpose, *, until: float) -> None:
        """A quorum is fit for both purposes: what its servers lack is found out by each connection, and made up for."""

    async def close(self) -> None:
        """Give back connections."""
        await self._wire.close()

    def forked(self) -> None:
        """Let go of every connection of the family: the keeper's, too, has no thread in a child."""
        self._family.forked()

    def _check_ttl(self, ttl: float) -> None:
        longest = self._family.longest_ttl
        if ttl > longest:
            raise InvalidTTL(
                f"ttl must be at most {longest:g} on this engine, not {ttl:g}: a server that lost its data is kept out "
                "for as long as the longest lease; set longest_ttl in the URL, the same in every program"
            )


@functools.lru_cache(maxsize=64)
def _incumbent(token: int, about: str) -> Incumbent:
    """Who stands in the way, the same object for all who wait for it: there may be thousands.

    The beat of its renewals is not watched here: no TTL is ever proved to be over.
    """
    return Incumbent(token, 0, NOBODY_KNOWS, about)


def _never(_outcomes: list[Any]) -> bool:
    return False


def _failure(reply: Any, address: str) -> EngineError:
    if isinstance(reply, EngineError):
        return reply
    if isinstance(reply, ErrorReply):
        return error_from(reply, address)
    return nonsense(reply, address)


class RedlockFamily(WiredFamily[RedlockEngine, Wire]):
    """One quorum of servers, and how to reach it in each world."""

    def __init__(self, servers: Servers, namespace: str, label: str) -> None:
        super().__init__(facts_of(servers.address))
        self.addresses = tuple(target.address for target in servers.targets)
        self.namespace, self.longest_ttl = namespace, servers.longest_ttl
        self.rounds = itertools.count(1)
        self.arrivals: dict[str, int] = {}
        """Since when each holder waits, on this process's clock: its place, the same on every server."""
        self._seen: dict[str, int] = {}
        quarantine = round((servers.longest_ttl + CLOCK_ERROR) * 1e6)
        self._quorum = Quorum(servers.targets, scripts.TEXTS, quarantine, label, {})

    def floor(self, name: str, wall: int) -> int:
        """What to count to at least. Where all servers follow it, their counters agree, and one round is enough."""
        return max(wall, self._seen.get(name, 0) + 1)

    def saw(self, name: str, outcomes: Sequence[Outcome]) -> None:
        """Remember the highest counter of a name."""
        highest = 0
        for one in outcomes:
            if (type(one) is Granted or type(one) is Occupied) and one.counter > highest:
                highest = one.counter
        if highest > self._seen.get(name, 0):
            if len(self._seen) >= MOST_REMEMBERED:
                self._seen.clear()
            self._seen[name] = highest

    def arrived(self, holder: str, wall: int) -> int:
        """Since when a holder waits."""
        if len(self.arrivals) >= MOST_REMEMBERED * 16:
            self.arrivals.clear()  # of interrupted ones, mostly; the others go to the end of the queue
        return self.arrivals.setdefault(holder, wall)

    def encode(self, request: Request) -> bytes:
        """A request, up to what its connection adds."""
        return scripts.request_for(request, self.namespace)

    def decode(self, request: Request, reply: Any, server: int) -> Outcome:
        """What a server's reply means."""
        return scripts.reply_from(request, reply, self.addresses[server])

    def _blocking_wire(self) -> Wire:
        from leasehold.wires.quorum_blocking import BlockingQuorumWire

        return BlockingQuorumWire(self._quorum, self)

    def _asyncio_wire(self) -> Wire:
        from leasehold.wires.quorum_asyncio import AsyncQuorumWire

        return AsyncQuorumWire(self._quorum, self)

    def _engine_over(self, wire: Wire) -> RedlockEngine:
        return RedlockEngine(self, wire)


def initialise(on: object, *, within: float = 10.0) -> None:
    """Let new servers take part at once, instead of after the time for which one that lost its data is kept out.

    To be called once, by whoever sets the servers up, and while nobody holds a lease there: a server cannot tell by
    itself whether it is new or has forgotten. Tokens stay increasing even if that was wrong.
    """
    family = open_engine(on, namespace="", client_label="initialise")
    engine = family.blocking()
    replies = run_blocking(engine.initialise(until=engine.world.now() + within))
    run_blocking(engine.close())
    failures = [
        str(_failure(reply, address)) if reply is not None else f"{address} did not answer in time"
        for reply, address in zip(replies, family.addresses, strict=True)
        if reply != 1
    ]
    if failures:
        raise EngineUnavailable(f"not every server could be initialised: {'; '.join(failures)}")


def open_engine(on: object, *, namespace: str, client_label: str) -> RedlockFamily:
    """Open the quorum behind a URL, or behind a list of URLs and client objects. Nothing is sent before it is used."""
    servers = servers_from(on)
    for target in servers.targets:
        warn_of_transport(target, stacklevel=4)
    return RedlockFamily(servers, namespace, client_label)
