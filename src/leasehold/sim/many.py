"""Many seeds: handed out over several processes, and how far they are while it lasts."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Final, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

T = TypeVar("T")
CHUNK: Final = 50
"""Seeds that are handed out at a time."""
CORES: Final = os.cpu_count() or 1
TELLS_EVERY: Final = 30.0
"""Seconds between two lines where there is no terminal to draw on."""
Tell = Callable[[int, int], None]
"""Called with how many histories are done, and how many violations were found."""


def spread(work: Callable[[range], T], seeds: range, jobs: int) -> Iterator[T]:
    """What `work` makes of all the seeds, some at a time, on so many processes; in any order."""
    chunks = [seeds[start : start + CHUNK] for start in range(0, len(seeds), CHUNK)]
    if min(jobs, len(chunks)) <= 1:
        yield from map(work, chunks)
        return
    # A fresh interpreter for each: forking a process that has threads is a gamble.
    with get_context("spawn").Pool(min(jobs, len(chunks))) as pool:
        yield from pool.imap_unordered(work, chunks)


def bar(console: Console) -> Progress:
    """A bar that is gone when it is over."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=console,
        transient=True,
    )


@contextmanager
def telling(total: int, console: Console) -> Iterator[Tell]:
    """Show how far it is: as a bar, or a line now and then where there is no terminal."""
    if not console.is_terminal:
        yield _in_lines(total)
        return
    with bar(console) as progress:
        task = progress.add_task("histories", total=total, note="")
        yield lambda done, violations: progress.update(
            task, completed=done, note=f"[red]{violations} violations" if violations else ""
        )


def _in_lines(total: int) -> Tell:
    began = said_at = time.monotonic()

    def tell(done: int, violations: int) -> None:
        nonlocal said_at
        now = time.monotonic()
        if now - said_at >= TELLS_EVERY:
            said_at = now
            rate = done / (now - began)
            sys.stderr.write(f"{done:,} of {total:,} histories, {rate:,.0f} a second, {violations:,} violations\n")
            sys.stderr.flush()

    return tell
