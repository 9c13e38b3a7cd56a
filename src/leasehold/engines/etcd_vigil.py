"""Keeps alive the sessions that waiters hang on, in one thread: a thousand waiters are no more work than one.

The thread is started when somebody has waited for a while, and ends when nobody waits any more.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable
from typing import Final, Protocol

from leasehold.core.worlds import run_blocking
from leasehold.engines.etcd_requests import Requests
from leasehold.engines.etcd_sessions import Session
from leasehold.errors import EngineError

KEPT: Final = 1 / 3
"""A session that waiters hang on is kept alive whenever it has spent this share of its TTL."""
ONE_REQUEST: Final = 1 / 6
"""How much of the shortest TTL one request may take, for the sessions wait for each other here."""
LINGERS: Final = 1.0
"""The thread stays for so long after the last waiter, in seconds."""


class Listener(Protocol):
    """Who waits. It is told in the thread of the vigil."""

    def ended(self) -> None:
        """A session that it counts on has ended, or may have."""
        ...


class Vigil:
    """Keeps the sessions of waiting callers alive, and tells those who wait when one has ended."""

    def __init__(self, requests: Callable[[], Requests]) -> None:
        """`requests` opens the blocking way to the cluster."""
        self._requests = requests
        self._lock = threading.Lock()
        self._alarm = threading.Event()
        self._kept: dict[tuple[Session, ...], dict[Listener, None]] = {}
        """Who counts on which sessions. Many count on the same."""
        self._thread: threading.Thread | None = None

    def keep(self, sessions: tuple[Session, ...], listener: Listener) -> None:
        """Keep these sessions alive for the listener. Whatever comes of it, `leave` has to follow."""
        with self._lock:
            is_new = sessions not in self._kept
            self._kept.setdefault(sessions, {})[listener] = None
            self._see_to_it()
        if is_new:
            self._call()

    def leave(self, listener: Listener) -> None:
        """No session need be kept alive for the listener any more."""
        with self._lock:
            for sessions, listeners in list(self._kept.items()):
                listeners.pop(listener, None)
                if not listeners:
                    del self._kept[sessions]

    def _see_to_it(self) -> None:
        """Have somebody look after them; called with the lock held."""
        if self._thread is None or not self._thread.is_alive():  # one that was interrupted never started
            self._thread = threading.Thread(target=self._run, name="leasehold-etcd-sessions", daemon=True)
            self._thread.start()

    def _call(self) -> None:
        """There is something new to look after."""
        self._alarm.set()

    def _run(self) -> None:
        requests = self._requests()
        while True:
            look_at = run_blocking(self._look_after_all(requests))
            was_called = self._alarm.wait(max(look_at - requests.world.now(), 0.0))
            self._alarm.clear()
            with self._lock:
                if not was_called and not self._kept:
                    self._thread = None
                    return

    async def _look_after_all(self, requests: Requests) -> float:
        """Do what is due; returns when to look again."""
        with self._lock:
            kept = dict.fromkeys(itertools.chain.from_iterable(self._kept))
        shortest = min((session.ttl for session in kept), default=LINGERS)
        look_at = requests.world.now() + LINGERS
        for session in kept:
            now = requests.world.now()
            if session.over(now):
                self._tell_of_the_end(session)
                continue
            if now >= session.refresh_at(session.ttl * KEPT):
                session.claim(now)
                with contextlib.suppress(EngineError):  # tried again soon; and if it stays so, the session is over
                    await requests.refresh(session, now + shortest * ONE_REQUEST)
            look_at = min(look_at, session.refresh_at(session.ttl * KEPT))
        return look_at

    def _tell_of_the_end(self, session: Session) -> None:
        with self._lock:
            told = [one for sessions, listeners in self._kept.items() if session in sessions for one in listeners]
        for listener in told:
            listener.ended()
