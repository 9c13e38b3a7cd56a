"""The show: how much moves, how soon partitions are served again, and what the fence says of it all.

python -m leasehold.patterns.partitions.show --on redis://127.0.0.1:6379/0 --partitions 1024
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import wait
from functools import partial
from pathlib import Path

from leasehold.client import Leasehold
from leasehold.patterns.partitions.blocking import Partitions
from leasehold.patterns.partitions.entities import Entities
from leasehold.patterns.partitions.show.troupe import Troupe, troupe, wait_for

ENTITIES = 200
ROUNDS_OF_CHAOS = 2
OPERATIONS = 2000


def say(text: str) -> None:
    """One line of the report."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def moved(group: Troupe, change: Callable[[], object]) -> tuple[int, float]:
    """How many partitions got another owner by a change, and how long it took until all were served, evenly."""
    before, began = group.owners(), time.monotonic()
    change()
    group.wait_flat(within=120.0)
    took, after = time.monotonic() - began, group.owners()
    return sum(before[number].token != after[number].token for number in after), took


def show_movement(group: Troupe, ttl: float) -> None:
    """Join, leave, die."""
    for _ in range(5):
        group.hire()
    say(f"five members share {group.entities.partitions} partitions: after {group.wait_flat(within=120.0):.1f} s")
    count, took = moved(group, group.hire)
    say(f"a sixth joins: {count} partitions move, in {took:.1f} s, its start included")
    count, took = moved(group, lambda: group.signal(group.workers[0], signal.SIGTERM))
    say(f"one leaves: {count} partitions move, in {took:.1f} s")
    count, took = moved(group, lambda: group.signal(group.workers[0], signal.SIGKILL))
    say(f"one is killed: {count} partitions move, in {took:.1f} s at a TTL of {ttl:g} s")


def show_chaos(group: Troupe) -> bool:
    """Kill and freeze whoever is at work; whether the judge is content."""
    names = [f"customer-{number}" for number in range(ENTITIES)]

    def send() -> None:
        for name in names:
            group.send(name)

    refused = 0
    for _ in range(ROUNDS_OF_CHAOS):
        frozen = group.freeze_at_work(send)
        wait_for(partial(group.stage.begun_again, frozen), "somebody takes over from the frozen one")
        group.signal(frozen.worker, signal.SIGCONT)
        wait_for(partial(group.stage.refusals, frozen.worker), "what it goes on to write is refused")
        refused += group.stage.refusals(frozen.worker)
        killed = group.freeze_at_work(send)
        group.signal(killed.worker, signal.SIGKILL)
        group.hire()
        wait_for(partial(group.stage.begun_again, killed), "somebody takes over from the killed one")
    wait_for(lambda: not group.inbox.waiting(), "everything is handled", within=120.0)
    found = group.stage.judge(group.put)
    say(f"{sum(group.put.values())} messages, {ROUNDS_OF_CHAOS} members frozen past their leases, as many killed:")
    say(f"  {refused} writes of the frozen were refused; each message was handled once, in order: {not found}")
    for text in found[:10]:
        say(f"  {text}")
    return not found


def show_throughput(on: str) -> None:
    """Work without a lock in front of each piece of it, beside work with one."""
    entities = Entities(f"throughput-{os.getpid()}", 64)
    names = [f"customer-{number}" for number in range(ENTITIES)]
    with Leasehold(on if "://" in on else Path(on)) as locks:
        with Partitions(locks, entities) as member:
            member.wait_owned(entities.partitions, within=60)
            began = time.monotonic()
            wait(
                [member.submit(names[number % ENTITIES], lambda writer: writer.check()) for number in range(OPERATIONS)]
            )
            by_partition = time.monotonic() - began
        began = time.monotonic()
        for number in range(OPERATIONS):
            with locks.lock(f"{entities.group}/{names[number % ENTITIES]}") as lease:
                lease.check()
        by_lock = time.monotonic() - began
    say(f"{OPERATIONS / by_partition:,.0f} submitted pieces of work a second, one thread submits and eight work;")
    say(f"{OPERATIONS / by_lock:,.0f} a second with a lock for each piece, in one thread")


def main(arguments: list[str] | None = None) -> int:
    """Run the show."""
    parser = argparse.ArgumentParser(prog="python -m leasehold.patterns.partitions.show")
    parser.add_argument("--on", help="the engine for the leases; by default a SQLite file")
    parser.add_argument("--partitions", type=int, default=1024)
    parser.add_argument("--ttl", type=float, default=5.0)
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="leasehold-show-") as folder:
        on = given.on or str(Path(folder) / "leases.db")
        with troupe(on, Path(folder), partitions=given.partitions, ttl=given.ttl, work=0.02) as group:
            show_movement(group, given.ttl)
            content = show_chaos(group)
        show_throughput(on)
    return 0 if content else 1


if __name__ == "__main__":
    sys.exit(main())
