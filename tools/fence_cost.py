"""What each fence adds to a write: beside the same write, by the same client, without a fence.

    python tools/fence_cost.py                       # every way in: the tables of docs/fences-cost.md
    python tools/fence_cost.py --only redis trigger

Needs the servers of the tests (`tools/servers.py ensure`), which it starts in a temporary folder, and ends.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.fences.guards import Guard
from tests.fences.places import started
from tests.fences.registry import KINDS, opened

SLOW = {"s3": 5, "dynamodb": 5, "gcs": 5, "file": 2}
"""So many times fewer writes where each is slow."""


@contextlib.contextmanager
def guards(kinds: Sequence[str]) -> Iterator[dict[str, Guard]]:
    """One of each kind, with its server, all at the same time."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        addresses: dict[str, str] = {}
        opens: dict[str, Guard] = {}
        for number, kind in enumerate(kinds):
            place = KINDS[kind].place
            if place not in addresses:
                (Path(folder) / place).mkdir()
                addresses[place] = started(place, Path(folder) / place, stack)
            guard = opened(kind, addresses[place], f"cost{number}", patience=30)
            stack.callback(guard.close)
            opens[kind] = guard
        yield opens


def timed(write: Callable[[], object]) -> float:
    """In microseconds."""
    began = time.perf_counter_ns()
    write()
    return (time.perf_counter_ns() - began) / 1000


def compare(kinds: Sequence[str], writes: int, rounds: int) -> None:
    """One write with a fence and one without, in turn, over all kinds in turn."""
    token = 10**15
    taken: dict[str, tuple[list[float], list[float]]] = {kind: ([], []) for kind in kinds}
    with guards(kinds) as opens:
        for guard in opens.values():
            guard.write(token, "warm")
            guard.write_past("warm")
        for round_ in range(rounds + 1):  # the first is not counted
            for kind, guard in opens.items():
                for number in range(writes // SLOW.get(kind.split()[0], 1)):
                    token += 1
                    # Not the same text twice: a database may leave out a write that changes nothing.
                    fenced = timed(functools.partial(guard.write, token, f"fenced {number}"))
                    plain = timed(functools.partial(guard.write_past, f"plain {number}"))
                    if round_:
                        taken[kind][0].append(fenced)
                        taken[kind][1].append(plain)
    print("| fence | without | with | ratio |\n|---|---|---|---|")
    for kind, (fenced_all, plain_all) in taken.items():
        with_it, without = statistics.median(fenced_all), statistics.median(plain_all)
        print(f"| {kind} | {without:.0f} µs | {with_it:.0f} µs | {with_it / without:.1f} |")


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=sorted(KINDS), default=[*KINDS], metavar="KIND")
    parser.add_argument("--writes", type=int, default=100, help="of each kind in each round")
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    compare(given.only, given.writes, given.rounds)


if __name__ == "__main__":
    main()
