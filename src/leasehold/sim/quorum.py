"""Several servers in a simulated world: the protocol of the redlock engine against everything that may go wrong.

The engine is the real one, and each server does what `core/quorum_server.py` says. Between them is a soup of requests:
each may be carried out at any later time, or never, or twice; replies may come late, or get lost. Leases end whenever
they like (which is more than clocks can do), counters are lifted by others and forgotten, servers restart, are rolled
back and lose their data. Each history comes from one number, and is small, so that rare coincidences are common.

    python -m leasehold.sim.quorum --histories 50000
"""

from __future__ import annotations

import argparse
import copy
import random
import sys
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from rich.console import Console

from leasehold.core.engine import Grant, Renewal, Want
from leasehold.core.quorum import AskGrant, Reply, Request
from leasehold.core.quorum_server import Server, carry_out
from leasehold.engines.redlock import RedlockEngine, RedlockFamily
from leasehold.errors import LeaseholdError, OutcomeUnknown
from leasehold.sim.many import CORES, spread, telling
from leasehold.sim.quorum_wire import Pause, QuorumWire, Scatter
from leasehold.wires.quorum_target import Servers, servers_from

TTL, RENEWAL_TTL = 5.0, 7.0
QUARANTINE = 65_000_000
MOST_STEPS = 140
AGES = 1e12


class Violation(NamedTuple):
    """A claim that did not hold, in one history."""

    seed: int
    claim: str
    text: str


@dataclass(slots=True)
class Sent:
    """A request on its way to one server, on a connection to one run of it."""

    request: Request
    server: int
    run: str
    scatter: Scatter


@dataclass(slots=True)
class Machine:
    """One server, its clock, and an older copy of its data."""

    kept: Server
    run: str
    clock_error: int
    durable: bool
    older: Server | None = None
    runs: int = 0


@dataclass(slots=True)
class Attempt:
    """One client's attempt to hold the name, and what came of it."""

    number: int
    holder: str
    token: int = 0
    round_began: int = 0
    complete_at: int | None = None


@dataclass(slots=True)
class Client:
    """A running coroutine, and what it waits for."""

    coroutine: Coroutine[Any, Any, None]
    waits_for: Pause | None = None
    over: bool = False


@dataclass(slots=True)
class Weights:
    """How often what happens in one history: each history has a character of its own."""

    carry_out: float = 8.0
    arrive: float = 8.0
    lose_reply: float = 0.3
    lose_request: float = 0.3
    repeat: float = 0.0
    end_lease: float = 1.0
    give_up: float = 0.3
    go_on: float = 3.0
    start: float = 2.0
    lift: float = 0.0
    forget: float = 0.0
    restart: float = 0.0
    roll_back: float = 0.0
    wipe: float = 0.0
    keep_copy: float = 0.0
    age: float = 0.0


def weights_from(chance: random.Random) -> Weights:
    """The character of one history."""
    weights = Weights(
        repeat=chance.choice([0.0, 0.5, 2.0, 5.0]),
        end_lease=chance.choice([0.5, 2.0, 5.0]),
        give_up=chance.choice([0.1, 0.5, 1.5]),
        lift=chance.choice([0.0, 0.0, 0.5]),
        forget=chance.choice([0.0, 0.0, 0.3]),
        arrive=chance.choice([3.0, 8.0]),
        start=chance.choice([0.5, 2.0]),
    )
    if chance.random() < 0.3:
        for loss in ("restart", "roll_back", "wipe"):
            setattr(weights, loss, chance.choice([0.0, 0.3, 0.6]))
        weights.keep_copy, weights.age = 0.5, chance.choice([0.3, 1.0])
    return weights


class QuorumHistory:
    """One history: the servers, the soup, the clients and the judges."""

    def __init__(self, seed: int) -> None:
        self.seed, self.random = seed, random.Random(seed)
        chance = self.random
        self.clock = 1_000_000_000
        self.step = 0
        self.clocks_help = chance.random() < 0.25
        self.weights = weights_from(chance)
        count = 5 if chance.random() < 0.15 else 3
        self.machines = [self._machine(server) for server in range(count)]
        self.soup: list[Sent] = []
        self.carried_out: list[Sent] = []
        self.replies: list[tuple[Scatter, int, Reply]] = []
        self.clients: list[Client] = []
        self.attempts: list[Attempt] = []
        self.to_come = chance.choice([2, 2, 3, 4])
        self.highest_written = 0
        self.last_write: Attempt | None = None
        self.violations: list[Violation] = []
        self.shared_holder: str | None = None

    def _machine(self, server: int) -> Machine:
        counter = self.random.choice([0, 0, 1, 2])
        durable = self.random.random() < 0.5
        kept = Server(0, counter, 0, f"run-{server}.0", durable, {"name": counter} if counter else {})
        return Machine(kept, f"run-{server}.0", self.random.randint(-2_000_000, 2_000_000), durable)

    @property
    def servers(self) -> int:
        """How many there are."""
        return len(self.machines)

    # What clients do

    def send(self, request: Request, to: Sequence[int], scatter: Scatter) -> None:
        """Put a request to each of these servers into the soup."""
        self.soup += [Sent(request, server, self.machines[server].run, scatter) for server in to]
        if type(request) is AskGrant:
            for attempt in self.attempts:
                if attempt.holder == request.holder:
                    attempt.round_began = self.step

    async def pause(self) -> None:
        """Let others go first."""
        await Pause()

    async def _attempt(self, attempt: Attempt) -> None:
        family = RedlockFamily(_servers(len(self.machines)), "", "")
        engine = RedlockEngine(family, QuorumWire(self))
        answer = await engine.take(Want("name", attempt.holder, TTL), until=AGES)
        if not isinstance(answer, Grant):
            return
        attempt.token, attempt.complete_at = answer.token, self.step
        self._judge_completion(attempt)
        for _ in range(self.random.choice([0, 1, 1, 3])):
            await self.pause()
            if self.random.random() < 0.5:
                self._write(attempt)
            else:
                await self._renew(engine, attempt)
        if self.random.random() < 0.6:
            await engine.release("name", attempt.holder, until=AGES)

    async def _renew(self, engine: RedlockEngine, attempt: Attempt) -> None:
        began = self.step
        try:
            (kept,) = await engine.renew([Renewal("name", attempt.holder, attempt.token, RENEWAL_TTL)], until=AGES)
        except OutcomeUnknown:
            return
        for other in self.attempts:
            if kept and other.complete_at is not None and other.complete_at < began and other.token > attempt.token:
                self._condemn("renewal", f"{attempt.token} was renewed after {other.token} was complete")

    # What is claimed

    def _condemn(self, claim: str, text: str) -> None:
        self.violations.append(Violation(self.seed, claim, text))

    def _judge_completion(self, attempt: Attempt) -> None:
        for other in self.attempts:
            if other is attempt or other.complete_at is None:
                continue
            if other.token == attempt.token:
                self._condemn("unique", f"two attempts got {attempt.token}")
            elif other.complete_at < attempt.round_began and other.token > attempt.token:
                self._condemn("order", f"{attempt.token} was asked for after {other.token} was complete")

    def _write(self, attempt: Attempt) -> None:
        """To a fenced resource: what it accepts must be in the order of the leases."""
        if attempt.token < self.highest_written:
            return
        last = self.last_write
        if last is not None and attempt.complete_at is not None and attempt.complete_at < last.round_began:
            self._condemn("fence", f"a write under {attempt.token} was accepted after one under {last.token}")
        self.highest_written, self.last_write = attempt.token, attempt

    # What may happen

    def run(self) -> list[Violation]:
        """Let things happen until everybody is done, or for long enough."""
        for self.step in range(1, MOST_STEPS):
            possible = [(kind, weight) for kind, weight in self._possible() if weight > 0]
            if not possible or (not self.to_come and all(client.over for client in self.clients)):
                break
            kinds, weights = zip(*possible, strict=True)
            self.clock += self.random.choice([1, 1, 10, 1000])
            getattr(self, f"_{self.random.choices(kinds, weights)[0]}")()
            if self.violations:
                break
            self._let_clients_run()
        for client in self.clients:
            client.coroutine.close()
        return self.violations

    def _possible(self) -> list[tuple[str, float]]:
        weights = self.weights
        waiting = [client.waits_for for client in self.clients if not client.over]
        return [
            ("carry_out", weights.carry_out if self.soup else 0),
            ("lose_request", weights.lose_request if self.soup else 0),
            ("arrive", weights.arrive if self.replies else 0),
            ("lose_reply", weights.lose_reply if self.replies else 0),
            ("repeat", weights.repeat if self.carried_out else 0),
            ("end_lease", weights.end_lease if any(one.kept.leases for one in self.machines) else 0),
            ("give_up", weights.give_up if any(type(one) is Scatter for one in waiting) else 0),
            ("go_on", weights.go_on if any(type(one) is Pause for one in waiting) else 0),
            ("start", weights.start if self.to_come else 0),
            ("lift", weights.lift),
            ("forget", weights.forget),
            ("restart", weights.restart),
            ("roll_back", weights.roll_back if any(one.older for one in self.machines) else 0),
            ("wipe", weights.wipe),
            ("keep_copy", weights.keep_copy),
            ("age", weights.age),
        ]

    def _let_clients_run(self) -> None:
        for client in self.clients:
            while not client.over and (client.waits_for is None or client.waits_for.done):
                try:
                    client.waits_for = client.coroutine.send(None)
                except (StopIteration, LeaseholdError):
                    client.over = True

    def _taken_from(self, things: list[Any]) -> Any:
        return things.pop(self.random.randrange(len(things)))

    def _start(self) -> None:
        self.to_come -= 1
        holder = self.shared_holder or f"holder-{len(self.attempts)}"
        attempt = Attempt(len(self.attempts), holder)
        self.attempts.append(attempt)
        self.clients.append(Client(self._attempt(attempt)))

    def _execute(self, sent: Sent) -> Reply | None:
        """Carry a request out; None when its connection ended with an earlier run of the server."""
        machine = self.machines[sent.server]
        if sent.run != machine.run:
            return None
        return carry_out(
            machine.kept,
            sent.request,
            run=machine.run,
            durable=machine.durable,
            quarantine=QUARANTINE,
            now=self.clock + machine.clock_error,
        )

    def _carry_out(self) -> None:
        sent = self._taken_from(self.soup)
        reply = self._execute(sent)
        self.carried_out.append(sent)
        if reply is None:
            sent.scatter.arrive(sent.server, OutcomeUnknown("the connection broke"))
        elif self.random.random() < 0.5:
            sent.scatter.arrive(sent.server, reply)
        else:
            self.replies.append((sent.scatter, sent.server, reply))

    def _repeat(self) -> None:
        """Carried out once more; somebody may even believe the second reply."""
        sent = self.random.choice(self.carried_out)
        reply = self._execute(sent)
        if reply is not None and self.random.random() < 0.3:
            sent.scatter.arrive(sent.server, reply)

    def _lose_request(self) -> None:
        self._taken_from(self.soup)

    def _arrive(self) -> None:
        scatter, server, reply = self._taken_from(self.replies)
        scatter.arrive(server, reply)

    def _lose_reply(self) -> None:
        self._taken_from(self.replies)

    def _give_up(self) -> None:
        """A client's time for a request is up."""
        waiting = [one.waits_for for one in self.clients if not one.over and type(one.waits_for) is Scatter]
        self.random.choice(waiting).done = True

    def _go_on(self) -> None:
        waiting = [one.waits_for for one in self.clients if not one.over and type(one.waits_for) is Pause]
        self.random.choice(waiting).done = True

    def _end_lease(self) -> None:
        """By its TTL, whatever the clock says."""
        self.random.choice([one for one in self.machines if one.kept.leases]).kept.leases.clear()

    def _lift(self) -> None:
        """Somebody else, on another day, got further here."""
        kept = self.random.choice(self.machines).kept
        if kept.ready is not None and "name" in kept.counters:
            kept.counters["name"] += 1
            kept.highest = max(kept.highest, kept.counters["name"])

    def _forget(self) -> None:
        """The counter of a name that was not used for long."""
        machine = self.random.choice(self.machines)
        if not machine.kept.leases:
            machine.kept.counters.clear()

    def _next_run(self, machine: Machine) -> None:
        machine.runs += 1
        machine.run = f"{machine.run.partition('.')[0]}.{machine.runs}"

    def _keep_copy(self) -> None:
        machine = self.random.choice(self.machines)
        machine.older = copy.deepcopy(machine.kept)

    def _restart(self) -> None:
        self._next_run(self.random.choice(self.machines))

    def _roll_back(self) -> None:
        """A restart that forgets the latest writes; one that writes down everything cannot."""
        machine = self.random.choice([one for one in self.machines if one.older])
        if not machine.durable and machine.older is not None:
            machine.kept = copy.deepcopy(machine.older)
            self._next_run(machine)

    def _wipe(self) -> None:
        """All data is gone, with or without a restart."""
        machine = self.random.choice(self.machines)
        machine.kept = Server()
        if self.random.random() < 0.5:
            self._next_run(machine)

    def _age(self) -> None:
        """Long enough passes for servers that were kept out."""
        self.clock += QUARANTINE + 5_000_000


@lru_cache
def _servers(count: int) -> Servers:
    return servers_from("redlock://" + ",".join(f"server-{number}" for number in range(count)))


@dataclass
class Tally:
    """What many histories came to."""

    histories: int = 0
    steps: int = 0
    complete: int = 0
    violations: list[Violation] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Count another's too."""
        self.histories += other.histories
        self.steps += other.steps
        self.complete += other.complete
        self.violations += other.violations


def explore(seeds: range, *, until_caught: bool = False) -> Tally:
    """Run a history for each seed."""
    tally = Tally()
    for seed in seeds:
        history = QuorumHistory(seed)
        tally.violations += history.run()
        tally.histories += 1
        tally.steps += history.step
        tally.complete += sum(attempt.complete_at is not None for attempt in history.attempts)
        if until_caught and tally.violations:
            break
    return tally


def main(arguments: list[str] | None = None) -> int:
    """Explore; the exit code is 1 when a claim did not hold."""
    parser = argparse.ArgumentParser(prog="python -m leasehold.sim.quorum", description=__doc__.partition("\n")[0])
    parser.add_argument("--histories", type=int, default=50_000, metavar="N", help="how many (default: 50000)")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="the first seed (default: 0)")
    parser.add_argument("--jobs", type=int, default=CORES, metavar="N", help="processes (default: all cores)")
    asked = parser.parse_args(arguments)
    began, tally = time.monotonic(), Tally()
    with telling(asked.histories, Console()) as tell:
        for part in spread(explore, range(asked.first, asked.first + asked.histories), asked.jobs):
            tally.add(part)
            tell(tally.histories, len(tally.violations))
    seconds = time.monotonic() - began
    sys.stdout.write(
        f"{tally.histories:,} histories, {tally.steps:,} events, {tally.complete:,} tokens, "
        f"{len(tally.violations):,} violations in {seconds:.0f} s\n"
    )
    for violation in sorted(tally.violations, key=lambda one: one.seed)[:10]:
        sys.stdout.write(f"seed {violation.seed}: {violation.claim}: {violation.text}\n")
        sys.stdout.write(f"  replay it:  python -m leasehold.sim.quorum --first {violation.seed} --histories 1\n")
    return 1 if tally.violations else 0


if __name__ == "__main__":
    sys.exit(main())
