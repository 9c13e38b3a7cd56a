"""Asks each fence a million times: what it keeps must not grow, and the last asks must be as quick as the first.

    python tools/fence_million.py                                   # every fence, blocking and async
    python tools/fence_million.py --only redis "trigger asyncio"
    python tools/fence_million.py --asks 100000 --minutes 5         # fewer, or no more than that time for each

Each ask has a higher token than the one before. Whether it slows down is judged by the processor time of client and
server together (read from /proc, so on Linux only): on a busy machine that says more than the time that went by, whose
median stands beside it. Each tenth of a run is told on the error stream as it ends. Needs the servers of the tests
(`tools/servers.py ensure`), which it starts in a temporary folder, and ends. The table of docs/fences-cost.md was made
by it.
"""

from __future__ import annotations

import argparse
import array
import contextlib
import functools
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.fences.guards import Guard
from tests.fences.registry import ASYNC_ADAPTERS, FENCES, KINDS

from fence_cost import guards

CHUNKS = 10
FIRST = 10**15
"""As many digits as the last one, so that what is kept is as long."""
SLOW = ("aws", "gcs")
"""Played by servers written in Python, whose milliseconds say nothing of the services."""
LEAST = 500


class Tenth(NamedTuple):
    """What one ask took in a tenth of the run, in microseconds."""

    processor: float
    """Of client and server, on average."""
    median: float
    """Of the time that went by."""


def processor_time() -> float:
    """Of this process and all that it started, servers included, so far; in seconds."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has just ended
            fields = stat.read_text().rpartition(")")[2].split()
            number = int(stat.parent.name)
            parents[number], ticks[number] = int(fields[1]), sum(map(int, fields[11:15]))  # with those that have ended
    family = {os.getpid()}
    while more := {number for number, parent in parents.items() if parent in family} - family:
        family |= more
    return sum(ticks[number] for number in family) / os.sysconf("SC_CLK_TCK")


def ask_of(kind: str, guard: Guard) -> Callable[[int], object]:
    """What asks it once. The trigger is asked by writes alone: an announcement goes past it, to its floor."""
    return functools.partial(guard.write, value="x") if kind.startswith("trigger") else guard.announce


def ask(once: Callable[[int], object], asks: int, minutes: float) -> tuple[list[Tenth], int]:
    """Ask, and return what one ask took in each tenth, and how many asks there were."""
    tenths: list[Tenth] = []
    token, give_up_at = FIRST, time.monotonic() + 60 * minutes
    chunk = asks // CHUNKS
    while len(tenths) < CHUNKS:
        first, taken, before = token, array.array("d"), processor_time()
        began = time.perf_counter()
        share = time.monotonic() + (give_up_at - time.monotonic()) / (CHUNKS - len(tenths))
        while token < first + chunk and (time.monotonic() < share or token < first + LEAST // CHUNKS):
            token += 1
            once(token)
            ended = time.perf_counter()
            taken.append(ended - began)
            began = ended
        processor = (processor_time() - before) / len(taken)
        tenths.append(Tenth(processor * 1e6, statistics.median(taken) * 1e6))
        print(f"{len(taken):,} asks: {tenths[-1]}", file=sys.stderr, flush=True)
    return tenths, token - FIRST


def run(kinds: Sequence[str], asks: int, minutes: float) -> bool:
    """Print a row for each kind as soon as it is known; whether none of them keeps more than at first."""
    print("| fence | asks | processor time: first tenth, last, dearest | median: first, last | kept: first, last |")
    print("|---|---|---|---|---|", flush=True)
    grown = False
    for kind in kinds:
        fewer = asks // 100 if KINDS[kind].place in SLOW else asks
        with guards([kind]) as opens:
            guard = opens[kind]
            guard.write(FIRST, "x")
            before = guard.floor_size()
            tenths, asked = ask(ask_of(kind, guard), fewer, minutes)
            after = guard.floor_size()
            assert guard.floor() == FIRST + asked, "the last one was heard"
        grown = grown or after > before
        first, last, dearest = tenths[0], tenths[-1], max(tenths)
        processor = f"{first.processor:,.0f}, {last.processor:,.0f}, {dearest.processor:,.0f} µs"
        medians = f"{first.median:,.0f}, {last.median:,.0f} µs"
        print(f"| {kind} | {asked:,} | {processor} | {medians} | {before}, {after} |", flush=True)
    return not grown


def main() -> int:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=sorted(KINDS), default=[*FENCES, *ASYNC_ADAPTERS], metavar="KIND")
    parser.add_argument("--asks", type=int, default=1_000_000)
    parser.add_argument("--minutes", type=float, default=60.0, help="for each kind at most")
    given = parser.parse_args()
    return 0 if run(given.only, given.asks, given.minutes) else 1


if __name__ == "__main__":
    sys.exit(main())
