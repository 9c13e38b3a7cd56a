"""Waiting for news: of all who wait for one name here, only the first in the queue asks Consul, for all of them.

It asks for one key, the one before its own, so that a release wakes one process and not all. Nobody behind it can be
served before something happens that it hears of too, and what it hears it tells the others.
"""

from __future__ import annotations

import bisect
import threading
from collections.abc import Sequence
from typing import Final

from leasehold.core.worlds import World
from leasehold.engines.consul_sessions import Place, Sessions
from leasehold.errors import EngineError
from leasehold.wires.consul import ConsulWire, Entry, News
from leasehold.wires.sockets import Bell

LONGEST_DOZE: Final = 5.0
"""After so long, who leaves the asking to another looks by itself: that one may have been interrupted."""
POLL: Final = 0.5
"""How often one looks who cannot be told, since all connections for waiting are in use."""
BREATHER: Final = 0.02
"""What a watch that ends at once, and brings nothing new, waits for before the next."""


class Waiter:
    """One attempt that waits, and what it has heard."""

    __slots__ = ("bell", "gone", "holder", "place", "rank", "woken")

    def __init__(self, holder: str, place: Place, bell: Bell) -> None:
        self.holder, self.place, self.bell = holder, place, bell
        self.rank = place.token or 0
        """Where it stands among others."""
        self.gone: set[bytes] = set()
        self.woken = False

    def hear(self, asked_for: frozenset[bytes] | None, found: Sequence[Entry]) -> None:
        """These keys were found when some were asked for, or all of them (None)."""
        blockade, token = self.place.blockade, self.place.token
        if blockade is None or token is None:
            self.wake()
            return
        # One without a session is what remains of a lost lease; one that is younger is used again, by a later attempt.
        there = {one.key for one in found if one.lease and one.created <= token}
        self.gone |= (blockade.keys if asked_for is None else blockade.keys & asked_for) - there
        if len(blockade.keys - self.gone) <= blockade.may_stay or (asked_for is None and self.place.key not in there):
            self.wake()

    def wake(self) -> None:
        """Let it look for itself."""
        self.woken = True
        self.bell.ring()


def _rank(waiter: Waiter) -> int:
    return waiter.rank


class Watches:
    """All who wait in one world."""

    def __init__(self, wire: ConsulWire, sessions: Sessions) -> None:
        self._wire, self._sessions = wire, sessions
        self._world: World = wire.world
        self._lock = threading.Lock()
        self._waiting: dict[bytes, list[Waiter]] = {}
        """By the folder of the name; the first in the queue stands first."""

    async def news(self, folder: bytes, holder: str, place: Place, until: float) -> bool:
        """Whether there is a reason to look again before `until`."""
        waiter = Waiter(holder, place, self._wire.bell())
        try:
            self._enter(folder, waiter)
            while not waiter.woken and (now := self._world.now()) < until:
                if self._leads(folder, waiter):
                    await self._watch(folder, waiter, until)
                else:
                    await waiter.bell.wait(min(until, now + LONGEST_DOZE))
            return waiter.woken
        finally:
            self._exit(folder, waiter)

    def _enter(self, folder: bytes, waiter: Waiter) -> None:
        with self._lock:
            waiting = self._waiting.setdefault(folder, [])
            bisect.insort(waiting, waiter, key=_rank)

    def _exit(self, folder: bytes, waiter: Waiter) -> None:
        with self._lock:
            waiting = self._waiting.get(folder, [])
            # They may be thousands, who come and go whenever their session is to be renewed.
            position = bisect.bisect_left(waiting, waiter.rank, key=_rank)
            while position < len(waiting) and waiting[position].rank == waiter.rank:
                if waiting[position] is waiter:
                    del waiting[position]
                    break
                position += 1
            if waiting:
                waiting[0].bell.ring()
            else:
                self._waiting.pop(folder, None)

    def _leads(self, folder: bytes, waiter: Waiter) -> bool:
        with self._lock:
            waiting = self._waiting[folder]
            # One that was interrupted before it could leave is not known any more, once it was cleared away.
            while waiting[0] is not waiter and self._sessions.known(waiting[0].holder) is not waiting[0].place:
                del waiting[0]
            return waiting[0] is waiter

    async def _watch(self, folder: bytes, waiter: Waiter, until: float) -> None:
        """Ask Consul once; tell all whom the answer concerns."""
        place, blockade = waiter.place, waiter.place.blockade
        if blockade is None:
            waiter.wake()
            return
        watched = blockade.keys - waiter.gone
        target = next(iter(watched)) if len(watched) == 1 else folder
        since, seen = self._world.now(), place.as_of
        try:
            news = await self._wire.watch(target, place.as_of, until)
        except EngineError:
            if self._world.now() >= until:
                return  # that time has passed without news is no news
            # It asks again, and meets the error there; but not at once, or an agent that is away would be hammered.
            await self._pause(0.1 + 0.2 * self._world.chance(), until)
            waiter.wake()
            return
        if news is None:
            await self._pause(POLL * (0.5 + self._world.chance()), until)
            waiter.wake()
            return
        self._tell(folder, None if target == folder else frozenset({target}), place, news)
        if waiter.woken or self._world.now() - since >= BREATHER:
            return
        # The one before moves to another session now and then. If it is looked at only later, it may be gone by then.
        if not any(one.key == target and one.modified > seen for one in news.entries):
            await self._pause(BREATHER * self._world.chance(), until)

    def _tell(self, folder: bytes, asked_for: frozenset[bytes] | None, place: Place, news: News) -> None:
        with self._lock:
            waiting = list(self._waiting.get(folder, ()))
        if news.as_of < place.as_of and not (asked_for and news.entries):
            # Consul was restored from a backup: what is remembered means nothing any more. (A single key that is there
            # comes with its own index, which is often the smaller one.)
            for one in waiting:
                one.wake()
            return
        place.as_of = max(place.as_of, news.as_of)
        for one in waiting:
            one.hear(asked_for, news.entries)

    async def _pause(self, seconds: float, until: float) -> None:
        await self._world.sleep(max(min(seconds, until - self._world.now()), 0.0))

    def forked(self) -> None:
        """In a forked child nobody waits yet."""
        self._lock, self._waiting = threading.Lock(), {}
