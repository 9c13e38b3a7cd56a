"""Ten thousand leases on one keeper, and ten thousand tasks that wait for one name."""

from __future__ import annotations

import contextlib
import time

from leasehold import Leasehold
from leasehold.bench.contestant import TTL
from leasehold.bench.crew import Crew
from leasehold.bench.effort import Run
from leasehold.bench.places import Place
from leasehold.bench.resp import BareSocket
from leasehold.bench.results import Aim, Figure, Finding, Row, Table
from leasehold.worlds import boot_clock

NAME = "many-waiters"
TAKEN_WITHIN = 180.0
QUEUED_WITHIN = 60.0
TRACED_LESS = 5
OBJECTS, RESIDENT = "bytes of objects each", "bytes of memory each"
LOST, KEEPERS, SHARE = "lost", "keeper threads", "% of a core"
CONNECTIONS, COMMANDS = "connections", "commands/s"
MOST_BYTES_A_LEASE, MOST_SHARE = 2048.0, 25.0
MOST_BYTES_A_WAITER, MOST_COMMANDS = 4096.0, 4.0


def measure(run: Run) -> Finding:
    """Each engine on its own, in fresh processes: once to trace objects, once to see the process as it is."""
    leases, waiters, aims = [], [], []
    for place in run.places:
        with run.steps.of(f"{run.effort.leases} leases on {place.engine}", 2) as advance:
            held = _held_leases(run, place, trace=True)
            advance()
            held |= _held_leases(run, place, trace=False)
            leases.append(Row(f"Leasehold on {place.engine}", held))
        with run.steps.of(f"{run.effort.async_waiters} waiting tasks on {place.engine}", 2) as advance:
            waited = _waiting_tasks(run, place, trace=True)
            advance()
            waited |= _waiting_tasks(run, place, trace=False)
            waiters.append(Row(f"Leasehold on {place.engine}", waited))
        aims += _aims(run, place, held, waited)
    effort = run.effort
    return Finding(
        [
            Table(
                "many",
                f"{effort.leases:,} leases held by one process",
                [OBJECTS, RESIDENT, LOST, KEEPERS, SHARE],
                leases,
                [f"Held for two TTLs of {effort.leases_ttl:g} s; the share is of the whole process, renewing all."],
            ),
            Table(
                "many",
                f"{effort.async_waiters:,} tasks of one process that wait for one name",
                [OBJECTS, RESIDENT, CONNECTIONS, COMMANDS, SHARE],
                waiters,
                [
                    "What a task takes by itself is part of it.",
                    "All share one lock object; one for each would add some 300 bytes.",
                ],
            ),
        ],
        aims,
    )


def _held_leases(run: Run, place: Place, *, trace: bool) -> dict[str, Figure]:
    effort = run.effort
    # A traced process is slow: it takes fewer, and its leases must last until it has taken them all.
    ttl = TAKEN_WITHIN if trace else effort.leases_ttl
    leases = effort.leases // (TRACED_LESS if trace else 1)
    with Crew(1, "hold_leases", place, leases=leases, ttl=ttl, trace=trace) as crew:
        [taken] = crew.ask(TAKEN_WITHIN, take=True)
        if trace:
            [_] = crew.ask(seconds=0.0)
            crew.ask(TAKEN_WITHIN, release=True)
            return {OBJECTS: Figure(taken["bytes"], "bytes")}
        seconds = 2 * effort.leases_ttl
        [held] = crew.ask(seconds + TAKEN_WITHIN, seconds=seconds)
        crew.ask(TAKEN_WITHIN, release=True)
    return {
        RESIDENT: Figure(taken["bytes"], "bytes"),
        LOST: Figure(held["lost"], ""),
        KEEPERS: Figure(held["keepers"], ""),
        SHARE: Figure(held["share"] * 100, "%"),
    }


def _waiting_tasks(run: Run, place: Place, *, trace: bool) -> dict[str, Figure]:
    name = f"{NAME}-{'traced' if trace else 'plain'}"
    waiters = run.effort.async_waiters // (TRACED_LESS if trace else 1)
    with contextlib.ExitStack() as stack:
        locks = stack.enter_context(Leasehold(place.on, namespace=place.namespace))
        stack.enter_context(locks.lock(name, ttl=TTL))
        job = {"name": name, "waiters": waiters, "trace": trace, "within": QUEUED_WITHIN}
        crew = stack.enter_context(Crew(1, "wait_in_tasks", place, **job))
        crew.ask(TAKEN_WITHIN, take=True)
        queued = _come_to_wait(locks, name, waiters)
        [waiting] = crew.ask(TAKEN_WITHIN, measure=True)
        if queued < waiters:
            raise RuntimeError(f"only {queued} of {waiters} tasks came to wait: {waiting}")
        if trace:
            return {OBJECTS: Figure(waiting["bytes"], "bytes")}
        figures = {
            RESIDENT: Figure(waiting["bytes"], "bytes"),
            CONNECTIONS: Figure(waiting["sockets"], ""),
        }
        return figures | _idle_rates(run, place, crew)


def _come_to_wait(locks: Leasehold, name: str, waiters: int) -> int:
    """How many wait, as soon as all do; asked from here, since the answer names each, and takes as much room."""
    give_up_at = boot_clock() + QUEUED_WITHIN
    while True:
        status = locks.status(name)
        queued = len(status.waiters) if status else 0
        if queued >= waiters or boot_clock() > give_up_at:
            return queued
        time.sleep(0.5)


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


def _aims(run: Run, place: Place, held: dict[str, Figure], waited: dict[str, Figure]) -> list[Aim]:
    effort, on = run.effort, f"on {place.engine}"
    # A shorter TTL makes for a shorter benchmark; three times the TTL is a third of the renewals.
    share = Figure(held[SHARE].value * effort.leases_ttl / TTL, "%")
    aims = [
        Aim(f"bytes of memory a lease, of {effort.leases:,} {on}", "at most", MOST_BYTES_A_LEASE, held[RESIDENT]),
        Aim(f"leases lost, of {effort.leases:,} {on}", "at most", 0, held[LOST]),
        Aim(f"keeper threads for {effort.leases:,} leases {on}", "at most", 1, held[KEEPERS]),
        Aim(f"% of a core to keep {effort.leases:,} leases at a TTL of {TTL} s {on}", "at most", MOST_SHARE, share),
        Aim(f"bytes of memory a waiting task {on}", "at most", MOST_BYTES_A_WAITER, waited[RESIDENT]),
    ]
    if COMMANDS in waited:
        aims.append(
            Aim(
                f"commands/s of {effort.async_waiters:,} waiting tasks {on}", "at most", MOST_COMMANDS, waited[COMMANDS]
            )
        )
    return aims
