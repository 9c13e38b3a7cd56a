"""Which names a person wants to see, and in which order."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, get_args

if TYPE_CHECKING:
    from leasehold.roster.book import Row

State = Literal["held", "overdue", "closed", "free"]
Order = Literal["attention", "name", "waiters", "left", "held"]
Only = Literal["all", "waited", "overdue"]
STATES: Final[tuple[State, ...]] = get_args(State)
ORDERS: Final[tuple[Order, ...]] = get_args(Order)
ONLY: Final[tuple[Only, ...]] = get_args(Only)


class Totals(NamedTuple):
    """How much there is, over all names that are known."""

    names: int
    unseen: int
    """Names that were listed but not looked at yet."""
    holders: int
    waiters: int
    waited_for: int
    """Names that somebody waits for."""
    overdue: int
    """Names with a lease whose renewal is late."""
    closed: int
    longest_wait: float
    least_left: float | None
    lost: int
    """Leases that were seen to run out unreleased."""


class Page(NamedTuple):
    """What a person sees of it."""

    rows: list[Row]
    matching: int
    """How many names there are to be seen, of which the rows are a part."""


@dataclass(frozen=True)
class View:
    """A wish: which names, in which order.

    A text is looked for anywhere in the name, in whatever case; with a ``*`` at its end it is how the name begins.

    >>> [View("EXPORT").shows_name("nightly-export"), View("export*").shows_name("nightly-export")]
    [True, False]
    """

    text: str = ""
    only: Only = "all"
    order: Order = "attention"

    def shows_name(self, name: str) -> bool:
        """Whether the text is in the name."""
        return _matches(self.text.casefold(), name)

    def page(self, rows: Iterable[Row], *, start: int = 0, limit: int) -> Page:
        """The rows from `start` on, `limit` at most. Dear is only what is shown: the rest is not sorted."""
        text = self.text.casefold()
        wanted = [row for row in rows if self._shows(row) and (not text or _matches(text, row.status.name))]
        first = heapq.nsmallest(start + limit, wanted, key=_KEYS[self.order])
        return Page(first[start:], len(wanted))

    def _shows(self, row: Row) -> bool:
        return self.only == "all" or (bool(row.status.waiters) if self.only == "waited" else row.overdue)


def _matches(text: str, name: str) -> bool:
    folded = name.casefold()
    return folded.startswith(text[:-1]) if text.endswith("*") else text in folded


def _attention(row: Row) -> tuple[object, ...]:
    """Waited for and late, then waited for, then late, then closed, then the rest by name."""
    waiters, overdue = len(row.status.waiters), row.overdue
    return (-min(waiters, 1), not overdue, -waiters, not row.status.closed_for, row.status.name)


def _time_left(row: Row) -> tuple[object, ...]:
    left = row.time_left
    return (left is None, left if left is None else row.seen + left, row.status.name)


def _held_for(row: Row) -> tuple[object, ...]:
    longest = max((one.held_for - row.seen for one in row.status.holders), default=None)
    return (longest is None, longest if longest is None else -longest, row.status.name)


_KEYS: Final[dict[Order, Callable[[Row], tuple[object, ...]]]] = {
    "attention": _attention,
    "name": lambda row: (row.status.name,),
    "waiters": lambda row: (-len(row.status.waiters), row.status.name),
    "left": _time_left,
    "held": _held_for,
}
