"""Labels with a bound: the names of locks are many, the time series of a metric must be few.

>>> group = Groups()
>>> group("account/42"), group("account/43"), group("nightly-export")
('account', 'account', 'nightly-export')
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from leasehold.errors import Misuse, quoted

MOST_GROUPS: Final = 100
OTHER: Final = "(other)"
"""The group of all names for which there was no room."""
_LONGEST: Final = 64
_SEPARATOR: Final = re.compile(r"[/:|#\s]")


def first_part(name: str) -> str:
    """The name up to its first ``/``, ``:``, ``|``, ``#`` or blank: what it is about, without which one of them."""
    return _SEPARATOR.split(name.strip("/:|# "), maxsplit=1)[0]


class Groups:
    """From a name to the label under which it is counted; never more than `most` different ones."""

    def __init__(self, of: Callable[[str], str] = first_part, *, most: int = MOST_GROUPS) -> None:
        """`of` makes a group of a name, by default the part before the first separator."""
        if not callable(of):
            raise Misuse(f"a group is made by a function that takes a name, not by {quoted(of)}")
        if type(most) is not int or not 1 <= most <= 10_000:
            raise Misuse(f"the number of groups is an int from 1 to 10000, not {quoted(most)}")
        self._of, self._most = of, most
        self._known: set[str] = set()

    def __call__(self, name: str) -> str:
        """The group of a name."""
        group = str(self._of(name))[:_LONGEST]
        if group not in self._known:
            if len(self._known) >= self._most:
                return OTHER
            self._known.add(group)
        return group
