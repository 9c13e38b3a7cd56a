"""Elections in simulated worlds: instances that crash, fall ill, lose their engine, resign and are told to stop.

`AsyncElection` is the real one, on an event loop whose time is made of numbers. Around it are a lease table that is
now and then out of reach, work that stops late or not at all, and judges. Each history comes from one number; planted
bugs are found.
"""

from __future__ import annotations

import asyncio
import random
import selectors
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest

from leasehold.client import AsyncLeasehold
from leasehold.errors import LeaseLost, NotAcquired
from leasehold.patterns import election, ranks, terms
from leasehold.patterns.election import AsyncElection, AsyncTerm

NAME, TTL, MARGIN, STOP_WITHIN = "leader", 3.0, 0.3, 1.0
FAULTS_END, ENDS = 20.0, 40.0
HISTORIES, SEARCHED = 20, range(60)


class _Jumping(selectors.SelectSelector):
    """Waits for nothing: the time goes on at once."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        assert timeout is not None, "nobody has anything left to do"
        self.now += max(timeout, 0.0)
        return super().select(0)


class Loop(asyncio.SelectorEventLoop):
    """An event loop in virtual time."""

    def __init__(self) -> None:
        self.jumping = _Jumping()
        super().__init__(self.jumping)

    def time(self) -> float:
        return self.jumping.now


class Lease:
    """A lease as its holder knows it: believed for a little less long than the table keeps it."""

    def __init__(self, client: Client, name: str, token: int, ttl: float, *, renew: bool) -> None:
        self.client, self.name, self.token, self.ttl = client, name, token, ttl
        self.valid_until = client.world.now + ttl - MARGIN
        self.over = False
        if renew:
            client.tasks.append(asyncio.ensure_future(self._renew()))

    @property
    def remaining(self) -> float:
        return 0.0 if self.over else max(self.valid_until - self.client.world.now, 0.0)

    @property
    def lost(self) -> bool:
        return self.remaining <= 0

    def check(self) -> None:
        if self.lost:
            raise LeaseLost(self.name, "it ran out", token=self.token)

    async def release(self) -> None:
        self.client.world.judge_release(self)
        was_lost, self.over = self.lost, True
        await self.client.trip()
        if self._is_mine():
            del self.client.world.held[self.name]
        if was_lost:
            raise LeaseLost(self.name, "it ran out", token=self.token)

    async def _renew(self) -> None:
        while not self.lost:
            await asyncio.sleep(self.ttl / 3)
            asked_at = self.client.world.now
            await self.client.trip()
            if self.client.reaches_engine and self.remaining > 0 and self._is_mine():
                self.client.world.held[self.name] = (self.token, self.client.world.now + self.ttl, self.client.name)
                self.valid_until = asked_at + self.ttl - MARGIN

    def _is_mine(self) -> bool:
        return self.client.world.held.get(self.name, (None,))[0] == self.token and not self.client.dead


class Lock:
    """A name with its settings, for one client."""

    def __init__(self, client: Client, name: str, ttl: float, wait: float, *, renew: bool) -> None:
        self.client, self.name, self.ttl, self.wait, self.renew = client, name, ttl, wait, renew

    async def acquire(self) -> Lease:
        give_up_at = self.client.world.now + self.wait
        while True:
            await self.client.trip()
            world = self.client.world
            if self.client.reaches_engine and world.token_of(self.name) is None:
                world.minted += 1
                world.held[self.name] = (world.minted, world.now + self.ttl, self.client.name)
                return Lease(self.client, self.name, world.minted, self.ttl, renew=self.renew)
            if world.now >= give_up_at:
                raise NotAcquired(self.name, wait=self.wait, holder=None, token=None)
            await asyncio.sleep(0.1)


class Client:
    """One instance: a process with its client, its health and its work."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name, self.rng = world, name, world.rng
        self.healthy, self.reaches_engine, self.dead = True, True, False
        self.until, self.tasks = asyncio.Event(), list[asyncio.Task[Any]]()
        self.at_work: AsyncTerm | None = None
        self.ill_since = float("inf")
        self.election = AsyncElection(
            cast("AsyncLeasehold", self),
            NAME,
            ttl=TTL,
            healthy=lambda: self.healthy,
            stop_within=STOP_WITHIN,
            at_deadline=self._end_hard,
            priority=world.rng.choice([None, 0, 1]) if world.seed % 2 else None,
            candidate=name,
        )
        self.serving = self.spawn(self.election.serve(self._work, until=self.until))

    def spawn(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self.tasks.append(task)
        return task

    # What an election asks of a client

    def lock(self, name: str, *, ttl: float, wait: float = 0.0, renew: bool = True) -> Lock:
        return Lock(self, name, ttl, wait, renew=renew)

    async def status(self, name: str) -> Any:
        await self.trip()
        token = self.world.token_of(name)
        return None if token is None else SimpleNamespace(holders=[SimpleNamespace(token=token, about="somebody")])

    async def trip(self) -> None:
        await asyncio.sleep(self.rng.random() * 0.02)

    # Its work

    async def _work(self, term: AsyncTerm) -> None:
        self.world.judge_begin(self, term)
        self.at_work = term
        stubborn = self.world.is_faulty and self.rng.random() < 0.2
        try:
            while not await term.wait(self.rng.random()):
                if self.rng.random() < 0.1 and self.world.is_faulty:
                    term.resign("tired", in_favour_of=self.rng.choice(["i0", "i1", "i2", None]))
            await asyncio.sleep(self.rng.random() * STOP_WITHIN * (3 if stubborn else 0.9))
            if self.world.is_faulty and self.rng.random() < 0.1:
                self.world.failures += 1
        except asyncio.CancelledError:
            if stubborn and not self.dead:
                await self._go_on_all_the_same()
            raise
        finally:
            if self.at_work is term:
                self.at_work = None

    async def _go_on_all_the_same(self) -> None:
        for _ in range(200):
            try:
                await asyncio.sleep(0.1)
            except asyncio.CancelledError:
                if self.dead:
                    raise

    def _end_hard(self, _term: object) -> None:
        self.world.hard_ends += 1
        self.die()

    def die(self) -> None:
        self.dead, self.at_work = True, None
        for task in self.tasks:
            task.cancel()


class World:
    """One history."""

    def __init__(self, seed: int) -> None:
        self.seed, self.rng = seed, random.Random(seed)
        self.held: dict[str, tuple[int, float, str]] = {}
        self.minted = self.failures = self.hard_ends = 0
        self.terms: list[tuple[str, int]] = []
        self.violations: list[str] = []
        self.clients: list[Client] = []

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    @property
    def is_faulty(self) -> bool:
        return self.now < FAULTS_END

    def token_of(self, name: str) -> int | None:
        token, expires, _ = self.held.get(name, (None, 0.0, ""))
        return token if expires > self.now else None

    def blame(self, claim: str) -> None:
        self.violations.append(f"{claim} at {self.now:.2f}")

    def judge_begin(self, client: Client, term: AsyncTerm) -> None:
        if any(other.at_work is not None for other in self.clients if other is not client):
            self.blame("two work at once")
        if self.terms and term.token <= self.terms[-1][1]:
            self.blame("a term's token is not above that of every earlier one")
        self.terms.append((client.name, term.token))

    def judge_release(self, lease: Lease) -> None:
        work = lease.client.at_work
        if lease.name == NAME and work is not None and work.token == lease.token:
            self.blame("the lease was given back before the work had ended")

    async def run(self) -> None:
        for number in range(3):
            self.clients.append(Client(self, f"i{number}"))
        while self.now < ENDS:
            if self.is_faulty and self.rng.random() < 0.02:
                self._disturb()
            if not self.is_faulty:
                self._mend()
            self._judge()
            await asyncio.sleep(0.05)
        if not any(client.at_work for client in self.clients):
            self.blame("nobody leads in the end")
        for client in self.clients:
            client.until.set()
        await asyncio.sleep(3 * TTL)
        if not all(client.dead or client.serving.done() for client in self.clients):
            self.blame("an instance that was told to stop goes on")
        for client in self.clients:
            client.die()
        await asyncio.gather(*(task for client in self.clients for task in client.tasks), return_exceptions=True)

    def _disturb(self) -> None:
        client = self.rng.choice(self.clients)
        match self.rng.randrange(5):
            case 0:
                client.healthy = not client.healthy
                client.ill_since = float("inf") if client.healthy else self.now
            case 1 | 2:
                client.reaches_engine = not client.reaches_engine
            case 3 if sum(not one.dead for one in self.clients) > 1:
                client.die()
                self.clients[self.clients.index(client)] = Client(self, client.name)
            case _:
                client.reaches_engine = True

    def _mend(self) -> None:
        for number, client in enumerate(self.clients):
            client.healthy = client.reaches_engine = True
            client.ill_since = float("inf")
            if client.dead or client.serving.done():
                self.clients[number] = Client(self, client.name)

    def _judge(self) -> None:
        for client in self.clients:
            term = client.at_work
            if term is None:
                continue
            if not term.stopping and term.remaining < TTL / 3 - 3 * 0.05 - MARGIN:
                self.blame("the work was not told in time that its lease runs out")
            if not term.stopping and self.now - client.ill_since > 0.5:
                self.blame("an instance that is ill leads on")
            if term.remaining <= 0 and self.token_of(NAME) not in (None, term.token):
                self.blame("the work goes on after another one has taken the lease")


def history(seed: int) -> World:
    """Let one history happen."""
    world, loop = World(seed), Loop()
    clock = SimpleNamespace(monotonic=loop.time)
    patch = pytest.MonkeyPatch()
    for module in (election, terms, ranks):
        patch.setattr(module, "time", clock)
    try:
        loop.run_until_complete(world.run())
    finally:
        patch.undo()
        loop.close()
    return world


def test_no_history_breaks_a_claim_and_much_happens() -> None:
    worlds = [history(seed) for seed in range(HISTORIES)]
    assert [(world.seed, world.violations[:3]) for world in worlds if world.violations] == []
    assert sum(len(world.terms) for world in worlds) > 5 * HISTORIES
    assert sum(world.hard_ends for world in worlds) > 0


def test_one_number_makes_one_history() -> None:
    assert [history(seed).terms for seed in range(3)] == [history(seed).terms for seed in range(3)]


# Bugs, each in the place where somebody could make it


async def _releases_first(self: AsyncElection, work: Any, term: AsyncTerm, lease: Any, until: Any) -> None:
    """As others did: the lease is given back when the leader is to stop, and not when its work has ended."""

    async def release_when_told() -> None:
        while not await term.wait(1.0):
            continue
        await lease.release()

    early = asyncio.create_task(release_when_told())
    try:
        await self._do(work, term, until)
    finally:
        term.resign("its work has ended")
        await asyncio.gather(early, return_exceptions=True)


async def _never_releases(self: AsyncElection, work: Any, term: AsyncTerm, _lease: Any, until: Any) -> None:
    try:
        await self._do(work, term, until)
    finally:
        term.resign("its work has ended")


def _looks_at_health_alone(self: Any, term: Any) -> None:
    if not self._is_healthy():
        term.resign("it is not healthy")


def _looks_at_the_lease_alone(self: Any, term: Any) -> None:
    if term.remaining <= self._ttl / 3:
        term.resign("its lease was not renewed in time")


def _tells_too_late(self: Any, term: Any) -> None:
    if term.remaining <= 0:
        term.resign("its lease ran out")
    elif not self._is_healthy():
        term.resign("it is not healthy")


async def _waits_for_ever(self: Any, work: Any, term: Any, until: Any) -> None:
    task = asyncio.ensure_future(work(term))
    while not task.done():
        await asyncio.wait([task], timeout=0.05)
        if until.is_set():
            term.resign("this instance is to stop")
        self._look(term)
    if not task.cancelled():
        task.result()


async def _does_not_hear(self: Any, work: Any, term: Any, _until: Any) -> None:
    await DO(self, work, term, asyncio.Event())


DO: Callable[..., Any] = AsyncElection._do
MUTATIONS: dict[str, tuple[str, Any, str]] = {
    "the lease is given back before the work has ended": ("_serve_term", _releases_first, "given back before"),
    "the lease is not given back": ("_serve_term", _never_releases, ""),
    "nobody looks at the lease": ("_look", _looks_at_health_alone, ""),
    "nobody looks at the health": ("_look", _looks_at_the_lease_alone, "is ill leads on"),
    "the work is told when its lease has run out": ("_look", _tells_too_late, "not told in time"),
    "nobody ends work that does not stop": ("_do", _waits_for_ever, ""),
    "an instance does not hear that it is to stop": ("_do", _does_not_hear, "goes on"),
}


@pytest.mark.parametrize("bug", MUTATIONS)
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    method, mutant, claim = MUTATIONS[bug]
    monkeypatch.setattr(AsyncElection, method, mutant)
    for seed in SEARCHED:
        if any(claim in violation for violation in history(seed).violations):
            return
    pytest.fail(f"not found in {len(SEARCHED)} histories")
