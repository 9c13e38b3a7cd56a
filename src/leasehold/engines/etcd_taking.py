"""Taking a name on etcd: at once, in a queue, and from the queue.

A name that is free is taken by one transaction. Else, whoever is patient hangs its key on a session for waiters; and
when nobody is before it any more, it hangs the key on the session of its TTL, which makes it the holder.
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
from leasehold.engines.etcd_requests import FRESH, Requests
from leasehold.engines.etcd_sessions import Place, Session, Sessions
from leasehold.errors import EngineError, EngineUnavailable, Misuse
from leasehold.wires import etcd_messages as messages
from leasehold.wires.etcd_errors import LeaseGone
from leasehold.wires.etcd_messages import Key, Outcome, looking

SILENCE: Final = 30.0
"""A waiter asks again after so long even without news, unless it knows that one of its own client is before it."""
AMONG_OURSELVES: Final = 600.0
"""Then it asks after so long. Of ten thousand, one would else ask every three milliseconds, and hear nothing new."""
NEAR: Final = 2
"""How many of the latest keys are looked at: one's own, and the one before it."""
SPENT: Final = 1 / 2
"""The same when it is somebody's turn, or when somebody queues: others wait for that."""
SAME_AGAIN: Final = 128
"""So many of the messages that are the same each time are kept: a client mostly uses a few names."""
UNSEEN: Final = layout.Blockade(frozenset(), 0)
"""What is before a key that is in the queue has not been seen yet. None would mean: nothing is."""


class Attempt:
    """One request to take: who wants what, its place, and the keys of the name."""

    __slots__ = ("keys", "near", "patience", "place", "span", "until", "want")

    def __init__(self, want: Want, place: Place, keys: layout.NameKeys, patience: float | None, until: float) -> None:
        self.want, self.place, self.keys, self.patience, self.until = want, place, keys, patience, until
        self.span = keys.in_the_way_of(want.mode)
        self.near = 0 if want.mode == "permit" else NEAR

    def absent(self) -> bytes:
        """The condition for `put`: a key that is there already keeps its place, and the session that it hangs on."""
        return messages.if_created(self.place.key, 0)

    def put(self, session: Session) -> bytes:
        """Write the key, which is known to be absent then."""
        return messages.put(*self._key_on(session))

    def put_if_absent(self, session: Session) -> bytes:
        """The same where that is not known. A full etcd does not notice it: one that it notices has to go along."""
        return messages.put_if_absent(*self._key_on(session))

    def _key_on(self, session: Session) -> tuple[bytes, bytes, int]:
        self.place.may_also_hang_on(session)
        return self.place.key, value_of(self.want, time.time(), self.patience, with_mode=True), session.id

    def hang(self, session: Session) -> bytes:
        """Hang the key on another session; its place and its token stay."""
        self.place.may_also_hang_on(session)
        return messages.hang(self.place.key, session.id)

    def oldest(self) -> bytes:
        """See the oldest that could be in the way."""
        return _oldest(self.span)

    def latest(self) -> list[bytes]:
        """See one's own key, and before it the latest that could be in its way (or all, where they are counted)."""
        upto = 0 if self.place.token is None else self.place.token + 1
        latest = looking(messages.look(*self.span, limit=self.near, newest_first=True, created_before=upto))
        # A shared lease does not stand among those in its way.
        return [latest] if self.want.mode != "shared" else [latest, _seeing(self.place.key)]

    def judge(self, latest: Sequence[Key], revision: int) -> Busy | None:
        """Take note of what is before one's own key, given the keys around it, newest first. None: nothing is."""
        place = self.place
        before = [one for one in reversed(latest) if place.token is not None and one.created < place.token]
        blockade = layout.blockade(self.want.mode, self.want.limit, before)
        still_behind = place.behind is not None and place.behind.waits and place.blockade == blockade
        if not still_behind:
            place.blockade = blockade
        place.revision = revision
        return None if blockade is None else self.busy()

    def busy(self) -> Busy:
        """What to tell one that has to wait."""
        silence = SILENCE if self.place.behind is None else AMONG_OURSELVES
        return Busy(silence, _incumbent(self.place.incumbent))


@functools.lru_cache(maxsize=SAME_AGAIN)
def _oldest(span: tuple[bytes, bytes]) -> bytes:
    return looking(messages.look(*span, limit=1, keys_only=False))


@functools.lru_cache(maxsize=SAME_AGAIN)
def _nothing_in(span: tuple[bytes, bytes]) -> bytes:
    return messages.if_none_created_since(*span, 0)


@functools.lru_cache(maxsize=SAME_AGAIN)
def _seeing(key: bytes) -> bytes:
    return looking(messages.look(key))


@functools.lru_cache(maxsize=SAME_AGAIN)
def _incumbent(oldest: Key | None) -> Incumbent | None:
    """The key that is in the way. How often it was renewed cannot be seen, so no suspicion of it ever ripens.

    It is the same object for all who wait for that key: there may be thousands of them.
    """
    return Incumbent(oldest.created, 0, math.inf, about_in(oldest.value).about) if oldest is not None else None


def _stands_behind(place: Place, ahead: bytes, outcome: Outcome) -> bool:
    """Whether a key and one before it are seen, each as it was: a slot is used again, and its new key comes later."""
    ours, other = outcome.find(place.key), outcome.find(ahead)
    token = place.token
    return token is not None and ours is not None and other is not None and other.created < token == ours.created


class Taking:
    """How names are taken, in one world."""

    def __init__(
        self, requests: Requests, sessions: Sessions, world: World, keys_of: Callable[[str], layout.NameKeys]
    ) -> None:
        self._requests, self._sessions, self._world, self._keys_of = requests, sessions, world, keys_of

    async def take(self, want: Want, patience: float | None, until: float) -> Grant | Busy:
        """Take the name, or say why not; with patience, queue."""
        is_new = self._sessions.known(want.holder) is None
        for tries_left in (1, 0):
            keys = self._keys_of(want.name)
            place = self._sessions.place_for(want, keys, self._world.now())
            try:
                return await self._take(Attempt(want, place, keys, patience, until))
            except LeaseGone as error:
                waiting = self._sessions.waiting_for(want.ttl, self._world.now())
                for session in dict.fromkeys((place.home, place.session, waiting)):
                    if session.confirmed_at is not None and not session.dead:
                        await self._requests.keep_alive(session, until)  # which finds out whether this one is gone
                if not tries_left:
                    raise EngineUnavailable(str(error)) from None
            except (EngineUnavailable, Misuse):
                if is_new:
                    self._sessions.forget(want.holder)
                raise
        raise AssertionError("the second of two tries returns or raises")

    async def _take(self, attempt: Attempt) -> Grant | Busy:
        place = attempt.place
        answer = await self._try(attempt) if place.token is None and self._ahead(attempt) is None else None
        while answer is None:
            if place.token is None:
                answer = await self._join(attempt)
            if answer is None and place.token is not None:
                answer = await self._claim(attempt, place.token)
        return answer

    async def _try(self, attempt: Attempt) -> Grant | Busy | None:
        """Take the name if nothing is in the way. None: it is in the queue, or has to be."""
        want, place = attempt.want, attempt.place
        self._sessions.rehome(place, want.ttl, self._world.now())
        await self._requests.confirm(place.home, attempt.until, want.ttl * FRESH)
        waiting = None if attempt.patience is None else self._sessions.waiting_for(want.ttl, self._world.now())
        if waiting is not None and not waiting.is_fresh(self._world.now(), waiting.ttl * SPENT):
            waiting = None  # not ready, and not needed if the name is free
        then = [attempt.put(place.home)]
        # A shared lease does not stand among those in its way.
        absent = [attempt.absent()] if want.mode == "shared" else []
        if waiting is not None:
            otherwise = [attempt.put_if_absent(waiting), *attempt.latest(), attempt.oldest()]
        elif want.mode == "permit":
            otherwise = [looking(messages.look(*attempt.span)), attempt.oldest()]
        else:
            otherwise = [_seeing(place.key), attempt.oldest()]
        condition = _nothing_in(attempt.span)
        while True:
            outcome = await self._requests.txn([condition, *absent], then, otherwise, attempt.until, place)
            ours = outcome.find(place.key)
            if outcome.succeeded:
                place.token = place.revision = place.modified = outcome.revision
                self._sessions.move(place, place.home)
                return Grant(place.token, since=place.home.confirmed_at)
            place.incumbent = outcome.found[-1][0] if outcome.found[-1] else None
            if waiting is not None:
                return await self._judged(attempt, outcome)
            if ours is not None or attempt.patience is not None:
                return None
            if want.mode != "permit" or layout.blockade("permit", want.limit, outcome.found[0]) is not None:
                self._sessions.forget(want.holder)
                return Busy(SILENCE, _incumbent(place.incumbent))
            # There is room; take it if nobody else did meanwhile.
            condition = messages.if_none_created_since(*attempt.span, outcome.revision)

    def _ahead(self, attempt: Attempt) -> Place | None:
        """Another waiter of this client, behind which an attempt can queue: its turn comes later, whoever else waits.

        To find out who is right before a new key, etcd goes through the whole queue.
        """
        if attempt.patience is None or attempt.want.mode != "exclusive":
            return None
        return self._sessions.latest_waiter(attempt.place.kind, self._world.now())

    async def _join(self, attempt: Attempt) -> Busy | None:
        """Stand in the queue. None: nobody is before it, or it has lost its place again."""
        place, ahead = attempt.place, self._ahead(attempt)
        waiting = self._sessions.waiting_for(attempt.want.ttl, self._world.now())
        try:
            await self._requests.confirm(waiting, attempt.until, waiting.ttl * FRESH)
        except EngineUnavailable:
            if self._world.now() < attempt.until:
                raise
            return Busy(SILENCE, _incumbent(place.incumbent))  # that it is held is known; no time was left to queue
        if ahead is not None:
            return await self._follow(attempt, ahead, waiting)
        outcome = await self._put(attempt, waiting, [*attempt.latest(), attempt.oldest()])
        place.incumbent = outcome.found[-1][0] if outcome.found[-1] else None
        return await self._judged(attempt, outcome)

    async def _follow(self, attempt: Attempt, ahead: Place, waiting: Session) -> Busy | None:
        """Stand in the queue behind another waiter of this client."""
        place = attempt.place
        self._sessions.rehome(place, attempt.want.ttl, self._world.now())
        await self._requests.confirm(place.home, attempt.until, attempt.want.ttl * FRESH)
        both = [_seeing(place.key), _seeing(ahead.key)]
        outcome = await self._put(attempt, waiting, both)
        place.incumbent = ahead.incumbent
        self._note_written(place, outcome.find(place.key))
        if not _stands_behind(place, ahead.key, outcome):
            return await self._look(attempt)
        place.behind, place.revision = ahead, outcome.revision
        self._sessions.joined(place)
        return attempt.busy()

    async def _put(self, attempt: Attempt, session: Session, looks: list[bytes]) -> Outcome:
        """Have the key in the queue, and look around."""
        put = attempt.put(session)
        return await self._requests.txn([attempt.absent()], [put, *looks], looks, attempt.until, attempt.place)

    async def _judged(self, attempt: Attempt, outcome: Outcome) -> Busy | None:
        """Find out what is before a key that was just put into the queue. None: nothing, or the key itself is gone."""
        place, latest = attempt.place, outcome.found[0]
        ours = outcome.find(place.key)
        if ours is None:  # many have come after it, since an earlier request that got no answer
            found = await self._requests.ask(messages.RANGE, messages.look(place.key), attempt.until, messages.keys_in)
            ours = found[0] if found else None
        self._note_written(place, ours)
        if not attempt.near or len(latest) < attempt.near or latest[-1].created < (place.token or 0):
            busy = attempt.judge(latest, outcome.revision)
        else:
            busy = await self._look(attempt)
        if busy is not None:
            self._sessions.joined(place)
        return busy

    def _note_written(self, place: Place, ours: Key | None) -> None:
        """Take note of the key that was just put into the queue; what is before it is seen later."""
        session = place.hangs_on(ours.lease) if ours is not None and ours.key == place.key else None
        if ours is None or session is None:
            raise EngineError("etcd does not show the key that it has just written")
        self._sessions.move(place, session)
        place.blockade = UNSEEN
        # Not two numbers where they are equal: there may be thousands of places.
        place.token, place.modified = ours.created, max(ours.created, ours.modified)

    async def look(self, want: Want, place: Place, until: float) -> None:
        """See whether what stands before a key in the queue has changed, and if so, what it is now."""
        if not await self._stands_still(place, until):
            await self._look(Attempt(want, place, self._keys_of(want.name), None, until))

    async def _stands_still(self, place: Place, until: float) -> bool:
        """Whether the only key that it waits for is there, and its own: however long the queue is, that is quick."""
        if place.token is None or place.blockade is None or len(place.blockade.keys) != 1:
            return False
        [ahead] = place.blockade.keys
        both = [_seeing(place.key), _seeing(ahead)]
        outcome = await self._requests.txn([], both, [], until)
        stands = _stands_behind(place, ahead, outcome)
        if stands:
            place.revision = outcome.revision
        return stands

    async def _look(self, attempt: Attempt) -> Busy | None:
        outcome = await self._requests.txn([], attempt.latest(), [], attempt.until)
        return self._seen(attempt, outcome)

    def _seen(self, attempt: Attempt, outcome: Outcome) -> Busy | None:
        """Judge what was seen of the queue; a key that is gone from it has lost its place."""
        place = attempt.place
        ours = outcome.find(place.key)
        if ours is None or ours.created != place.token:
            # Its session ended, or an operator broke the lock.
            place.token = place.blockade = None
            return None
        place.modified = ours.modified
        return attempt.judge(outcome.found[0], outcome.revision)

    async def _claim(self, attempt: Attempt, token: int) -> Grant | Busy | None:
        """Hold the name if nobody is before one's own key any more. None: the key has lost its place in the queue.

        That one was woken proves nothing, and neither does what one saw before: the key itself must be there now.
        """
        place, conditions = attempt.place, []
        if place.blockade is not None and attempt.want.mode == "permit":
            busy = await self._look(attempt)
            if busy is not None or place.token is None:
                return busy
        elif place.blockade is not None and attempt.want.mode == "shared":
            conditions = [messages.if_none_created_since(*attempt.span, 0)]
        elif place.blockade is not None:
            conditions = [messages.if_none_created_before(*attempt.span, token)]
        self._sessions.rehome(place, attempt.want.ttl, self._world.now())
        for session in dict.fromkeys((place.session, place.home)):
            await self._requests.confirm(session, attempt.until, min(session.ttl, attempt.want.ttl) * SPENT)
        if place.behind is not None and place.behind.waits and await self._stands_still(place, attempt.until):
            return attempt.busy()  # to refuse it the name, etcd would go through the whole queue
        conditions.append(messages.if_modified(place.key, place.modified))
        hang = attempt.hang(place.home)
        outcome = await self._requests.txn(conditions, [hang], attempt.latest(), attempt.until, place)
        if outcome.succeeded:
            self._sessions.move(place, place.home)
            place.blockade, place.revision, place.modified = None, outcome.revision, outcome.revision
            return Grant(token, since=place.home.confirmed_at)
        answer = self._seen(attempt, outcome)
        if answer is None and place.token is not None:
            # Nobody is before it, and nobody ever will be again; so that need not be asked for once more.
            return await self._claim(attempt, token)
        return answer
