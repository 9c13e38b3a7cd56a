"""Who sits and who waits, followed from event to event, independently of the server's own table."""

from __future__ import annotations

from leasehold.sim.history import Freed, Granted, Queued, Unqueued
from leasehold.sim.record import Attempt

PROMPT = 0.25
"""Seconds in which a waiter that is woken in good weather is served, and one that gave up has left."""

ServerEvent = Granted | Freed | Queued | Unqueued


class Room:
    """The seats and the queue of one name."""

    __slots__ = ("_queue", "_ran_out", "_seats", "name", "servable", "servable_since")

    def __init__(self, name: str) -> None:
        self.name = name
        self._seats: list[str] = []
        self._queue: list[str] = []
        self._ran_out = False
        """Whether the latest seat to become free was not released."""
        self.servable: str | None = None
        """The head of the queue, while there is room for it."""
        self.servable_since = 0.0

    def next_in(self, event: ServerEvent, attempts: dict[str, Attempt]) -> str | None:
        """Who was servable until this event, if the event changes that."""
        before = self.servable
        return before if before is not None and before != self._after(event, attempts) else None

    def follow(self, event: ServerEvent, attempts: dict[str, Attempt]) -> None:
        """Take note of the event."""
        servable = self._after(event, attempts)
        self._seats, self._queue = self._moved(event)
        if isinstance(event, Freed):
            self._ran_out = event.how == "lapsed"
        if servable != self.servable:
            self.servable, self.servable_since = servable, event.at

    def _moved(self, event: ServerEvent) -> tuple[list[str], list[str]]:
        seats, queue, holder = list(self._seats), list(self._queue), event.holder
        if isinstance(event, Granted):
            seats.append(holder)
        elif isinstance(event, Queued):
            queue.append(holder)
        elif isinstance(event, Freed) and holder in seats:
            seats.remove(holder)
        if isinstance(event, Granted | Unqueued) and holder in queue:
            queue.remove(holder)
        return seats, queue

    def _after(self, event: ServerEvent, attempts: dict[str, Attempt]) -> str | None:
        seats, queue = self._moved(event)
        ran_out = event.how == "lapsed" if isinstance(event, Freed) else self._ran_out
        ghost = isinstance(event, Unqueued) and attempts[event.holder].answered + PROMPT < event.at
        if not queue or ran_out or ghost:
            return None
        head = attempts[queue[0]].began
        modes = [attempts[holder].began.mode for holder in seats]
        if not modes:
            return queue[0]
        if head.mode == "exclusive" or any(mode != head.mode for mode in modes):
            return None
        return queue[0] if head.mode == "shared" or len(seats) < head.limit else None
