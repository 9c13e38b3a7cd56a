"""Asks each fence a million times: what it keeps must not grow, and the last asks must be as quick as the first.

    python tools/fence_million.py                                   # every fence, blocking and async
    python tools/fence_million.py --only redis "trigger asyncio"
    python tools/fence_million.py --asks 100000 --minutes 5         # fewer, or no more than that time for each

Each ask has a higher token than the one before. Of each tenth it tells the median, which a busy machine hardly moves,
and the mean, which also shows what happens rarely. Needs the servers of the tests (`tools/servers.py ensure`), which it
starts in a temporary folder, and ends. The table of docs/fences-cost.md was made by it.
"""

from __future__ import annotations

import argparse
import array
import functools
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
LEAST = 1_000


class Tenth(NamedTuple):
    """How long one ask took in a tenth of the run, in microseconds."""

    median: float
    mean: float

    def __str__(self) -> str:
        return f"{self.median:,.0f}, {self.mean:,.0f} µs"


def ask_of(kind: str, guard: Guard) -> Callable[[int], object]:
    """What asks it once. The trigger is asked by writes alone: an announcement goes past it, to its floor."""
    return functools.partial(guard.write, value="x") if kind.startswith("trigger") else guard.announce


def ask(once: Callable[[int], object], asks: int, minutes: float) -> tuple[list[Tenth], int]:
    """Ask, and return how long one ask took in each tenth, and how many asks there were."""
    tenths: list[Tenth] = []
    token, give_up_at = FIRST, time.monotonic() + 60 * minutes
    chunk = asks // CHUNKS
    while len(tenths) < CHUNKS:
        first, taken = token, array.array("d")
        began = time.perf_counter()
        share = time.monotonic() + (give_up_at - time.monotonic()) / (CHUNKS - len(tenths))
        while token < first + chunk and (time.monotonic() < share or token < first + LEAST // CHUNKS):
            token += 1
            once(token)
            ended = time.perf_counter()
            taken.append(ended - began)
            began = ended
        tenths.append(Tenth(statistics.median(taken) * 1e6, statistics.fmean(taken) * 1e6))
    return tenths, token - FIRST


def run(kinds: Sequence[str], asks: int, minutes: float) -> bool:
    """Print a row for each kind as soon as it is known; whether none of them keeps more than at first."""
    print("| fence | asks | first tenth: median, mean | last tenth | slowest tenth | kept at first, at last |")
    print("|---|---|---|---|---|---|", flush=True)
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
        times = " | ".join(str(tenth) for tenth in (tenths[0], tenths[-1], max(tenths)))
        print(f"| {kind} | {asked:,} | {times} | {before}, {after} |", flush=True)
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
