"""An owned partition in its owner's process: its lease, its queue, and what may be done with it when.

It is taken, warms, serves, drains and is given back. One item of it runs at a time, in the order of their arrival.
What was queued and not begun when it drains, or when its lease is lost, is handed back.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from leasehold.errors import Moved, QueueFull, quoted


class Tenure(Protocol):
    """What a partition needs to know of its lease."""

    @property
    def token(self) -> int:
        """The fencing token."""
        ...

    @property
    def lost(self) -> bool:
        """Whether it may no longer be held."""
        ...

    @property
    def remaining(self) -> float:
        """Seconds for which it may still be believed."""
        ...

    def check(self, need: float = 0.0) -> None:
        """Raise `LeaseLost` unless it may be believed."""
        ...


class Item:
    """Work to be done in its turn. Its future belongs to one world; here it is only told what came of it."""

    __slots__ = ("entity", "future", "work")

    def __init__(self, entity: str, work: Callable[[Writer], Any], future: Any) -> None:
        self.entity, self.work, self.future = entity, work, future

    def hand_back(self, error: Exception) -> None:
        """Say that it was not begun, or why it came to nothing."""
        if not self.future.done():
            self.future.set_exception(error)


class Owned:
    """One partition that this member owns."""

    def __init__(self, group: str, number: int, lease: Tenure, most_queued: int) -> None:
        self.group, self.number, self.lease, self._most_queued = group, number, lease, most_queued
        self.closing: str | None = None
        """Why it serves no longer; None as long as it does."""
        self.failed = False
        """Whether it could not be warmed."""
        self._queue: deque[Item] = deque()
        self._running = False
        self._lock = threading.Lock()

    @property
    def serves(self) -> bool:
        """Whether it is owned as far as its own clock can tell, and not being given up."""
        return self.closing is None and not self.lease.lost

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs and nothing is queued."""
        with self._lock:
            return not self._running and not self._queue

    def put(self, item: Item) -> bool:
        """Queue an item; True when somebody has to begin running the queue. Raises when it cannot be queued."""
        with self._lock:
            if not self.serves:
                raise self._moved(item.entity)
            if len(self._queue) >= self._most_queued:
                raise QueueFull(f"partition {self.number} of {self.group}", self._most_queued)
            self._queue.append(item)
            begins, self._running = not self._running, True
            return begins

    def next(self) -> Item | None:
        """The item to run now. None: whoever ran the queue is to stop."""
        if self.lease.lost:
            self.close("its lease was lost")
        with self._lock:
            while self._queue:
                item = self._queue.popleft()
                if not item.future.cancelled():
                    return item
            self._running = False
            return None

    def interrupted(self) -> bool:
        """Whoever ran the queue has stopped in the middle of it; True when somebody has to go on: it drains."""
        with self._lock:
            self._running = self.closing is not None and bool(self._queue)
            return self._running

    def close(self, why: str, last: Item | None = None) -> bool:
        """Serve no longer: hand back what is queued and not begun; `last` is run after what runs now, if not lost.

        True when somebody has to begin running the queue.
        """
        with self._lock:
            handed_back, self._queue = self._queue, deque()
            if self.closing is None:
                self.closing = why
                if last is not None and not self.lease.lost:
                    self._queue.append(last)
            begins = bool(self._queue) and not self._running
            self._running = self._running or begins
        for item in handed_back:
            item.hand_back(self._moved(item.entity))
        return begins

    def could_not_be_warmed(self) -> None:
        """Serve nothing: what would come after the warming must not run without it."""
        self.failed = True
        self.close("it could not be warmed")

    def _moved(self, entity: str) -> Moved:
        return Moved(self.group, entity, self.number, self.closing or "its lease was lost")

    def __repr__(self) -> str:
        state = "lost" if self.lease.lost else self.closing or "serves"
        return f"<Owned {self.number} of {quoted(self.group)} token={self.lease.token} {state}>"


class Writer:
    """The one who may write about an entity now. Hand it to a fence in place of a lease: it carries the token."""

    __slots__ = ("_owned", "entity")

    def __init__(self, owned: Owned, entity: str) -> None:
        self._owned, self.entity = owned, entity

    @property
    def partition(self) -> int:
        """The number of the partition."""
        return self._owned.number

    @property
    def token(self) -> int:
        """The fencing token: greater than that of every earlier owner of this partition."""
        return self._owned.lease.token

    @property
    def remaining(self) -> float:
        """Seconds until the lease runs out unless it is renewed."""
        return self._owned.lease.remaining

    @property
    def stopping(self) -> bool:
        """Whether the partition is to be given up, or is lost: what takes long should come to an end."""
        return not self._owned.serves

    def about(self, entity: str) -> Writer:
        """The writer of another entity of the same partition."""
        return Writer(self._owned, entity)

    def check(self, need: float = 0.0) -> None:
        """Raise `LeaseLost` unless the partition is still owned, as far as this process's clock can tell."""
        self._owned.lease.check(need)

    def __repr__(self) -> str:
        return f"<Writer {quoted(self.entity)} partition={self.partition} token={self.token}>"
