"""A group of members in a simulated world: how partitions are shared and handed over, against all that may go wrong.

`Crew`, `Owned` and the feed of the inbox are the real ones. Around them are a lease table, an inbox and a fenced
resource that answer late; members that join, leave, crash and freeze past their leases; and judges. Each history
comes from one number.

    python -m leasehold.sim.partitions --histories 2000
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from rich.console import Console

from leasehold.errors import EngineUnavailable, LeaseholdError, LeaseLost, Moved, QueueFull, StaleToken
from leasehold.patterns.partitions.crew import Crew, Member, Pace
from leasehold.patterns.partitions.entities import Entities, quota
from leasehold.patterns.partitions.inbox import AsyncFeed, Message
from leasehold.patterns.partitions.owned import Item, Owned, Writer
from leasehold.sim.many import CHUNK, CORES, spread, telling
from leasehold.sim.partitions_parts import MARGIN, TTL, Lease, Result, SimInbox, Table
from leasehold.sim.scheduler import PARK, Process, Scheduler, Task

EVERY: Final = 0.5
FAULTS_END, SILENCE, ENDS = 40.0, 60.0, 100.0
"""When nothing is broken any more, when nothing new is asked for, and when it is looked at what came of it."""


class Violation(NamedTuple):
    """A claim that did not hold, in one history."""

    seed: int
    claim: str
    text: str


class Instance:
    """One member's process: the glue that `AsyncPartitions` is elsewhere."""

    def __init__(self, history: PartitionHistory, name: str, at: float) -> None:
        self.history, self.name = history, name
        self.process = Process(name)
        self.leases: list[Lease] = []
        self.items: list[Result] = []
        self.leaving = False
        self.moves = 0
        self.crew: Crew[Lease] = Crew(
            self, history.entities, name, Pace(TTL, history.most_moves), open_=self._open, close=self._close
        )
        self.feed = AsyncFeed(history.inbox, self._handle)  # type: ignore[arg-type]
        history.scheduler.call_at(at, self._start)

    def _start(self) -> None:
        if self.process.dead:
            return
        for coroutine in (self._look_around(), self._keep(), self._serve(), self._submit()):
            self.history.scheduler.spawn(coroutine, self.process, self.name)

    # The ground on which the crew stands

    def now(self) -> float:
        """Seconds since the history began."""
        return self.history.now

    async def _ask(self) -> None:
        await self.history.trip()
        if self.history.is_faulty and self.history.rng.random() < 0.03:
            raise EngineUnavailable("planted by the simulation")

    async def enlist(self) -> Lease:
        """See `Ground`."""
        lease = await self._take("members", shared=True)
        if lease is None:
            raise EngineUnavailable("the answer came too late")
        return lease

    async def stay(self, place: Lease) -> None:
        """See `Ground`; the keeper prolongs it here."""
        place.check()

    async def roster(self) -> list[Member]:
        """See `Ground`."""
        await self._ask()
        living = self.history.table.living("members")
        await self.history.trip()
        return [Member(holder, token) for holder, (_, token) in living.items()]

    async def take(self, partition: int) -> Lease | None:
        """See `Ground`."""
        return await self._take(f"orders/{partition}", shared=False)

    async def _take(self, name: str, *, shared: bool) -> Lease | None:
        asked_at = self.history.now
        await self._ask()
        token = self.history.table.take(name, self.name, shared=shared)
        await self.history.trip()
        if token is None:
            return None
        lease = Lease(self.history, name, self.name, token, TTL - (self.history.now - asked_at))
        if lease.lost:  # an answer that came after the deadline that it carries is not used
            return None
        self.leases.append(lease)
        return lease

    async def release(self, lease: Lease) -> None:
        """See `Ground`."""
        self.history.judge_release(self, lease)
        lease.over = True
        self.leases.remove(lease)
        await self.history.trip()
        if not self.history.table.release(lease.name, lease.holder):
            raise LeaseLost(lease.name, "the engine no longer knows it", token=lease.token)
        await self.history.trip()

    # What runs in the process

    async def _keep(self) -> None:
        """The keeper: renews at a third of the TTL."""
        while True:
            await self.history.sleep(TTL / 3)
            for lease in list(self.leases):
                sent_at = self.history.now
                await self.history.trip()
                kept = lease.is_believed and self.history.table.renew(lease.name, lease.holder)
                await self.history.trip()
                if kept and not lease.lost:
                    lease.valid_until = sent_at + TTL - MARGIN
                elif lease in self.leases:
                    lease.over = True
                    self.leases.remove(lease)

    async def _look_around(self) -> None:
        while not self.leaving:
            again = False
            try:
                again = await self.crew.round()
            except LeaseholdError as error:
                self.history.notes.append(f"{self.history.now:.2f} {self.name}: {error}")
            await self.history.sleep(0.05 if again else EVERY)
        while not await self.crew.leave():
            await self.history.sleep(0.05)
        if self.crew.place is not None and not self.crew.place.lost:
            await self.release(self.crew.place)
        self.process.die()

    async def _serve(self) -> None:
        feeding: dict[int, Result] = {}
        while True:
            await self.history.sleep(0.1)
            feeding = {number: result for number, result in feeding.items() if not result.ended}
            for number, queue in self.history.inbox.queues.items():
                owned = self.crew.mine.get(number)
                if queue and owned is not None and owned.serves and number not in feeding:
                    feeding[number] = self._put(owned, f"partition {number}", self.feed.work)

    async def _submit(self) -> None:
        """Items of the process's own, each of which must be done or handed back."""
        while self.history.now < SILENCE:
            await self.history.sleep(self.history.rng.random() * 2)
            served = [owned for owned in self.crew.mine.values() if owned.serves]
            if served:
                self.items.append(self._put(self.history.rng.choice(served), "local", self._work))

    async def _work(self, writer: Writer) -> None:
        with self.history.at_work(self, writer):
            is_long = self.history.now < FAULTS_END and self.history.rng.random() < 0.1
            await self.history.sleep(self.history.rng.random() * (3 * TTL if is_long else 0.5))

    async def _handle(self, writer: Writer, message: Message) -> None:
        with self.history.at_work(self, writer):
            await self.history.sleep(self.history.rng.random() / 5)
            await self.history.write(writer, message.seq)

    def _put(self, owned: Owned, entity: str, work: Any) -> Result:
        result = Result()
        item = Item(entity, work, result)
        try:
            if owned.put(item):
                self.history.scheduler.spawn(self._run(owned), self.process, self.name)
        except (Moved, QueueFull) as error:
            item.hand_back(error)
        return result

    async def _run(self, owned: Owned) -> None:
        while (item := owned.next()) is not None:
            item.future.begun = True
            if not owned.lease.is_believed:  # type: ignore[attr-defined]
                self.history.blame("lease", f"{self.name} begins in {owned.number} without its lease")
            try:
                await item.work(Writer(owned, item.entity))
            finally:
                item.future.ended = True

    def _open(self, number: int, lease: Lease) -> Owned:
        self.history.judge_taken(number, lease)
        return Owned("orders", number, lease, 100)

    def _close(self, owned: Owned, why: str) -> None:
        owned.close(why)
        if why.startswith("it moves"):
            self.moves += 1
            moving = sum(1 for one in self.crew.mine.values() if (one.closing or "").startswith("it moves"))
            if moving > self.history.most_moves:
                self.history.blame("cap", f"{self.name} gives up {moving} partitions at a time")


class AtWork:
    """Work that is under way in a partition."""

    def __init__(self, history: PartitionHistory, instance: Instance, writer: Writer) -> None:
        self.history, self.instance, self.writer = history, instance, writer

    def __enter__(self) -> None:
        for other in self.history.working[self.writer.partition]:
            same, lease = other.instance is self.instance, other.writer._owned.lease
            if same or (lease.is_believed and not other.instance.process.dead):  # type: ignore[attr-defined]
                both = f"{self.instance.name} and {other.instance.name}"
                self.history.blame("alone", f"{both} work in {self.writer.partition} at once")
        self.history.working[self.writer.partition].append(self)

    def __exit__(self, *_: object) -> None:
        self.history.working[self.writer.partition].remove(self)


class PartitionHistory:
    """One history: a schedule of what goes wrong, and what was seen."""

    def __init__(self, seed: int) -> None:
        self.seed, self.rng = seed, random.Random(seed)
        self.scheduler = Scheduler(self._failed)
        self.entities = Entities("orders", self.rng.randint(3, 12))
        self.most_moves = self.rng.randint(1, 4)
        self.quiet = seed % 4 == 0
        """Whether members only join, one after the other."""
        self.table, self.inbox = Table(self), SimInbox(self)
        self.working: dict[int, list[AtWork]] = defaultdict(list)
        self.floors: dict[str, int] = defaultdict(int)
        self.written: dict[str, list[int]] = defaultdict(list)
        self.taken: dict[int, int] = defaultdict(int)
        self.put: dict[str, int] = defaultdict(int)
        self.violations: list[Violation] = []
        self.notes: list[str] = []
        self.instances: list[Instance] = []

    @property
    def now(self) -> float:
        """Seconds since the history began."""
        return self.scheduler.now

    @property
    def is_faulty(self) -> bool:
        """Whether things go wrong now."""
        return not self.quiet and self.now < FAULTS_END

    def blame(self, claim: str, text: str) -> None:
        """A claim does not hold."""
        self.violations.append(Violation(self.seed, claim, f"at {self.now:.2f}: {text}"))

    def _failed(self, task: Task, error: Exception) -> None:
        self.blame("error", f"{task.label}: {type(error).__name__}: {error}")

    async def sleep(self, seconds: float) -> None:
        """Pause the current task."""
        self.scheduler.resume_at(self.now + seconds, self.scheduler.current)
        await PARK

    async def trip(self) -> None:
        """One way over the network."""
        slow = self.rng.random() < 0.02 and self.is_faulty
        await self.sleep(self.rng.random() * (1.0 if slow else 0.01))

    def at_work(self, instance: Instance, writer: Writer) -> AtWork:
        """Notes who works where, and judges it."""
        return AtWork(self, instance, writer)

    async def write(self, writer: Writer, number: int) -> None:
        """The resource: it takes what comes with the highest token that it has seen, or a higher one."""
        await self.trip()
        if writer.token < self.floors[writer.entity]:
            raise StaleToken(writer.entity, token=writer.token, seen=self.floors[writer.entity])
        self.floors[writer.entity] = writer.token
        last = self.written[writer.entity][-1] if self.written[writer.entity] else -1
        if number not in (last, last + 1):
            self.blame("order", f"{writer!r} wrote {number} after {last}")
        self.written[writer.entity].append(number)
        await self.trip()

    def judge_taken(self, partition: int, lease: Lease) -> None:
        """Each owner has a higher token than the one before."""
        if lease.token <= self.taken[partition]:
            self.blame("token", f"{lease.holder} has {partition} with {lease.token} after {self.taken[partition]}")
        self.taken[partition] = lease.token

    def judge_release(self, instance: Instance, lease: Lease) -> None:
        """Nobody gives a partition back while it works there."""
        for number, working in self.working.items():
            if lease.name == f"orders/{number}" and any(one.instance is instance for one in working):
                self.blame("drain", f"{instance.name} gives {number} back while it works there")

    def run(self) -> None:
        """Let it happen, and judge what came of it."""
        self._arrange()
        self.scheduler.run(ENDS)
        living = [one for one in self.instances if not one.process.dead]
        self._judge_end(living)
        self.scheduler.close()

    def _arrange(self) -> None:
        count = self.rng.randint(2, 5)
        for number in range(count):
            at = number * FAULTS_END / count if self.quiet else self.rng.random() * FAULTS_END * (number > 0)
            self.instances.append(Instance(self, f"member-{self.rng.randrange(10**6)}", at))
        for instance in self.instances[1:] if not self.quiet else []:
            at, fate = self.rng.random() * FAULTS_END, self.rng.random()
            if fate < 0.25:
                self.scheduler.call_at(at, instance.process.die)
            elif fate < 0.5:
                self.scheduler.call_at(at, setattr, instance, "leaving", True)
        for instance in [] if self.quiet else self.instances:
            for _ in range(self.rng.randint(0, 2)):
                at = self.rng.random() * (FAULTS_END - 15)
                self.scheduler.call_at(at, setattr, instance.process, "paused", True)
                self.scheduler.call_at(at + self.rng.random() * 3 * TTL, self._thaw, instance)
        sender = Process("sender")
        self.scheduler.spawn(self._send(), sender, "sender")

    def _thaw(self, instance: Instance) -> None:
        self.scheduler.wake(instance.process, lambda: self.rng.random() * 0.01)

    async def _send(self) -> None:
        while self.now < SILENCE:
            await self.sleep(self.rng.random() / 2)
            name = f"customer-{self.rng.randrange(6)}"
            self.inbox.put(self.entities.partition_of(name), name, self.put[name])
            self.put[name] += 1

    def _judge_end(self, living: list[Instance]) -> None:
        owned = {one.name: [number for number, owned in one.crew.mine.items() if owned.serves] for one in living}
        everything = sorted(number for numbers in owned.values() for number in numbers)
        if everything != list(range(self.entities.partitions)):
            self.blame("all", f"of {self.entities.partitions} partitions are served: {owned}")
        loads = [len(numbers) for numbers in owned.values()]
        if max(loads) - min(loads) > 1:
            self.blame("flat", f"the loads are {loads}")
        for name, count in self.put.items():
            if not self.written[name] or self.written[name][-1] != count - 1:
                self.blame("lost", f"of {count} messages for {name}, {len(set(self.written[name]))} were handled")
        for one in living:
            for result in one.items:
                if not result.ended:
                    self.blame("handed back", f"an item of {one.name} is neither done nor handed back")
                elif result.error is not None and result.begun:
                    self.blame("handed back", f"an item of {one.name} was begun and handed back")
        if self.quiet:
            self._judge_movement()

    def _judge_movement(self) -> None:
        """When members only join, no more moves than the newcomers' shares."""
        names = [one.name for one in self.instances]
        least = sum(
            quota(self.entities.partitions, names[: number + 1], names[number]) for number in range(1, len(names))
        )
        moves = sum(one.moves for one in self.instances)
        if moves > least:
            self.blame("movement", f"{moves} partitions moved where {least} moves were enough")


def explore(seeds: Sequence[int] | range, *, until_caught: bool = False) -> list[Violation]:
    """Run histories; what was found."""
    found: list[Violation] = []
    for seed in seeds:
        history = PartitionHistory(seed)
        history.run()
        found += history.violations
        if found and until_caught:
            break
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m leasehold.sim.partitions", description=__doc__)
    parser.add_argument("--histories", type=int, default=200, metavar="N", help="how many (default: 200)")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="the first seed (default: 0)")
    parser.add_argument("--jobs", type=int, default=CORES, metavar="N", help="processes (default: all cores)")
    given = parser.parse_args(arguments)
    found: list[Violation] = []
    with telling(given.histories, Console()) as tell:
        for number, part in enumerate(
            spread(explore, range(given.first, given.first + given.histories), given.jobs), 1
        ):
            found += part
            tell(min(number * CHUNK, given.histories), len(found))
    for violation in sorted(found, key=lambda one: one.seed)[:20]:
        sys.stdout.write(f"seed {violation.seed}: {violation.claim}: {violation.text}\n")
        sys.stdout.write(f"  replay it:  python -m leasehold.sim.partitions --first {violation.seed} --histories 1\n")
    sys.stdout.write(f"{given.histories} histories, {len(found)} violations\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
