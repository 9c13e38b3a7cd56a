"""Keeps private servers off the processor of whoever measures them.

On one machine the system sometimes lets the server run on the very processor that asks, and sometimes on another one.
Which it is may change from round to round, and with it every figure, by a factor of two or three. Apart is how it is
where the server is another machine, so that is what is measured.
"""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path


@contextlib.contextmanager
def apart() -> Iterator[bool]:
    """Keep this thread on one processor, and all processes that this one has started on the others.

    Yields whether that is done: it takes two processors, and a system that lets processes be kept on some of them.
    """
    everywhere = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    if len(everywhere) < 2:
        yield False
        return
    here = {min(everywhere)}
    try:
        _keep_on(everywhere - here, _descendants())
        os.sched_setaffinity(0, here)
        yield True
    finally:
        os.sched_setaffinity(0, everywhere)
        _keep_on(everywhere, _descendants())


def _keep_on(processors: Iterable[int], processes: Iterable[int]) -> None:
    """Every thread of them. One that has ended meanwhile needs no processor."""
    for process in processes:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for thread in Path(f"/proc/{process}/task").iterdir():
                with contextlib.suppress(ProcessLookupError):
                    os.sched_setaffinity(int(thread.name), processors)


def _descendants() -> list[int]:
    """The processes that this one has started, and those that they have."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                # Its name, in brackets, may hold anything; the parent is the second word behind it.
                _, _, words = (entry / "stat").read_text(errors="replace").rpartition(")")
                children[int(words.split()[1])].append(int(entry.name))
    found = list(children[os.getpid()])
    for process in found:
        found += children[process]
    return found
