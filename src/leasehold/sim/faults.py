"""Carries out the faults of a plan: when, on whom and for how long, all from the seed."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from leasehold.sim.history import Calm, Fault

if TYPE_CHECKING:
    from leasehold.sim.client import Client
    from leasehold.sim.network import Link
    from leasehold.sim.simulation import Host, Simulation


def clock_rates(kinds: tuple[str, ...], rng: Random) -> tuple[float, Callable[[], float]]:
    """The rate of the server's clock, and a source of rates for hosts."""
    server = 1.0
    spread = 0.0
    if "drift" in kinds:
        # The extremes are what the margin is for.
        server, spread = 1.0 + rng.choice((-0.005, 0.0, 0.005, 0.005)), 0.005
    if "wild" in kinds:
        spread = 0.25
    return server, lambda: 1.0 + rng.choice((-spread, spread, spread * (2 * rng.random() - 1)))


class Faults:
    """Does to a simulation what its plan says."""

    def __init__(self, simulation: Simulation) -> None:
        self._sim, self._plan = simulation, simulation.plan
        self._rng, self._scheduler = simulation.rng, simulation.scheduler
        self._ttl = self._plan.ttl

    def schedule(self) -> None:
        """Arrange everything, up to the calm in the end."""
        rng, kinds, network = self._rng, self._plan.kinds, self._sim.network
        network.until = self._plan.faults_end
        network.delays = rng.choice((0.02, 0.1, 0.3)) if "delay" in kinds else 0.0
        network.losses = rng.choice((0.02, 0.1, 0.25)) if "loss" in kinds else 0.0
        network.duplicates = rng.choice((0.05, 0.2, 0.5)) if "duplicate" in kinds else 0.0
        network.deaf = rng.choice((0.1, 0.5, 1.0)) if "deaf" in kinds else 0.0
        network.failing = rng.choice((0.02, 0.05, 0.1)) if "cut" in kinds else 0.0
        network.fail = self._fail
        storm = self._plan.faults_end * rng.random() if rng.random() < 0.3 else None
        for kind in kinds:
            # What has no occasion of its own is a property of the network, of the clocks or of the workers.
            occasion = getattr(self, f"_{kind}", None)
            if occasion is not None:
                for _ in range(rng.choice((1, 2, 2, 3, 4))):
                    # Troubles seldom come alone.
                    at = rng.random() * self._plan.faults_end if storm is None else storm + rng.random() * 2 * self._ttl
                    self._scheduler.call_at(min(at, self._plan.faults_end - 0.001), occasion)
        self._scheduler.call_at(self._plan.faults_end, self._calm)

    def _note(self, kind: str, who: str, until: float, detail: str = "", by: float = 0.0) -> None:
        self._sim.history.events.append(Fault(self._scheduler.now, kind, who, until, detail, by))

    def _end_of(self, duration: float) -> float:
        return min(self._scheduler.now + duration, self._plan.faults_end)

    def _some_client(self) -> tuple[Host, Client] | None:
        running = [(host, host.client) for host in self._sim.hosts if host.client is not None]
        holding = [(host, client) for host, client in running if client.process.watched]
        # Whoever holds something has more to lose.
        chosen = holding if holding and self._rng.random() < 0.5 else running
        return self._rng.choice(chosen) if chosen else None

    # Connections.

    def _cut(self) -> None:
        found = self._some_client()
        if found is None:
            return
        host, client = found
        links = client.family.links if self._rng.random() < 0.7 else [self._rng.choice(client.family.links)]
        self._cut_links(host.label, links, self._ttl * (0.2 + 2.3 * self._rng.random()))

    def _cut_links(self, who: str, links: list[Link], duration: float) -> None:
        until = self._end_of(duration)
        self._note("cut", who, until, "all its connections" if len(links) > 1 else links[0].address)
        for link in links:
            link.cut = True
            self._scheduler.call_at(until, self._sim.network.mend, link)

    def _fail(self, link: Link) -> float:
        """The network of a client fails, and the last reply that gets through is late."""
        links = [one for one in self._sim.network.links if one.process is link.process]
        self._cut_links(link.process.label[0], links, self._ttl * (1.0 + 1.5 * self._rng.random()))
        return self._ttl * 0.3 * self._rng.random()

    def _reset(self) -> None:
        found = self._some_client()
        if found is None:
            return
        host, client = found
        link = self._rng.choice(client.family.links)
        self._note("reset", host.label, self._scheduler.now, link.address)
        self._sim.server.hung_up(link)
        self._sim.network.break_link(link)

    def _half(self) -> None:
        found = self._some_client()
        if found is None:
            return
        host, client = found
        link, server_knows = self._rng.choice(client.family.links), self._rng.random() < 0.5
        who = "the server" if server_knows else "the client"
        self._note("half", host.label, self._scheduler.now, f"{link.address}: only {who} knows")
        if server_knows:
            self._sim.server.lose(link)
        else:
            self._sim.network.break_link(link)

    def _proxy(self) -> None:
        """The proxy's own connections to the server break, and the client cannot see that."""
        found = self._some_client()
        if found is not None:
            host, client = found
            self._note("proxy", host.label, self._scheduler.now, "other sessions will serve it")
            for link in client.family.links:
                self._sim.server.lose(link)

    # Processes.

    def _pause(self) -> None:
        found = self._some_client()
        if found is not None:
            self.pause(*found, self._ttl * self._rng.choice((0.4, 1.1, 1.6, 2.5)), "")

    def pause(self, host: Host, client: Client, duration: float, detail: str) -> bool:
        """Stop a process for a while; False if it is stopped already."""
        if client.process.paused:
            return False
        until = self._end_of(duration)
        self._note("pause", host.label, until, detail)
        client.process.paused = True
        self._scheduler.call_at(until, self._wake, client)
        return True

    def pause_between(self, host: Host, client: Client) -> bool:
        """Stop a process exactly between a check and a write, now and then."""
        rough = self._scheduler.now < self._plan.faults_end
        if not rough or "pause" not in self._plan.kinds or self._rng.random() > 0.35:
            return False
        return self.pause(host, client, self._ttl * self._rng.choice((1.5, 2.5, 4.0)), "between a check and a write")

    def _freeze(self) -> None:
        found = self._some_client()
        if found is None or found[1].process.paused:
            return
        host, client = found
        until = self._end_of(self._ttl * (0.5 + 2.0 * self._rng.random()))
        self._note("freeze", host.label, until)
        client.process.paused = True
        self._scheduler.call_at(until, self._thaw, host, client, until - self._scheduler.now)

    def _thaw(self, host: Host, client: Client, duration: float) -> None:
        if not client.process.dead:
            host.clock.offset -= duration * host.clock.rate
            client.look_anew()
            self._wake(client)

    def _wake(self, client: Client) -> None:
        if not client.process.dead:
            self._scheduler.wake(client.process, lambda: self._rng.random() * 0.001)

    def _crash(self) -> None:
        found = self._some_client()
        if found is None:
            return
        host, client = found
        silent = self._rng.random() < 0.5
        if "back" in self._plan.kinds and self._rng.random() < 0.5:
            self._back()
        self._note("crash", host.label, self._scheduler.now, "the host is gone without a word" if silent else "")
        client.die()
        host.client = None
        for link in client.family.links:
            link.epoch += 1
            if not silent:
                self._sim.server.hung_up(link)
        if self._rng.random() < 0.8:
            self._scheduler.call_at(self._scheduler.now + self._rng.random() * self._ttl, self._sim.start, host)

    # The server.

    def _stop(self, kind: str, *, wipe: bool) -> None:
        if self._sim.server.down:
            return
        until = self._end_of(self._rng.choice((0.05, 0.3, 1.5)) * self._ttl)
        self._note(kind, "server", until)
        self._sim.server.stop(wipe=wipe)
        self._scheduler.call_at(until, self._sim.server.start)

    def _restart(self) -> None:
        self._stop("restart", wipe=False)

    def _wipe(self) -> None:
        self._stop("wipe", wipe=True)

    def _failover(self) -> None:
        self._stop("failover", wipe=True)

    def _election(self) -> None:
        until = self._end_of(self._ttl * (0.1 + self._rng.random()))
        self._note("election", "server", until)
        self._sim.server.lose_leader()
        self._scheduler.call_at(until, self._sim.server.elect)

    def _stall(self) -> None:
        server = self._sim.server
        if server.paused or server.down:
            return
        until = self._end_of(self._ttl * (0.1 + 1.5 * self._rng.random()))
        self._note("stall", "server", until)
        server.paused = True
        self._scheduler.call_at(until, server.resume)

    def _set_clock(self, kind: str, seconds: float) -> None:
        self._note(kind, "server", self._scheduler.now, f"by {seconds:+.3f} s", abs(seconds))
        self._sim.server.set_clock(seconds)

    def _back(self) -> None:
        self._set_clock("back", -self._ttl * self._rng.choice((0.1, 1.0, 10.0)) * self._rng.random())

    def _forward(self) -> None:
        self._set_clock("forward", self._ttl * self._rng.choice((0.1, 1.0, 5.0)) * self._rng.random())

    def _strobe(self) -> None:
        now, jump = self._scheduler.now, self._ttl * self._rng.choice((0.2, 2.0)) * self._rng.random()
        self._note("strobe", "server", self._end_of(self._ttl), f"by {jump:.3f} s", 4 * jump)
        for step in range(8):
            at = now + step * self._ttl / 8
            if at < self._plan.faults_end:
                self._scheduler.call_at(at, self._sim.server.set_clock, -jump if step % 2 else jump)

    def _force(self) -> None:
        name = self._rng.choice(self._plan.names)
        if not self._sim.server.down and not self._sim.server.paused:
            self._note("force", "operator", self._scheduler.now, name)
            self._sim.server.force_release(name)

    def _calm(self) -> None:
        self._sim.network.calm()
        self._sim.history.events.append(Calm(self._scheduler.now))
