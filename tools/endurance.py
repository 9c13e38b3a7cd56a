"""Hold and give back a hundred times a second, beside processes that are killed, and see what that leaves behind.

    python tools/endurance.py --on sqlite,redis --for 24h

Two processes on each engine go through it from beginning to end, one of blocking code and one of asyncio. Others want
the same names, and are killed every few seconds, whatever they hold. Memory, open files and threads of the two are
read from outside. Goal C4: a day makes memory grow by 5 % at most, and leaves no file open. The exit code is 1 if it
does not.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from leasehold import AsyncLeasehold, Leasehold, LeaseLost, NotAcquired
from leasehold.bench.places import Place, private_places
from leasehold.cli.options import seconds_in

WORLDS = ("blocking", "asyncio")
NAMES = 20
HANDS = 4
"""Threads, or tasks, of each process."""
HOLDS_A_SECOND = 100
HELD_FOR = 0.001
TTL, WAIT = 2.0, 10.0
LEAST_TTL = {"consul": 10.0}
KILLED_EVERY = 10.0
LOOKED_AT_EVERY = 1.0
MOST_GROWTH = 0.05
PAGE = os.sysconf("SC_PAGE_SIZE")


# What goes through it


class Pace:
    """When one of the hands is to take its next lease."""

    def __init__(self) -> None:
        self._every = HANDS / HOLDS_A_SECOND
        self._next = time.monotonic() + random.random() * self._every

    def pause(self) -> float:
        """Seconds until then. Who has fallen behind by a second does not try to catch up."""
        now = time.monotonic()
        self._next = max(self._next + self._every, now - 1)
        return max(self._next - now, 0.0)


def name() -> str:
    """One of the names that all want."""
    return f"endurance-{random.randrange(NAMES)}"


def hold_in_threads(url: str, ttl: float, over: threading.Event) -> int:
    """Take and give back until it is over; returns how often."""
    counts = [0] * HANDS

    def hand(number: int, locks: Leasehold) -> None:
        pace = Pace()
        while not over.wait(pace.pause()):
            with contextlib.suppress(NotAcquired, LeaseLost), locks.lock(name(), ttl=ttl, wait=WAIT):
                time.sleep(HELD_FOR)
                counts[number] += 1

    with Leasehold(url) as locks:
        hands = [threading.Thread(target=hand, args=(number, locks)) for number in range(HANDS)]
        for one in hands:
            one.start()
        for one in hands:
            one.join()
    return sum(counts)


async def hold_in_tasks(url: str, ttl: float, over: threading.Event) -> int:
    """The same in asyncio."""
    counts = [0] * HANDS

    async def hand(number: int, locks: AsyncLeasehold) -> None:
        pace = Pace()
        while not over.is_set():
            await asyncio.sleep(pace.pause())
            with contextlib.suppress(NotAcquired, LeaseLost):
                async with locks.lock(name(), ttl=ttl, wait=WAIT):
                    await asyncio.sleep(HELD_FOR)
                    counts[number] += 1

    async with AsyncLeasehold(url) as locks:
        await asyncio.gather(*(hand(number, locks) for number in range(HANDS)))
    return sum(counts)


def work(world: str, url: str, ttl: float) -> None:
    """What each process does; ended by SIGTERM, it tells how often it held."""
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    held = hold_in_threads(url, ttl, over) if world == "blocking" else asyncio.run(hold_in_tasks(url, ttl, over))
    sys.stdout.write(f"{held}\n")


# Who watches


class Look(NamedTuple):
    """What a process has at one moment."""

    memory: int
    files: int
    threads: int


def look_at(pid: int) -> Look:
    """Read it from outside, so that looking takes none of it."""
    process = Path(f"/proc/{pid}")
    memory = int((process / "statm").read_text().split()[1]) * PAGE
    return Look(memory, len(list((process / "fd").iterdir())), len(list((process / "task").iterdir())))


@dataclass(slots=True)
class Endurer:
    """One process from beginning to end, and what was seen of it."""

    who: str
    process: subprocess.Popen[str]
    looks: list[Look] = field(default_factory=list)
    held: int = 0

    def verdict(self) -> Verdict:
        """The first tenth is for warming up: the second one is what the last one is held against."""
        tenth = max(len(self.looks) // 10, 1)
        early, late = self.looks[tenth : 2 * tenth] or self.looks[:1], self.looks[-tenth:]
        memory = [statistics.median(look.memory for look in looks) for looks in (early, late)]
        return Verdict(
            self.who,
            self.held,
            memory[1] / memory[0] - 1,
            memory[1],
            max(look.files for look in late) - max(look.files for look in early),
            max(look.threads for look in late) - max(look.threads for look in early),
        )


class Verdict(NamedTuple):
    """What the time has done to one process."""

    who: str
    held: int
    growth: float
    memory: float
    more_files: int
    more_threads: int

    @property
    def is_good(self) -> bool:
        """Whether the goal is met."""
        return self.held > 0 and self.growth <= MOST_GROWTH and self.more_files <= 0 and self.more_threads <= 0

    def __str__(self) -> str:
        return (
            f"{self.who}: {self.held:,} holds, memory {self.growth:+.1%} to {self.memory / 2**20:.1f} MiB, "
            f"open files {self.more_files:+d}, threads {self.more_threads:+d}"
        )


def endure(places: list[Place], seconds: float) -> list[Verdict]:
    """Let it go on for so long on each of these at the same time."""
    pairs = [(place, world) for place in places for world in WORLDS]
    with contextlib.ExitStack() as stack:
        endurers = [Endurer(f"{place.engine}, {world}", _started(place, world)) for place, world in pairs]
        victims = [_started(place, world) for place, world in pairs]
        stack.callback(_kill, victims)
        stack.callback(_kill, [endurer.process for endurer in endurers])
        began = killed_at = time.monotonic()
        while (now := time.monotonic()) < began + seconds:
            time.sleep(LOOKED_AT_EVERY)
            for endurer in endurers:
                endurer.looks.append(look_at(endurer.process.pid))
            if now >= killed_at + KILLED_EVERY:
                killed_at = now
                _kill(victims)
                victims[:] = [_started(place, world) for place, world in pairs]
        for endurer in endurers:
            endurer.process.send_signal(signal.SIGTERM)
            said, _ = endurer.process.communicate(timeout=60)
            endurer.held = int(said)
    return [endurer.verdict() for endurer in endurers]


def _started(place: Place, world: str) -> subprocess.Popen[str]:
    ttl = LEAST_TTL.get(place.engine, TTL)
    command = [sys.executable, __file__, "--work", world, "--ttl", str(ttl)]
    environment = os.environ | {"LEASEHOLD_URL": place.on}
    # A session of its own: an interruption from the keyboard must reach it only through us.
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True)


def _kill(processes: list[subprocess.Popen[str]]) -> None:
    for process in processes:
        process.kill()
        process.communicate()


def main(arguments: list[str] | None = None) -> int:
    """Go through it, and tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--on", default="sqlite,redis", metavar="ENGINES", help="private ones of these")
    parser.add_argument("--for", dest="seconds", type=seconds_in, default=600.0, metavar="TIME")
    parser.add_argument("--work", choices=WORLDS, help=argparse.SUPPRESS)
    parser.add_argument("--ttl", type=float, default=TTL, help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.work:
        work(asked.work, os.environ["LEASEHOLD_URL"], asked.ttl)
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is ended on the way out
    with private_places(asked.on.split(",")) as (places, missing):
        if missing:
            sys.exit(missing[0])
        verdicts = endure(places, asked.seconds)
    for verdict in verdicts:
        sys.stdout.write(f"{'  ' if verdict.is_good else '! '}{verdict}\n")
    return 0 if all(verdict.is_good for verdict in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
