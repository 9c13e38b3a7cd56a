"""Whether a history of overlapping operations can be explained as one after the other.

An operation took effect at one moment between its beginning and its end; nobody knows when. The search looks for
moments that make sense to a model: a pure function from a state and an operation to the next state, or to None where
the operation could not have given its answer in that state. It is the search of Wing and Gong with the memory of Lowe:

- at any point, those operations may come next that began before the first end of all that are still to be placed;
- place one of them if the model allows it, and go on with the rest;
- where none fits, take back the last one and try its next rival;
- never go on twice from the same set of placed operations and the same state.

An operation that need not have taken effect (its outcome is unknown) has no end: it may be placed at any time after
its beginning, or never. The number of steps is bounded: the question is NP-complete, and "unknown" is an answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

State = TypeVar("State", bound=Hashable)
What = TypeVar("What")


@dataclass(frozen=True, slots=True)
class Operation(Generic[What]):
    """Something that took effect at one moment between its beginning and its end."""

    began: float
    ended: float
    """Infinite for one that may never have taken effect."""
    what: What


@dataclass(frozen=True, slots=True)
class Explained(Generic[What]):
    """The outcome of a search."""

    answer: bool | None
    """None: the search was given up."""
    steps: int
    order: tuple[What, ...] = ()
    """The longest beginning of an explanation: the whole of it, if there is one."""
    stuck: Operation[What] | None = None
    """The operation that ended before any explanation could place it."""


def explain(
    operations: Sequence[Operation[What]],
    first: State,
    step: Callable[[State, What], State | None],
    *,
    budget: int = 200_000,
) -> Explained[What]:
    """Look for an order in which all operations that ended make sense; give up after `budget` steps."""
    waiting = sorted(operations, key=lambda one: one.began)
    search = _Search(waiting, first, step)
    while not search.explained:
        if search.steps >= budget:
            return Explained(None, search.steps, search.longest, search.stuck)
        if not search.place_next() and not search.take_back():
            return Explained(False, search.steps, search.longest, search.stuck)
    return Explained(True, search.steps, tuple(waiting[index].what for index in search.placed))


class _Search(Generic[State, What]):
    """Where the search stands: what it has placed, and what it may still try."""

    def __init__(
        self,
        waiting: Sequence[Operation[What]],
        first: State,
        step: Callable[[State, What], State | None],
    ) -> None:
        self._waiting, self._step = waiting, step
        self._states = [first]
        self.placed: list[int] = []
        self._is_placed = bytearray(len(waiting))
        # Everything before it is placed: where the search begins to look.
        self._head = 0
        # Those that are placed beyond the head: with it, that says what is placed.
        self._ahead: frozenset[int] = frozenset()
        self._back: list[tuple[int, frozenset[int]]] = []
        self._seen: set[tuple[int, frozenset[int], State]] = set()
        self._try_from = 0
        self._must = sum(one.ended < math.inf for one in waiting)
        self._longest: list[int] = []
        self.stuck: Operation[What] | None = None
        self.steps = 0

    @property
    def explained(self) -> bool:
        """Whether all that must be placed is."""
        return self._must == 0

    @property
    def longest(self) -> tuple[What, ...]:
        """The longest sequence that made sense."""
        return tuple(self._waiting[index].what for index in self._longest)

    def place_next(self) -> bool:
        """Place one more operation: the next rival that the model allows, and that leads to a place not seen yet."""
        end, ending = math.inf, None
        for index in range(self._head, len(self._waiting)):
            one = self._waiting[index]
            if one.began > end:
                break
            if self._is_placed[index]:
                continue
            if one.ended < end:
                end, ending = one.ended, one
        for index in range(max(self._head, self._try_from), len(self._waiting)):
            one = self._waiting[index]
            if one.began > end:
                break
            if not self._is_placed[index] and self._place(index):
                return True
        if len(self.placed) >= len(self._longest):
            self._longest, self.stuck = self.placed[:], ending
        return False

    def _place(self, index: int) -> bool:
        self.steps += 1
        state = self._step(self._states[-1], self._waiting[index].what)
        if state is None:
            return False
        head, ahead = self._head, self._ahead
        if index == head:
            head += 1
            while head in ahead:
                head += 1
            ahead = frozenset(one for one in ahead if one > head)
        else:
            ahead |= {index}
        if (head, ahead, state) in self._seen:
            return False
        self._seen.add((head, ahead, state))
        self._back.append((self._head, self._ahead))
        self._head, self._ahead = head, ahead
        self.placed.append(index)
        self._is_placed[index] = 1
        self._states.append(state)
        self._must -= self._waiting[index].ended < math.inf
        self._try_from = 0
        return True

    def take_back(self) -> bool:
        """Take back the last one that was placed, so that its next rival is tried; False when there is none."""
        if not self.placed:
            return False
        index = self.placed.pop()
        self._states.pop()
        self._is_placed[index] = 0
        self._head, self._ahead = self._back.pop()
        self._must += self._waiting[index].ended < math.inf
        self._try_from = index + 1
        return True
