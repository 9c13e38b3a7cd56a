"""One history: everything that a seed means, put together and run to its end."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from random import Random

from leasehold.sim.client import Client
from leasehold.sim.faults import Faults, clock_rates
from leasehold.sim.history import Broke, Event, History, Left
from leasehold.sim.network import Network
from leasehold.sim.plan import LAST_WAIT, TABLE, Plan, draw
from leasehold.sim.resources import Store
from leasehold.sim.scheduler import Process, Scheduler, Spinning, Task
from leasehold.sim.sites import KINDS
from leasehold.sim.workload import Worker
from leasehold.sim.world import Clock

CLEAN_UP = 1.5
"""Seconds in which keepers give back what was left to them in the end."""


class Host:
    """A machine with a clock, and one process of ours at a time."""

    __slots__ = ("client", "clock", "label", "started", "workers")

    def __init__(self, label: str, clock: Clock, workers: int) -> None:
        self.label, self.clock, self.workers = label, clock, workers
        self.client: Client | None = None
        self.started = 0


class Simulation:
    """The world of one seed."""

    def __init__(self, seed: int, engine: str = TABLE.engine) -> None:
        kind = KINDS[engine]
        self.plan: Plan = draw(seed, kind.traits)
        self.rng = rng = Random(-1 - seed)
        self.history = History(seed, self.plan)
        events: list[Event] = self.history.events
        self.scheduler = Scheduler(self._broke)
        self.network = Network(self.scheduler, rng)
        server_rate, host_rate = clock_rates(self.plan.kinds, rng)
        self.server = kind.site(self.network, events, server_rate)
        self.server.arrange(self.plan.kinds)
        self.store = Store(self.network, events, self.plan.names)
        self.faults = Faults(self)
        self.hosts = [
            Host("ABCDEFGH"[index], Clock(host_rate(), 1e6 * rng.random()), workers)
            for index, workers in enumerate(self.plan.workers)
        ]
        self._processes: list[Process] = []

    def _broke(self, task: Task, error: Exception) -> None:
        self.history.events.append(Broke(self.scheduler.now, task.label, repr(error)))

    def start(self, host: Host) -> None:
        """Start a process on a host, with its workers."""
        if self.scheduler.now >= self.plan.faults_end:
            return
        host.started += 1
        label = host.label + "+" * (host.started - 1)
        client = host.client = Client(
            label,
            len(self._processes),
            clock=host.clock,
            rng=self.rng,
            network=self.network,
            site=self.server,
            events=self.history.events,
            request_timeout=self.plan.request_timeout,
        )
        self._processes.append(client.process)
        for number in range(1, host.workers + 1):
            who = f"{host.label}{number}"
            worker = Worker(
                who,
                client,
                plan=self.plan,
                rng=self.rng,
                store=self.store,
                events=self.history.events,
                pause=partial(self.faults.pause_between, host, client),
            )
            self.scheduler.spawn(worker.run(), client.process, who)

    def run(self) -> History:
        """From the first acquire until nobody wants anything any more and every TTL has passed."""
        scheduler, history = self.scheduler, self.history
        try:
            for host in self.hosts:
                self.start(host)
            self.faults.schedule()
            scheduler.run(self.plan.faults_end)
            last = self.plan.faults_end + 2 * LAST_WAIT
            while self._working() and scheduler.now < last:
                scheduler.run(scheduler.now + 1.0)
            scheduler.run(scheduler.now + CLEAN_UP)
            history.events.extend(self._kept())
            # Whoever keeps nothing renews nothing, so keepers need not go on while the last leases run out.
            for host in self.hosts:
                if host.client is not None:
                    host.client.keeping.stop()
            scheduler.run(scheduler.now + 2.2 * self.plan.longest_ttl + self.server.linger)
            history.events.extend(self.server.leftovers())
        except Spinning as error:
            history.events.append(Broke(scheduler.now, "scheduler", str(error)))
        finally:
            history.ended_at = scheduler.now
            scheduler.close()
        return history

    def _kept(self) -> Iterator[Left]:
        """Leases that a keeper still has though nobody holds any more."""
        for host in self.hosts:
            if host.client is not None:
                for held in host.client.desk.keeper.leases:
                    yield Left(self.scheduler.now, held.want.name, held.want.holder, "lease in the keeper")

    def _working(self) -> bool:
        return any(task.turn >= 0 and task.label[-1].isdigit() for process in self._processes for task in process.tasks)
