"""How those who serve an inbox learn that a message has come, and how often they look when nobody tells them."""

from __future__ import annotations

import contextlib
import select
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

from leasehold.keeping import log

Ring = Callable[[], object]
LISTEN_FOR: Final = 0.2
"""Seconds after which somebody who listens looks whether it is to stop."""
LISTEN_AGAIN: Final = 1.0
"""Seconds until it is tried again to listen, after that has failed."""
SHORTEST_PAUSE: Final = 0.01


class Bell:
    """Rings for all who listen in this process."""

    def __init__(self) -> None:
        self._rings: tuple[Ring, ...] = ()
        self._changing = threading.Lock()

    def ring(self) -> None:
        """Something has come."""
        for ring in self._rings:
            ring()

    @contextlib.contextmanager
    def heard(self, ring: Ring) -> Iterator[None]:
        """Call `ring` for each ring of the bell, for as long as the block."""
        with self._changing:
            self._rings = (*self._rings, ring)
        try:
            yield
        finally:
            with self._changing:
                self._rings = tuple(one for one in self._rings if one is not ring)


class Listening(Protocol):
    """An inbox that tells when something has come."""

    def listen(self, ring: Ring, over: threading.Event) -> None:
        """Call `ring` when messages have come, until `over` is set."""
        ...


class Ear:
    """Listens to an inbox in a thread of its own."""

    def __init__(self, inbox: Listening, ring: Ring) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(
            target=inbox.listen, args=(ring, self._over), name="leasehold-inbox", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Listen no more."""
        self._over.set()
        self._thread.join()


def keep_listening(hear: Callable[[], object], over: threading.Event) -> None:
    """Call what listens again and again: without it messages are found a little later, and not lost."""
    while not over.is_set():
        try:
            hear()
        except Exception as error:  # noqa: BLE001 - whatever the driver calls it: the slow look behind it goes on
            log().info("nobody wakes those who serve the inbox for now: %s: %s", type(error).__name__, error)
            over.wait(LISTEN_AGAIN)


def hear_postgres(connection: Any, channel: str, ring: Ring, over: threading.Event) -> None:
    """Ring for each notification, on a connection of psycopg or psycopg2 in autocommit mode."""
    with connection.cursor() as cursor:
        cursor.execute(f'LISTEN "{channel}"')
    ring()  # for what came before this
    while not over.is_set():
        if callable(connection.notifies):
            for _ in connection.notifies(timeout=LISTEN_FOR, stop_after=1):
                ring()
        elif select.select([connection], [], [], LISTEN_FOR)[0]:
            connection.poll()
            connection.notifies.clear()
            ring()


class Rounds:
    """Which partitions are handed to the handler now, and how long to pause when there is nothing to do.

    The pause doubles from `SHORTEST_PAUSE` to `every` while nothing comes; a ring of the bell ends it.
    """

    def __init__(self, every: float, look_at: Callable[[Any], float]) -> None:
        """`look_at` says of a future that has ended for how long its partition is to rest, or raises."""
        self._every, self._look_at = every, look_at
        self._feeding: dict[int, Any] = {}
        self._rests_until: dict[int, float] = {}
        self._pause = SHORTEST_PAUSE

    def wanted(self, waiting: list[int]) -> list[int]:
        """Of the partitions that have messages, those that nobody is at and that do not rest."""
        now = time.monotonic()
        self._rests_until = {one: until for one, until in self._rests_until.items() if until > now}
        for partition in [one for one, future in self._feeding.items() if future.done()]:
            rest = self._look_at(self._feeding.pop(partition))
            if rest:
                self._rests_until[partition] = now + rest
        return [one for one in waiting if one not in self._feeding and one not in self._rests_until]

    def begin(self, partition: int, future: Any) -> None:
        """Somebody is at this partition until the future has ended."""
        self._feeding[partition] = future

    def pause(self) -> float:
        """How long to pause before the next look."""
        now = time.monotonic()
        pause, self._pause = self._pause, min(self._pause * 2, self._every)
        return max(min([pause, *(until - now for until in self._rests_until.values())]), SHORTEST_PAUSE)

    def rung(self) -> None:
        """Something has come: look soon, and often."""
        self._pause = SHORTEST_PAUSE

    @staticmethod
    def has_gone_well(future: Any) -> bool:
        """Whether there may be more to do in the partition at once: not where it was refused, or is to rest."""
        return not future.cancelled() and future.exception() is None and not future.result()
