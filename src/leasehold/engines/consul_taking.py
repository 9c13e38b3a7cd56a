"""Taking a name on Consul: at once, in a queue, and from the queue.

An attempt writes a key and sees, in the same transaction, which keys were there before its own; if none, it holds the
name. Keys are only ever added behind, so whoever is before it can only leave. A key that is there without a session is
what remains of a lost lease with a lock-delay: Consul refuses to lock it until the delay is over, and then the next one
locks and deletes it.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Sequence
from typing import Final

from leasehold.core.engine import Busy, Grant, Incumbent, Want
from leasehold.core.worlds import World
from leasehold.engines import key_queue as layout
from leasehold.engines.about import about_in, value_of
from leasehold.engines.consul_requests import FRESH, Requests
from leasehold.engines.consul_sessions import Place, Session, Sessions
from leasehold.errors import EngineError, EngineUnavailable, Misuse, OutcomeUnknown
from leasehold.wires.consul import (
    ConsulWire,
    Entry,
    Refused,
    deleting,
    getting,
    getting_all,
    if_on,
    locking,
    unlocking,
)
from leasehold.wires.consul_errors import Denied, SessionGone

SILENCE: Final = 30.0
"""A waiter asks again after so long even without news."""
CLOSED: Final = 0.25
"""After how long to look again whether a lock-delay is over, which nobody is told; in seconds."""
LONGEST_DELAY: Final = 60.0
"""Consul's own limit of a lock-delay."""
SPENT: Final = 1 / 2
"""A session is renewed first if it has spent this share of its TTL when it is somebody's turn."""
TRIES: Final = 4
"""How often to begin anew: Consul may have ended all three sessions that an attempt can meet; each is found in turn."""


class Attempt:
    """One request to take: who wants what, its place, and the keys of the name."""

    __slots__ = ("keys", "patience", "place", "until", "want")

    def __init__(self, want: Want, place: Place, keys: layout.NameKeys, patience: float | None, until: float) -> None:
        self.want, self.place, self.keys, self.patience, self.until = want, place, keys, patience, until

    def value_on(self, session: Session) -> bytes:
        """What the key says to people; a lock-delay only while it hangs on a session that has one."""
        want, delay = self.want, session.terms.delay
        if want.delay != delay:
            want = want._replace(delay=delay)
        return value_of(want, time.time(), self.patience, with_mode=True)

    def judge(self, found: Sequence[Entry], as_of: int) -> list[Entry] | None:
        """Take note of what is before one's own key; returns the remains of lost leases among that.

        None: the key is not there (any more).
        """
        place, own = self.place, next((one for one in found if one.key == self.place.key), None)
        if own is None or not own.lease or (place.token is not None and own.created != place.token):
            place.token = place.blockade = None
            return None
        place.token, place.modified, place.as_of = own.created, own.modified, as_of
        if len(found) == 1:  # it is alone
            place.incumbent = place.blockade = None
            return []
        before = sorted((one for one in found if one.created < own.created), key=lambda one: one.created)
        place.incumbent = before[0] if before else None
        place.blockade = layout.blockade(self.want.mode, self.want.limit, [one for one in before if one.lease])
        return [one for one in before if not one.lease]

    def judge_written(self, found: Sequence[Entry]) -> list[Entry] | None:
        """The same, for what a transaction of one's own has found, which does not say as of which index."""
        return self.judge(found, max((one.modified for one in found), default=0))

    def busy(self, ask_again: float = SILENCE) -> Busy:
        """The answer to one who has to wait. How often the incumbent was renewed cannot be seen."""
        oldest = self.place.incumbent
        if oldest is None:
            return Busy(ask_again, None)
        return Busy(ask_again, _incumbent(oldest.created, oldest.value))


@functools.lru_cache(maxsize=64)
def _incumbent(token: int, value: bytes) -> Incumbent:
    """Who stands in the way, the same object for all who wait for it: there may be thousands."""
    return Incumbent(token, 0, math.inf, about_in(value).about)


class Taking:
    """How names are taken, in one world."""

    def __init__(
        self, wire: ConsulWire, requests: Requests, sessions: Sessions, keys_of: Callable[[str], layout.NameKeys]
    ) -> None:
        self._wire, self._requests, self._sessions, self._keys_of = wire, requests, sessions, keys_of
        self._world: World = wire.world

    async def take(self, want: Want, patience: float | None, until: float) -> Grant | Busy:
        """Take the name, or say why not; with patience, queue."""
        if want.delay > LONGEST_DELAY:
            raise Misuse(f"Consul keeps a name closed for {LONGEST_DELAY:g} s at most; lock_delay is {want.delay:g} s")
        is_new = self._sessions.known(want.holder) is None
        for tries_left in reversed(range(TRIES)):
            keys = self._keys_of(want.name)
            place = self._sessions.place_for(want, keys, self._world.now())
            attempt = Attempt(want, place, keys, patience, until)
            try:
                return await self._take(attempt)
            except SessionGone as error:
                for session in dict.fromkeys((place.home, place.session)):
                    if session.id is not None and not session.dead:
                        await self._requests.keep_alive(session, until)  # which finds out whether this one is gone
                if not tries_left:
                    raise EngineUnavailable(str(error)) from None
            except (EngineUnavailable, Denied) as error:
                if place.uncertain or place.token is not None:  # there may be something to give back
                    raise OutcomeUnknown(str(error)) if isinstance(error, EngineUnavailable) else error from None
                if is_new:
                    self._sessions.forget(want.holder)
                raise
        raise AssertionError("the last try returns or raises")

    async def _take(self, attempt: Attempt) -> Grant | Busy:
        place = attempt.place
        while True:
            remains: list[Entry] | None = None
            if place.token is not None:
                if await self._stands_still(attempt):
                    return attempt.busy()
                remains = await self._look(attempt)
            if remains is None:
                ahead = self._sessions.latest_in_line(place.kind)
                if ahead is not None and await self._follow(attempt, ahead):
                    return attempt.busy()
                remains = await self._join(attempt)
            if place.blockade is None and (not remains or await self._open(attempt, remains)):
                if place.token is not None and await self._claim(attempt):
                    place.waits = False
                    return Grant(place.token, since=place.session.confirmed_at)
                continue  # its key was gone
            place.waits = True
            busy = attempt.busy() if place.blockade is not None else attempt.busy(CLOSED)
            if attempt.patience is None:
                await self._leave(attempt)
            elif place.blockade is not None:
                self._sessions.joined(place)
            return busy

    async def _join(self, attempt: Attempt) -> list[Entry]:
        """Write the key, behind all that are there; one that is there already keeps its place."""
        place = attempt.place
        place.patient_until = self._world.now() + (attempt.patience or 0.0)
        session = await self._requests.confirm(place.session, attempt.until)
        operations = [locking(place.key, session, attempt.value_on(place.session)), getting_all(attempt.keys.all[0])]
        outcome = await self._requests.change(place, operations, attempt.until, unread=1)
        if isinstance(outcome, Refused) and outcome.for_delay:
            # An earlier request of this attempt was granted, and its session ended before anybody heard of it.
            raise SessionGone("consul has ended the session of a lease with a lock-delay")
        if isinstance(outcome, Refused):
            raise EngineError(f"consul does not let a key be locked that nobody else uses: {outcome.why}")
        remains = attempt.judge_written(outcome)
        if remains is None:
            raise EngineError("consul does not show the key that it has just written")
        return remains

    async def _follow(self, attempt: Attempt, ahead: Place) -> bool:
        """Join the queue behind another of this client, whose turn comes first, whoever else waits; if that is sure.

        To list the queue is work that grows with it: of thousands who came at once, and all listed it, most did not
        even come to wait. Whoever is woken still does, before it takes it that its turn has come.
        """
        place, oldest = attempt.place, ahead.incumbent
        was_there = (
            place.uncertain or place.modified > 0
        )  # then its key may hang elsewhere, or be what remains of a loss
        if attempt.patience is None or attempt.want.mode != "exclusive" or was_there or oldest is None:
            return False
        place.patient_until = self._world.now() + attempt.patience
        session = self._sessions.waiting_for(place, self._world.now()) or place.session
        await self._requests.confirm(session, attempt.until)
        if session is not place.session:  # before anything is sent: its key may come to hang there whenever it arrives
            self._sessions.move(place, session)
        own = locking(place.key, session.id or "", attempt.value_on(session))
        others = [if_on(ahead.key, ahead.session.id or ""), if_on(oldest.key, oldest.lease)]
        outcome = await self._requests.change(place, [own, *others], attempt.until)
        if isinstance(outcome, Refused):  # one of them has left, or moves to another session just now
            return False
        found = {one.key: one for one in outcome}
        ours, other, holder = found.get(place.key), found.get(ahead.key), found.get(oldest.key)
        if ours is None or other is None or holder is None or not ours.lease or other.created >= ours.created:
            raise EngineError("consul does not show the keys that it has just seen")
        if holder.created != oldest.created:  # it has left, and its slot was used again
            return False
        place.token, place.modified, place.as_of = ours.created, ours.modified, ours.modified
        place.blockade, place.incumbent, place.waits = layout.Blockade(frozenset((ahead.key,)), 0), oldest, True
        self._sessions.joined(place)
        return True

    async def _stands_still(self, attempt: Attempt) -> bool:
        """Whether the only key that it waits for is there, and its own, and that of who held the name.

        However long the queue is, that is quick. Who has heard something need not ask.
        """
        place, oldest = attempt.place, attempt.place.incumbent
        woken, place.woken = place.woken, False
        if (
            woken
            or attempt.patience is None
            or place.token is None
            or place.blockade is None
            or len(place.blockade.keys) != 1
            or oldest is None
        ):
            return False
        [ahead] = place.blockade.keys
        looks = [getting(key) for key in dict.fromkeys((place.key, ahead, oldest.key))]
        outcome = await self._wire.txn(looks, attempt.until, changes=False)
        if isinstance(outcome, Refused):
            return False
        found = {one.key: one for one in outcome if one.lease}
        ours, other, holder = found.get(place.key), found.get(ahead), found.get(oldest.key)
        if ours is None or other is None or holder is None:
            return False
        # A slot is used again, and its new key comes later.
        return other.created < place.token == ours.created and holder.created == oldest.created

    async def _look(self, attempt: Attempt) -> list[Entry] | None:
        found, as_of = await self._wire.entries(attempt.keys.all[0], attempt.until)
        return attempt.judge(found, as_of)

    async def _open(self, attempt: Attempt, remains: list[Entry]) -> bool:
        """Clear away what is left of lost leases; whether their lock-delays are over.

        Who may hold the name beside others shall not hold it if one of these was lost meanwhile: so each step that
        clears something away also shows what is left.
        """
        left: list[Entry] | None = remains
        while left:
            session, oldest = await self._requests.confirm(attempt.place.session, attempt.until, SPENT), left[0]
            operations = [locking(oldest.key, session, oldest.value), deleting(oldest.key)]
            operations.append(getting_all(attempt.keys.all[0]))
            outcome = await self._wire.txn(operations, attempt.until, unread=1)
            if isinstance(outcome, Refused):
                return False
            left = attempt.judge_written(outcome)
        return True

    async def _claim(self, attempt: Attempt) -> bool:
        """Let the key hang on the session for the lease, if it does not yet. False: the key is gone.

        That one was woken proves nothing, and neither does what one saw before: the key itself must be there now.
        """
        want, place = attempt.want, attempt.place
        home = self._sessions.home_for(place, want.ttl, want.delay, self._world.now())
        if home is place.session:
            await self._requests.confirm(home, attempt.until, FRESH)
            return True
        return await self._hang(attempt, home)

    async def hang(self, place: Place, session: Session, until: float) -> bool:
        """Hang the key of a lease, or of one who waits, on another session. False: the key is gone."""
        keys, patience = self._keys_of(place.want.name), max(place.patient_until - self._world.now(), 0.0)
        want = place.want._replace(ttl=max(place.want.ttl, session.ttl)) if place.blockade is None else place.want
        return await self._hang(Attempt(want, place, keys, patience, until), session)

    async def _hang(self, attempt: Attempt, session: Session) -> bool:
        """Hang the key on another session; its place and its token stay. False: the key is gone."""
        place, value = attempt.place, attempt.value_on(session)
        target = await self._requests.confirm(session, attempt.until)
        source = place.session.id or ""
        operations = [unlocking(place.key, source, value), locking(place.key, target, value)]
        outcome = await self._requests.change(place, operations, attempt.until)
        if isinstance(outcome, Refused):
            # It is gone, or an earlier request to hang it there, or elsewhere, was carried out without our knowing.
            outcome, _ = await self._wire.entries(place.key, attempt.until)
            elsewhere = [one.lease for one in outcome if (one.key, one.created) == (place.key, place.token)]
            if elsewhere and elsewhere[0] and elsewhere[0] != target:
                operations[0] = unlocking(place.key, elsewhere[0], value)
                again = await self._requests.change(place, operations, attempt.until)
                outcome = [] if isinstance(again, Refused) else again
        there = [one for one in outcome if (one.key, one.created, one.lease) == (place.key, place.token, target)]
        if not there:
            place.token = place.blockade = None
            return False
        place.modified = there[0].modified
        self._sessions.move(place, session)
        return True

    async def _leave(self, attempt: Attempt) -> None:
        """Who tries only once leaves nothing behind."""
        try:
            await self._requests.change(attempt.place, [deleting(attempt.place.key)], attempt.until)
        except EngineUnavailable as error:
            raise OutcomeUnknown(str(error)) from None
        self._sessions.forget(attempt.want.holder)
