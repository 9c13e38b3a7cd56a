"""Waiting for news: of all who wait for one name here, only the first in the queue asks Consul, for all of them.

It asks for one key, the one before its own, so that a release wakes one process and not all. Nobody behind it can be
served before something happens that it hears of too, and what it hears it tells the others.
"""

from __future__ import annotations

import bisect
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from leasehold.core.worlds import World
from leasehold.engines.consul_sessions import Place, Sessions
from leasehold.engines.key_queue import NameKeys
from leasehold.errors import EngineError
from leasehold.wires.consul import ConsulWire, Entry, News
from leasehold.wires.sockets import Bell

LONGEST_DOZE: Final = 5.0
"""After so long, who leaves the asking to another looks by itself: that one may have been interrupted."""
POLL: Final = 0.5
"""How often one looks who cannot be told, since all connections for waiting are in use."""
BREATHER: Final = 0.02
"""What a watch that ends at once, and brings nothing new, waits for before the next."""
NOTHING: Final[frozenset[bytes]] = frozenset()
"""One for all: an empty set takes as much memory as one that has something in it."""


class Waiter:
    """One attempt that waits, and what it has heard."""

    __slots__ = ("bell", "gone", "place", "rank", "settles_at", "woken")

    def __init__(self, place: Place, bell: Bell, settles_at: float) -> None:
        self.place, self.bell = place, bell
        self.settles_at: float | None = settles_at
        """When it will have waited for long enough to be worth some effort; None once it was made."""
        self.rank = 0
        """Where it stands among others."""
        self.gone = NOTHING
        self.woken = False

    def hear(self, asked_for: bytes | None, found: Sequence[Entry]) -> None:
        """These keys were found when one was asked for, or all of them (None)."""
        blockade, token = self.place.blockade, self.place.token
        if blockade is None or token is None:
            self.wake()
            return
        # One without a session is what remains of a lost lease; one that is younger is used again, by a later attempt.
        there = {one.key for one in found if one.lease and one.created <= token}
        self.gone |= (blockade.keys if asked_for is None else blockade.keys & {asked_for}) - there
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

    def __init__(self, wire: ConsulWire, sessions: Sessions, keys_of: Callable[[str], NameKeys]) -> None:
        self._wire, self._sessions, self._keys_of = wire, sessions, keys_of
        self._world: World = wire.world
        self._lock = threading.Lock()
        self._waiting: dict[bytes, list[Waiter]] = {}
        """By the folder of the name; the first in the queue stands first."""

    def _folder(self, waiter: Waiter) -> bytes:
        return self._keys_of(waiter.place.want.name).all[0]

    def enter(self, waiter: Waiter) -> None:
        """Stand among the others."""
        waiter.rank = waiter.place.token or 0
        with self._lock:
            waiting = self._waiting.setdefault(self._folder(waiter), [])
            bisect.insort(waiting, waiter, key=_rank)

    def leave(self, waiter: Waiter) -> None:
        """Let another one ask Consul."""
        folder = self._folder(waiter)
        with self._lock:
            waiting = self._waiting.get(folder, [])
            # They may be thousands.
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

    def leads(self, waiter: Waiter) -> bool:
        """Whether it is the one that asks Consul, for all of them."""
        with self._lock:
            waiting = self._waiting[self._folder(waiter)]
            # One that was interrupted before it could leave is not known any more, once it was cleared away.
            while waiting[0] is not waiter and self._is_over(waiting[0].place):
                del waiting[0]
            return waiting[0] is waiter

    def _is_over(self, place: Place) -> bool:
        return self._sessions.known(place.want.holder) is not place

    def news(self, waiter: Waiter, until: float, *, leads: bool) -> Awaitable[object]:
        """To be awaited: returns at `until`, or when there is something to think about."""
        if leads:
            return self._watch(waiter, until)
        return waiter.bell.wait(min(until, self._world.now() + LONGEST_DOZE))

    async def _watch(self, waiter: Waiter, until: float) -> None:
        """Ask Consul once; tell all whom the answer concerns."""
        folder, place, blockade = self._folder(waiter), waiter.place, waiter.place.blockade
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
            if self._world.now() >= until:
                return  # nor is it that there was none left to ask in
            await self._pause(POLL * (0.5 + self._world.chance()), until)
            waiter.wake()
            return
        self._tell(folder, None if target == folder else target, place, news)
        if waiter.woken or self._world.now() - since >= BREATHER:
            return
        # The one before moves to another session now and then. If it is looked at only later, it may be gone by then.
        if not any(one.key == target and one.modified > seen for one in news.entries):
            await self._pause(BREATHER * self._world.chance(), until)

    def _tell(self, folder: bytes, asked_for: bytes | None, place: Place, news: News) -> None:
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
            if asked_for is None or one.place.may_wait_for(asked_for):
                one.hear(asked_for, news.entries)

    async def _pause(self, seconds: float, until: float) -> None:
        await self._world.sleep(max(min(seconds, until - self._world.now()), 0.0))

    def forked(self) -> None:
        """In a forked child nobody waits yet."""
        self._lock, self._waiting = threading.Lock(), {}
