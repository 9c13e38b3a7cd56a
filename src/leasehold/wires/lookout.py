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
AGREED: Final = 0.0004
"""The same where a cluster answers, which has to agree on each change, and to log it, before it does."""
SKIPPED_AFTER_WAIT: Final = 8
MOST_SKIPPED: Final = 127
"""How many requests go by without looking, where looking was in vain again and again."""

_give_way: Callable[[], object] = getattr(os, "sched_yield", lambda: sleep(0))


def processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Lookout:
    """For the answers on one connection."""

    __slots__ = ("_arrived", "_moment", "_skips", "_to_skip")

    def __init__(self, arrived: Callable[[int], object], moment: float | None = None) -> None:
        """`arrived(0)` is true when there is something to read; look for a moment, or for so long, in seconds."""
        self._arrived, self._moment = arrived, MOMENT if moment is None else moment
        # With one processor, whoever is to answer waits until this one sleeps.
        self._skips = self._to_skip = 0 if processors() > 1 else MOST_SKIPPED

    def look(self, since: float) -> bool:
        """Return True when there is something to read; False a moment after `since`, when the request was about to go.

        False, too, where nobody looks this time.
        """
        if self._to_skip:
            self._to_skip -= 1
            return False
        arrived, ends = self._arrived, since + self._moment
        while monotonic() < ends:
            if arrived(0):
                self._skips = 0
                return True
            _give_way()
        # In vain: the server is far away, or other threads of this process are so busy that each look, which lets
        # one of them run, takes longer than to sleep would.
        self._to_skip = self._skips = min(2 * self._skips + 1, MOST_SKIPPED)
        return False

    def doze(self) -> None:
        """Somebody waits for a turn here: whose it is needs the processor more than one who looks for answers."""
        self._to_skip = max(self._to_skip, SKIPPED_AFTER_WAIT)
