"""Asks each fence a million times: what it keeps must not grow, and the last asks must be as quick as the first.

    python tools/fence_million.py                                   # every fence, blocking and async
    python tools/fence_million.py --only redis "trigger asyncio"
    python tools/fence_million.py --asks 100000 --minutes 5         # fewer, or no more than that time for each

Each ask has a higher token than the one before. Needs the servers of the tests (`tools/servers.py ensure`), which it
starts in a temporary folder, and ends. The table of docs/fences-cost.md was made by it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

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


def ask(guard: Guard, asks: int, minutes: float) -> tuple[list[float], int]:
    """Ask, and return the microseconds of one ask in each tenth, and how many asks there were."""
    taken: list[float] = []
    token, give_up_at = FIRST, time.monotonic() + 60 * minutes
    chunk = asks // CHUNKS
    while len(taken) < CHUNKS:
        began, first = time.perf_counter(), token
        share = time.monotonic() + (give_up_at - time.monotonic()) / (CHUNKS - len(taken))
        while token < first + chunk and (time.monotonic() < share or token < first + LEAST // CHUNKS):
            token += 1
            guard.announce(token)
        taken.append((time.perf_counter() - began) / (token - first) * 1e6)
    assert guard.floor() == token, "the last one was heard"
    return taken, token - FIRST


def run(kinds: Sequence[str], asks: int, minutes: float) -> bool:
    """Print a row for each kind as soon as it is known; whether none of them keeps more than at first."""
    print("| fence | asks | first tenth | last tenth | slowest tenth | kept at first | kept at last |")
    print("|---|---|---|---|---|---|---|", flush=True)
    grown = False
    for kind in kinds:
        fewer = asks // 100 if KINDS[kind].place in SLOW else asks
        with guards([kind]) as opens:
            guard = opens[kind]
            guard.write(FIRST, "x")
            before = guard.floor_size()
            taken, asked = ask(guard, fewer, minutes)
            after = guard.floor_size()
        grown = grown or after > before
        times = f"{taken[0]:.0f} µs | {taken[-1]:.0f} µs | {max(taken):.0f} µs"
        print(f"| {kind} | {asked:,} | {times} | {before} | {after} |", flush=True)
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
