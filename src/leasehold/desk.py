"""What a client's locks share: the engine of their world, the keeper, and who asks."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from leasehold import watching
from leasehold.contention import Crowds
from leasehold.core.acquire import Attempt, Room, acquire
from leasehold.core.engine import Engine, EngineFamily, Purpose
from leasehold.core.held import RELEASED, Held
from leasehold.core.several import acquire_several
from leasehold.errors import LeaseholdError, Misuse, TooManyWaiters
from leasehold.keeping import KeeperThread
from leasehold.lease import LeaseView
from leasehold.settings import Terms, host_name

L = TypeVar("L", bound=LeaseView)
MakeLease = Callable[[Held, Engine, KeeperThread, float], L]


def not_sent() -> NoReturn:
    """Refuse to be pickled: connections and a keeper cannot go along, and a password must not."""
    raise Misuse("a client and its locks belong to their process and cannot be pickled; open a client over there")


class Desk:
    """Shared by all locks of one client; knows nothing of the world it is in but its engine."""

    def __init__(
        self, family: EngineFamily, engine: Engine, *, label: str, request_timeout: float, most_waiters: int
    ) -> None:
        self.family, self.engine, self.request_timeout = family, engine, request_timeout
        self._room = self._new_room()
        self.keeper = KeeperThread(family)
        # By thread or task (not by its number, which the system gives to a later one) and by name.
        self.reentrant: weakref.WeakKeyDictionary[object, weakref.WeakValueDictionary[str, Any]]
        self.reentrant = weakref.WeakKeyDictionary()
        self._label, self._most_waiters = label, most_waiters
        self._purposes_checked: set[Purpose] = {"efficiency"}
        self._waiting: set[Attempt] = set()
        self._crowds = Crowds()
        self.about = self._who()

    def __reduce__(self) -> NoReturn:
        not_sent()

    def _who(self) -> str:
        return f"{self._label}@{host_name()}:{os.getpid()}"

    def _new_room(self) -> Room | None:
        """What lets in a few callers at a time; threads are few anyway."""
        return None

    def attempt(self, terms: Terms) -> Attempt:
        """A fresh attempt, with a holder that nobody else has."""
        return Attempt(terms.want(self.engine.world.nonce(), self.about))

    async def hold(self, terms: Terms, attempt: Attempt, wait: float, make: MakeLease[L]) -> L:
        """Acquire one name, and have the keeper watch over it."""
        if terms.purpose not in self._purposes_checked:
            await self._check_purpose(terms.purpose)
        try:
            if wait:
                if len(self._waiting) >= self._most_waiters:
                    raise self._too_many()
                self._waiting.add(attempt)
            held = await acquire(self.engine, attempt, wait=wait, request_timeout=self.request_timeout, room=self._room)
            lease = self._kept(held, terms, make)
        except LeaseholdError as error:
            self._note_failure([attempt], error)
            raise
        finally:
            if wait:
                self._waiting.discard(attempt)
        if attempt.waiting is not None or watching.watchers:
            self._note_grant(held, attempt)
        return lease

    def _too_many(self) -> TooManyWaiters:
        return TooManyWaiters(
            f"{self._most_waiters} callers of this client already wait for a lock; "
            "shed load, or raise most_waiters if that many waiters are meant"
        )

    async def hold_several(
        self, terms: dict[str, Terms], attempts: list[Attempt], wait: float, make: MakeLease[L]
    ) -> list[L]:
        """Acquire several names, all or nothing."""
        purpose = next(iter(terms.values())).purpose
        if purpose not in self._purposes_checked:
            await self._check_purpose(purpose)
        leases: list[L] = []
        by_holder = {attempt.want.holder: attempt for attempt in attempts}

        def keep(held: Held) -> None:
            leases.append(self._kept(held, terms[held.want.name], make))
            self._note_grant(held, by_holder.pop(held.want.holder))

        try:
            await acquire_several(
                self.engine, attempts, wait=wait, request_timeout=self.request_timeout, keep=keep, room=self._room
            )
        except BaseException as error:
            for lease in leases:
                if self.keeper.forget(lease._held) and watching.watchers:
                    watching.ended(self.engine.facts, lease._held)
            if isinstance(error, LeaseholdError):
                self._note_failure([one for one in by_holder.values() if one.exposed or one.waiting], error)
            raise
        return leases

    def _note_grant(self, held: Held, attempt: Attempt) -> None:
        if attempt.waiting is not None and attempt.waiting.contended:
            self._count_wait(attempt, held.world.now())
        if watching.watchers:
            watching.granted(self.engine.facts, held, attempt.waiting)

    def _note_failure(self, attempts: list[Attempt], error: LeaseholdError) -> None:
        for attempt in attempts:
            waiting, now = attempt.waiting, self.engine.world.now()
            contended = waiting is not None and waiting.contended
            if contended:
                self._count_wait(attempt, now)
            if watching.watchers:
                waited = now - waiting.began if waiting is not None else 0.0
                watching.not_granted(self.engine.facts, attempt.want, waited, contended, error)

    def _count_wait(self, attempt: Attempt, now: float) -> None:
        """Say so when callers spend much of their time in the queue for one name."""
        if attempt.waiting is None:
            return
        crowd = self._crowds.waited(attempt.want.name, now - attempt.waiting.began, now)
        if crowd is not None:
            watching.crowded(self.engine.facts, attempt.want, crowd, now)

    @property
    def waiting(self) -> int:
        """How many callers wait now."""
        return len(self._waiting)

    async def _check_purpose(self, purpose: Purpose) -> None:
        await self.engine.check_purpose(purpose, until=self.engine.world.now() + self.request_timeout)
        self._purposes_checked.add(purpose)

    def _kept(self, held: Held, terms: Terms, make: MakeLease[L]) -> L:
        if terms.longest_hold is not None:
            held.limit_hold(terms.longest_hold)
        lease = make(held, self.engine, self.keeper, self.request_timeout)
        # The keeper must not keep alive, by renewing it, a lease that nobody can reach any more.
        held.owner = weakref.ref(lease)
        if callable(terms.on_lost):
            lease.on_lost(terms.on_lost)
        self.keeper.keep(held, renewed=terms.renew)
        return lease

    def abandon(self, attempts: list[Attempt]) -> list[threading.Event]:
        """Give back, in the background, what interrupted attempts may have left; the events tell when it is done."""
        exposed = {attempt.want.holder: attempt.want for attempt in attempts if attempt.exposed}
        if not exposed:
            return []
        for held in self.keeper.leases:
            if held.want.holder in exposed:
                held.end(RELEASED)
                if self.keeper.forget(held) and watching.watchers:
                    watching.ended(self.engine.facts, held)
        return [self.keeper.abandon(want) for want in exposed.values()]

    def forked(self) -> None:
        """In a forked child: own nothing of the parent's."""
        self.engine.forked()
        self.keeper.forked()
        self.reentrant.clear()
        self._waiting.clear()
        self._room = self._new_room()
        self.about = self._who()


class AsyncDesk(Desk):
    """For tasks, of which there may be thousands."""

    def _new_room(self) -> Room | None:
        facts = self.engine.facts
        if facts.takes_at_once is None:
            return None
        from leasehold.wires.room import AsyncRoom

        return AsyncRoom(self.engine.world, facts.engine, facts.takes_at_once)
