"""Who of a long queue holds the name, told in one pass: for those who look at it, not for those who stand in it.

>>> line = Line()
>>> [line.lets_in(mode, 2) for mode in ("shared", "shared", "exclusive", "shared")]
[True, True, False, False]
"""

from __future__ import annotations

from collections import Counter

from leasehold.core.engine import Mode


class Line:
    """Those who came so far, counted by what they want."""

    def __init__(self) -> None:
        self._before: Counter[Mode | None] = Counter()

    def lets_in(self, mode: Mode | None, limit: int) -> bool:
        """Whether the next one holds the name, given all before it; None: nobody can tell what it wants."""
        others = self._before.total() - (self._before[mode] if mode != "exclusive" else 0)
        held = mode is not None and not others and (mode != "permit" or self._before[mode] < limit)
        self._before[mode] += 1
        return held
