"""What waiters cost while nothing happens: commands at the server, and time on this machine's processors."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from dataclasses import dataclass, field

from leasehold.bench.contestant import PATIENCE, TTL, Contestant
from leasehold.bench.contestants import LEASEHOLD, peers_at
from leasehold.bench.crew import Crew
from leasehold.bench.effort import Run
from leasehold.bench.places import Place, private_redis
from leasehold.bench.resp import BareSocket
from leasehold.bench.results import Aim, Figure, Finding, Row, Table
from leasehold.worlds import boot_clock

NAME = "idle"
SETTLED_AFTER = 1.5
SENT, CARRIED_OUT, WAKES, CPU = "commands/s", "commands/s, those in scripts too", "wake-ups/s", "CPU ms/s"
MOST_COMMANDS = 2.0


@dataclass(frozen=True, slots=True)
class Count:
    """What a server and the waiters had done at some moment."""

    at: float = 0.0
    sent: int = 0
    carried_out: int = 0
    wakes: int = 0
    cpu: float = 0.0

    def rates_since(self, earlier: Count) -> dict[str, float]:
        """What happened a second in between. Looking took one command, which is not counted."""
        seconds = self.at - earlier.at
        return {
            SENT: max(self.sent - earlier.sent - 1, 0) / seconds,
            CARRIED_OUT: max(self.carried_out - earlier.carried_out - 1, 0) / seconds,
            WAKES: (self.wakes - earlier.wakes) / seconds,
            CPU: (self.cpu - earlier.cpu) * 1e3 / seconds,
        }


@dataclass(slots=True)
class Lane:
    """One contestant: somebody holds the name, and a crew is about to wait for it."""

    contestant: Contestant
    place: Place
    server: BareSocket | None
    crew: Crew | None = None
    others: dict[str, float] = field(default_factory=dict)
    """What the server does for others, where it is not ours alone."""
    first: Count = Count()
    last: Count = Count()

    def count(self) -> Count:
        """Look once."""
        usage = self.crew.ask(usage=True) if self.crew else []
        stats = self.server.info("stats") if self.server else {}
        return Count(
            boot_clock(),
            # Each command of an idle connection is one read; commands inside of scripts are not read from anybody.
            int(stats.get("total_reads_processed", 0)),
            int(stats.get("total_commands_processed", 0)),
            sum(one["wakes"] for one in usage),
            sum(one["cpu"] for one in usage),
        )

    def rates(self) -> dict[str, float]:
        """What the waiters did a second; of the server's commands only where there is a server to ask."""
        rates = self.last.rates_since(self.first)
        for kind in (SENT, CARRIED_OUT):
            if self.server is None:
                del rates[kind]
            else:
                rates[kind] = max(rates[kind] - self.others.get(kind, 0.0), 0.0)
        return rates


def measure(run: Run) -> Finding:
    """All contestants at once, each with a server of its own: nothing is timed here, only counted."""
    with contextlib.ExitStack() as stack:
        lanes = [lane for place in run.places for lane in _lanes(place, stack)]
        with run.steps.of("starting idle waiters", len(lanes)) as advance:
            for lane in lanes:
                lane.crew = stack.enter_context(_waiting_crew(run, lane))
                advance()
        time.sleep(SETTLED_AFTER)
        for lane in lanes:
            lane.first = lane.count()
        _let_pass(run)
        for lane in lanes:
            lane.last = lane.count()
    tables = [_table(run, place, [lane for lane in lanes if lane.place.engine == place.engine]) for place in run.places]
    return Finding(tables, _aims(run, lanes))


def _lanes(place: Place, stack: contextlib.ExitStack) -> list[Lane]:
    peers = peers_at(place, contending=True) if place.private else []
    lanes = []
    for contestant in (LEASEHOLD, *peers):
        own = place
        if place.speaks_redis and place.private:
            own = dataclasses.replace(place, on=stack.enter_context(private_redis()))
        server = stack.enter_context(BareSocket(own.on)) if own.speaks_redis else None
        lane = Lane(contestant, own, server)
        if server and not own.private:
            before = lane.count()
            time.sleep(SETTLED_AFTER)
            lane.others = lane.count().rates_since(before)
        _hold(lane, stack)
        lanes.append(lane)
    return lanes


def _hold(lane: Lane, stack: contextlib.ExitStack) -> None:
    # Peers do not renew here, so their holders hold for as long as anybody waits; Leasehold's holder renews.
    holder = lane.contestant.open(lane.place, NAME, TTL if lane.contestant is LEASEHOLD else int(PATIENCE))
    stack.callback(holder.close)
    stack.enter_context(holder.again())


def _waiting_crew(run: Run, lane: Lane) -> Crew:
    return Crew(
        run.effort.crew, "wait", lane.place, contestant=lane.contestant.key, name=NAME, waiters=run.effort.waiters
    )


def _let_pass(run: Run) -> None:
    seconds = run.effort.idle
    with run.steps.of(
        f"{run.effort.crew * run.effort.waiters} waiters idle for {seconds:g} s", int(seconds)
    ) as advance:
        ends = boot_clock() + seconds
        while (left := ends - boot_clock()) > 0:
            time.sleep(min(left, 1.0))
            advance()


def _table(run: Run, place: Place, lanes: list[Lane]) -> Table:
    waiters = run.effort.crew * run.effort.waiters
    units = {SENT: "per s", CARRIED_OUT: "per s", WAKES: "per s", CPU: "ms"}
    columns = [kind for kind in units if kind in lanes[0].rates()]
    rows = [
        Row(
            lane.contestant.label,
            {kind: Figure(value, "ms" if kind == CPU else "per s") for kind, value in lane.rates().items()},
        )
        for lane in lanes
    ]
    return Table(
        "idle",
        f"{waiters} idle waiters in {run.effort.crew} processes, on {place.engine}",
        columns,
        rows,
        [f"Of all waiters together, over {run.effort.idle:g} s; Leasehold's holder renews meanwhile."],
    )


def _aims(run: Run, lanes: list[Lane]) -> list[Aim]:
    waiters = run.effort.crew * run.effort.waiters
    return [
        Aim(
            f"commands/s of {waiters} idle waiters on {lane.place.engine}",
            "at most",
            MOST_COMMANDS,
            Figure(lane.rates()[SENT], "per s"),
        )
        for lane in lanes
        if lane.contestant is LEASEHOLD and lane.server is not None
    ]
