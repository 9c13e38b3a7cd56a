"""Requests about the nodes of a ZooKeeper ensemble, for fences: nothing here knows of leases."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Sequence
from typing import Final

from leasehold.core.worlds import run_blocking
from leasehold.errors import EngineError
from leasehold.wires import zookeeper_messages as messages
from leasehold.wires.zookeeper import AnyWire, AsyncWire, BlockingWire, Endpoints
from leasehold.wires.zookeeper_address import address_from_url, warn_of_transport
from leasehold.wires.zookeeper_errors import SessionOver, refusal
from leasehold.wires.zookeeper_messages import Reply, Request
from leasehold.wires.zookeeper_session import Session

ANSWERS_WITHIN: Final = 10.0
"""Seconds for requests that are sent together."""
SESSION: Final = 30.0
"""Nothing hangs on the session, and nobody keeps it alive: after a rest of so long a new one is begun."""
_EARLY: Final = SESSION / 3
"""So long before its session could be over, one that rested is left: a request must not meet its end."""
_CLOSES_WITHIN: Final = 0.5
_TRIES: Final = 3


class _Store:
    def __init__(self, url: str, world: type[BlockingWire | AsyncWire]) -> None:
        self._address = address_from_url(url)
        warn_of_transport(self._address, stacklevel=5)
        self._endpoints = Endpoints(self._address)
        self._wire: AnyWire = world(self._endpoints)
        self._session = self._new_session()
        self._lock = threading.Lock()
        self._process = os.getpid()

    @property
    def chroot(self) -> str:
        """The path below which everything is kept: empty, or beginning with a slash."""
        return self._address.chroot

    @property
    def permissions(self) -> bytes:
        """Who may use what is created: whoever is logged in, or everybody where nobody logs in."""
        return messages.OPEN if self._address.login is None else messages.CREATOR_ONLY

    def refused(self, error: int, asking: str) -> EngineError:
        """The error for a number that the ensemble sent."""
        return refusal(error, str(self._address), asking)

    def _new_session(self) -> Session:
        return Session(SESSION, SESSION, self._address.tick)

    async def _ask(self, requests: Sequence[Request]) -> list[Reply]:
        if os.getpid() != self._process:
            self._session.forked()
            self._endpoints.forked()
            self._process, self._lock = os.getpid(), threading.Lock()
        until = self._wire.world.now() + ANSWERS_WITHIN
        for _ in range(_TRIES - 1):
            session = self._current()
            try:
                return await self._wire.ask(session, requests, until)
            except SessionOver:  # nothing was carried out
                session.dead = True
        return await self._wire.ask(self._current(), requests, until)

    def _current(self) -> Session:
        with self._lock:
            if self._session.seems_over(self._wire.world.now() + _EARLY):
                self._session.end()
                self._session = self._new_session()
            return self._session

    async def _close(self) -> None:
        with contextlib.suppress(EngineError):  # then it lapses
            await self._wire.end(self._session, self._wire.world.now() + _CLOSES_WITHIN)
        self._session.hang_up("this client was closed")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._address}>"


class ZooKeeperStore(_Store):
    """For threads."""

    def __init__(self, url: str) -> None:
        """Nothing is sent yet."""
        super().__init__(url, BlockingWire)

    def ask(self, requests: Sequence[Request]) -> list[Reply]:
        """Send requests together, once, and return the reply to each; they are carried out in this order."""
        return run_blocking(self._ask(requests))

    def close(self) -> None:
        """End the session; the next request begins one anew."""
        run_blocking(self._close())


class AsyncZooKeeperStore(_Store):
    """For the tasks of one event loop."""

    def __init__(self, url: str) -> None:
        """Nothing is sent yet."""
        super().__init__(url, AsyncWire)

    async def ask(self, requests: Sequence[Request]) -> list[Reply]:
        """Send requests together, once, and return the reply to each; they are carried out in this order."""
        return await self._ask(requests)

    async def close(self) -> None:
        """End the session; the next request begins one anew."""
        await self._close()
