"""Who sits and who waits, followed from event to event, independently of the server's own table."""

from __future__ import annotations

from leasehold.sim.history import Freed, Granted, Queued, Unqueued
from leasehold.sim.record import Attempt

PROMPT = 0.25
"""Seconds in which a waiter that is woken in good weather is served, and one that gave up has left."""

ServerEvent = Granted | Freed | Queued | Unqueued


def passes_on(event: ServerEvent, attempts: dict[str, Attempt]) -> bool | None:
    """Whether the event wakes the next in the queue: True, False if it should have but cannot, None if it need not.

    A lease that runs out, and a place that outlives its waiter, are found to be over by somebody else's request.
    """
    if isinstance(event, Freed):
        return event.how != "lapsed"
    if isinstance(event, Unqueued) and attempts[event.holder].answered + PROMPT < event.at:
        return False
    return True if isinstance(event, Granted) else None


class Room:
    """The seats and the queue of one name."""

    __slots__ = ("_closes", "_queue", "_seats", "servable", "servable_since", "woken")

    def __init__(self, *, closes: bool) -> None:
        """`closes`: a lock-delay may keep the name closed, from the first lease on that runs out."""
        self._closes = closes
        self._seats: list[str] = []
        self._queue: list[str] = []
        self.woken = True
        """Whether the head of the queue was woken when there came to be room for it."""
        self.servable: str | None = None
        """The head of the queue, while there is room for it and it knows."""
        self.servable_since = 0.0

    def follow(self, event: ServerEvent, attempts: dict[str, Attempt]) -> tuple[str, float] | None:
        """Take note of the event; returns who was servable until now and since when, if the event changes that."""
        before, since = self.servable, self.servable_since
        self._move(event)
        passed_on = passes_on(event, attempts)
        if passed_on is not None:
            self.woken = passed_on and (self.woken or not self._closes)
        servable = self._head(attempts) if self.woken else None
        if servable == before:
            return None
        self.servable, self.servable_since = servable, event.at
        return None if before is None else (before, since)

    def ahead_of(self, holder: str) -> list[str]:
        """Who is in the queue before this one, or before anybody who is not in it."""
        return self._queue[: self._queue.index(holder)] if holder in self._queue else list(self._queue)

    def _move(self, event: ServerEvent) -> None:
        holder = event.holder
        if isinstance(event, Granted):
            self._seats.append(holder)
        elif isinstance(event, Queued):
            self._queue.append(holder)
        elif isinstance(event, Freed) and holder in self._seats:
            self._seats.remove(holder)
        if isinstance(event, Granted | Unqueued) and holder in self._queue:
            self._queue.remove(holder)

    def _head(self, attempts: dict[str, Attempt]) -> str | None:
        """The head of the queue, if there is room for it."""
        if not self._queue:
            return None
        head = attempts[self._queue[0]].began
        modes = [attempts[holder].began.mode for holder in self._seats]
        if not modes:
            return self._queue[0]
        if head.mode == "exclusive" or any(mode != head.mode for mode in modes):
            return None
        return self._queue[0] if head.mode == "shared" or len(modes) < head.limit else None
