"""Looking out for an answer for a moment before the thread goes to sleep.

A server that is near answers within the time that it takes to put a thread to sleep, to wake it, and to fill the
caches of its processor again. So whoever has sent a request looks for the answer again and again, for a fraction of a
millisecond, and lets everybody else who wants the processor have it meanwhile. Where answers take longer it hardly ever
looks: after each time in vain, twice as many requests go by without.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from time import monotonic, sleep
from typing import Final

MOMENT: Final = 0.0002
"""For how long to look, in seconds: what it costs at most each time, in processor time that nobody else wanted."""
SKIPPED_AFTER_WAIT: Final = 8
MOST_SKIPPED: Final = 127
"""How many requests go by without looking, where looking was in vain again and again."""

_give_way: Callable[[], object] = getattr(os, "sched_yield", lambda: sleep(0))


def processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Lookout:
    """For the answers on one connection."""

    __slots__ = ("_arrived", "_skips", "_to_skip")

    def __init__(self, arrived: Callable[[int], object]) -> None:
        """`arrived(0)` is true when there is something to read."""
        self._arrived = arrived
        # With one processor, whoever is to answer waits until this one sleeps.
        self._skips = self._to_skip = 0 if processors() > 1 else MOST_SKIPPED

    def look(self, since: float) -> None:
        """Return when there is something to read, or a moment after `since`, when the request was about to be sent."""
        if self._to_skip:
            self._to_skip -= 1
            return
        arrived, ends = self._arrived, since + MOMENT
        while monotonic() < ends:
            if arrived(0):
                self._skips = 0
                return
            _give_way()
        # In vain: the server is far away, or other threads of this process are so busy that each look, which lets
        # one of them run, takes longer than to sleep would.
        self._to_skip = self._skips = min(2 * self._skips + 1, MOST_SKIPPED)

    def doze(self) -> None:
        """Somebody waits for a turn here: whose it is needs the processor more than one who looks for answers."""
        self._to_skip = max(self._to_skip, SKIPPED_AFTER_WAIT)
