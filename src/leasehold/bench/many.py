"""Ten thousand leases on one keeper, and ten thousand tasks that wait for one name."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from leasehold import Leasehold
from leasehold.bench.contestant import TTL
from leasehold.bench.crew import Crew
from leasehold.bench.effort import Run
from leasehold.bench.places import Place
from leasehold.bench.resp import BareSocket
from leasehold.bench.results import Aim, Figure, Finding, Row, Table
from leasehold.core.engine import Capability
from leasehold.errors import EngineError
from leasehold.worlds import boot_clock

NAME = "many-waiters"
ANSWERED_WITHIN = 60.0
"""A loop that is traced, that starts thousands of tasks, or an engine that lists them, is slow."""
FEWER = 10
"""Where an engine breaks down, so many times fewer are measured."""
LOOK, AT_REST = 0.5, 0.05
"""How often it is looked whether the tasks have come to rest: when they use less than this share of a core."""
SLACK = 60.0
"""How much longer than it may take a worker has to answer."""
TRACED_LESS, TRACED_TTL = 5, 60.0
IN_CONNECTIONS = 50
"""So many, where each lease and each waiter has a connection of its own: servers have limits."""
OBJECTS, RESIDENT = "bytes of objects each", "bytes of memory each"
LOST, KEEPERS, SHARE = "lost", "keeper threads", "% of a core"
CONNECTIONS, COMMANDS = "connections", "commands/s"
MOST_BYTES_A_LEASE, MOST_SHARE = 2048.0, 25.0
MOST_BYTES_A_WAITER, MOST_COMMANDS = 4096.0, 4.0


@dataclass(slots=True)
class Reached:
    """How many of those that were to be measured there are, and why not all."""

    count: int
    wanted: int
    why: str = ""
    in_connections: bool = False
    """Whether each has a connection, whose memory says nothing of what was to be measured."""

    def remark(self, what: str) -> str:
        """What the figures are of, where that is less than was to be measured."""
        return "" if self.count >= self.wanted else f"{self.count:,} of {self.wanted:,} {what}: {self.why}"


Part = tuple[dict[str, Figure], Reached]


class Kind(NamedTuple):
    """What there can be many of."""

    what: str
    table: Table
    measure: Callable[[Run, Place, bool], Part]
    aims: Callable[[Run, Place, dict[str, Figure], Reached], list[Aim]]


def measure(run: Run) -> Finding:
    """Each engine on its own, in fresh processes: once to trace objects, once to see the process as it is."""
    effort = run.effort
    leases = Table(
        "many",
        f"{effort.leases:,} leases held by one process",
        [OBJECTS, RESIDENT, LOST, KEEPERS, SHARE],
        [],
        [f"Held for two TTLs of {effort.leases_ttl:g} s; the share is of the whole process, renewing all."],
    )
    waiters = Table(
        "many",
        f"{effort.async_waiters:,} tasks of one process that wait for one name",
        [OBJECTS, RESIDENT, CONNECTIONS, COMMANDS, SHARE],
        [],
        [
            "What a task takes by itself is part of it.",
            "All share one lock object; one for each would add some 300 bytes.",
        ],
    )
    finding = Finding([leases, waiters], [])
    for place in run.places:
        _add(run, place, Kind("leases", leases, _held_leases, _aims_of_leases), finding)
        _add(run, place, Kind("waiting tasks", waiters, _waiting_tasks, _aims_of_waiters), finding)
    return finding


def _add(run: Run, place: Place, kind: Kind, finding: Finding) -> None:
    """One row of a table, and its aims. What fails on one engine does not keep the others from being measured."""
    try:
        with run.steps.of(f"many {kind.what} on {place.engine}", 2) as advance:
            traced, _ = kind.measure(run, place, True)
            advance()
            figures, reached = kind.measure(run, place, False)
    except Exception as error:  # noqa: BLE001 -- whatever it was, it is told
        finding.failed.append(f"many {kind.what} on {place.engine}: {_last_line(error)}")
        return
    kind.table.rows.append(Row(f"Leasehold on {place.engine}", traced | figures, reached.remark(kind.what)))
    finding.aims.extend(kind.aims(run, place, figures, reached))


def _wanted(place: Place, many: int, *, trace: bool) -> Reached:
    """How many to measure: fewer where each is a connection, and in a process that is slow since it is traced."""
    reached = Reached(many, many)
    if Capability.OUTLIVES_CONNECTION not in Leasehold(place.on).facts.capabilities and many > IN_CONNECTIONS:
        reached.count, reached.in_connections = IN_CONNECTIONS, True
        reached.why = "each has a connection of its own, of which servers have few"
    elif trace:
        reached.count = many // TRACED_LESS
    return reached


def _held_leases(run: Run, place: Place, trace: bool) -> Part:
    effort = run.effort
    reached = _wanted(place, effort.leases, trace=trace)
    within = effort.reached_within
    # A traced process is slow, and its keeper too.
    ttl = TRACED_TTL if trace else effort.leases_ttl
    with Crew(1, "hold_leases", place, leases=reached.count, ttl=ttl, trace=trace, within=within) as crew:
        [taken] = crew.ask(within + SLACK, take=True)
        if taken["leases"] < reached.count:
            reached.count, reached.why = taken["leases"], taken["why"]
        if trace:
            [_] = crew.ask(seconds=0.0)
            crew.ask(within + SLACK, release=True)
            return {OBJECTS: Figure(taken["bytes"], "bytes")}, reached
        seconds = 2 * effort.leases_ttl
        [held] = crew.ask(seconds + SLACK, seconds=seconds)
        crew.ask(within + SLACK, release=True)
    figures = {
        RESIDENT: Figure(taken["bytes"], "bytes"),
        LOST: Figure(held["lost"], ""),
        KEEPERS: Figure(held["keepers"], ""),
        SHARE: Figure(held["share"] * 100, "%"),
    }
    return figures, reached


def _waiting_tasks(run: Run, place: Place, trace: bool) -> Part:
    reached = _wanted(place, run.effort.async_waiters, trace=trace)
    try:
        return _tasks_in_queue(run, place, reached, trace=trace)
    except Exception as error:  # an engine may break down under so many
        if reached.count < FEWER:
            raise
        reached.why = f"with {reached.count:,}, {_last_line(error)}"
        reached.count //= FEWER
        return _tasks_in_queue(run, place, reached, trace=trace)


def _last_line(error: Exception) -> str:
    """What it says, without the way that led there."""
    said = [line for line in str(error).splitlines() if line.strip()]
    return said[-1].strip() if said else type(error).__name__


def _tasks_in_queue(run: Run, place: Place, reached: Reached, *, trace: bool) -> Part:
    name = f"{NAME}-{'traced' if trace else 'plain'}-{reached.count}"
    within = run.effort.reached_within
    with contextlib.ExitStack() as stack:
        holder = stack.enter_context(Leasehold(place.on, namespace=place.namespace))
        stack.enter_context(holder.lock(name, ttl=TTL))
        locks = stack.enter_context(Leasehold(place.on, namespace=place.namespace, request_timeout=ANSWERED_WITHIN))
        job = {"name": name, "waiters": reached.count, "trace": trace, "within": ANSWERED_WITHIN}
        crew = stack.enter_context(Crew(1, "wait_in_tasks", place, **job))
        crew.ask(within + SLACK, take=True)
        queued = _come_to_wait(run, locks, name, reached.count)
        _come_to_rest(run, crew)
        [waiting] = crew.ask(within + SLACK, measure=True)
        if waiting["failed"]:
            raise RuntimeError(f"{waiting['failed']} of {reached.count} tasks ceased to wait: {waiting['why']}")
        if not queued:
            raise RuntimeError(f"none of {reached.count} tasks came to wait within {within:g} s")
        if queued < reached.count:
            reached.count, reached.why = queued, "so many had come to wait when no more came; the figures are of all"
        if trace:
            return {OBJECTS: Figure(waiting["bytes"], "bytes")}, reached
        figures = {
            RESIDENT: Figure(waiting["bytes"], "bytes"),
            CONNECTIONS: Figure(waiting["sockets"], ""),
        }
        return figures | _idle_rates(run, place, crew), reached


def _come_to_wait(run: Run, locks: Leasehold, name: str, waiters: int) -> int:
    """How many wait, when all do or no more come; asked from here, since the answer names each, and takes as much room.

    Not asked too often: to list thousands is work for an engine that they are about to ask.
    """
    effort, began = run.effort, boot_clock()
    queued, grew_at = 0, began
    while True:
        asked = boot_clock()
        status = None
        with contextlib.suppress(EngineError):  # it is busy with those who come
            status = locks.status(name)
        now, seen = boot_clock(), len(status.waiters) if status else 0
        if seen > queued:
            queued, grew_at = seen, now
        if queued >= waiters or now - began > effort.reached_within or now - grew_at > effort.stuck_after:
            return queued
        time.sleep(max(0.5, 3 * (now - asked)))


def _come_to_rest(run: Run, crew: Crew) -> None:
    """Who is queued has still to look at those before it, and to be told of them."""
    give_up_at = boot_clock() + run.effort.stuck_after
    [last] = crew.ask(SLACK, usage=True)
    while boot_clock() < give_up_at:
        time.sleep(LOOK)
        [now] = crew.ask(SLACK, usage=True)
        if now["cpu"] - last["cpu"] < LOOK * AT_REST:
            return
        last = now


def _idle_rates(run: Run, place: Place, crew: Crew) -> dict[str, Figure]:
    first, reads = crew.ask(usage=True)[0], _reads(place)
    began = boot_clock()
    time.sleep(run.effort.async_idle)
    last, reads = crew.ask(usage=True)[0], _reads(place) - reads
    seconds = boot_clock() - began
    figures = {SHARE: Figure((last["cpu"] - first["cpu"]) / seconds * 100, "%")}
    if place.speaks_redis:
        figures[COMMANDS] = Figure(max(reads - 2, 0) / seconds, "per s")  # a look: one command, one hanging up
    return figures


def _reads(place: Place) -> int:
    if not place.speaks_redis:
        return 0
    with BareSocket(place.on) as asked:
        return int(asked.info("stats")["total_reads_processed"])


def _aims_of_leases(run: Run, place: Place, held: dict[str, Figure], reached: Reached) -> list[Aim]:
    many, on = f"{reached.count:,}", f"on {place.engine}"
    # A shorter TTL makes for a shorter benchmark; three times the TTL is a third of the renewals.
    share = Figure(held[SHARE].value * run.effort.leases_ttl / TTL, "%")
    memory = Aim(f"bytes of memory a lease, of {many} {on}", "at most", MOST_BYTES_A_LEASE, held[RESIDENT])
    return [
        *([] if reached.in_connections else [memory]),
        Aim(f"leases lost, of {many} {on}", "at most", 0, held[LOST]),
        Aim(f"keeper threads for {many} leases {on}", "at most", 1, held[KEEPERS]),
        Aim(f"% of a core to keep {many} leases at a TTL of {TTL} s {on}", "at most", MOST_SHARE, share),
    ]


def _aims_of_waiters(_run: Run, place: Place, waited: dict[str, Figure], reached: Reached) -> list[Aim]:
    on = f"on {place.engine}"
    many = "" if reached.count == reached.wanted else f", of {reached.count:,}"
    memory = Aim(f"bytes of memory a waiting task{many} {on}", "at most", MOST_BYTES_A_WAITER, waited[RESIDENT])
    aims = [] if reached.in_connections else [memory]
    if COMMANDS in waited:
        what = f"commands/s of {reached.count:,} waiting tasks {on}"
        aims.append(Aim(what, "at most", MOST_COMMANDS, waited[COMMANDS]))
    return aims
