"""The sessions of one client: many keys hang on each of them, and end together.

There is one session for each TTL, so that taking a name is one request: the session is there already. Who waits for
longer hangs on a shorter one, since a waiter that died holds up the others until its session ends. A lease with a
lock-delay has a session of its own. Sessions are shared by the caller's engine and the keeper's, in their threads.

A request that got no answer may still be carried out, much later. So its key is never used again: it becomes a debt of
its session, which is deleted whenever the session is renewed; the session gets no new leases any more; and when the
last one is over, it is ended, so that nothing can come of that request.
"""

from __future__ import annotations

import os
import threading
from typing import Final

from leasehold.core.engine import Want
from leasehold.engines.key_queue import Blockade, NameKeys, Slots
from leasehold.wires.consul import Entry, Terms

WAITING: Final = 5.0
"""The TTL of a session that waiters hang on, where Consul allows one as short as this."""
CLAIM: Final = 1.0
"""For how long others leave the renewal of a session to the one who said that it would do it, in seconds."""
ENDED_AFTER: Final = 2.0
"""Consul ends a session that is not renewed after twice its TTL."""


class Session:
    """One session of Consul, renewed by this client."""

    __slots__ = ("_claimed_until", "confirmed_at", "dead", "debts", "id", "places", "slots", "tag", "terms", "ttl")

    def __init__(self, terms: Terms) -> None:
        """Not yet known to Consul, which gives it its id."""
        self.terms, self.ttl = terms, terms.ttl
        self.id: str | None = None
        self.tag = os.urandom(8).hex()
        """How the keys that were made for it are called."""
        self.confirmed_at: float | None = None
        """When the latest request that Consul confirmed it by was sent."""
        self.dead = False
        self.places = 0
        """How many attempts and leases hang on it."""
        self.debts: dict[bytes, None] = {}
        """Keys that must not be there, and that a late request could still create; oldest first."""
        self.slots: dict[bytes, Slots] = {}
        """By how their keys begin."""
        self._claimed_until = 0.0

    def confirm(self, sent_at: float) -> None:
        """Consul has made it, or renewed it."""
        self.confirmed_at = sent_at if self.confirmed_at is None else max(self.confirmed_at, sent_at)

    def lapsed(self, now: float) -> bool:
        """Whether Consul has surely ended it."""
        return self.dead or (self.confirmed_at is not None and now >= self.confirmed_at + self.ttl * ENDED_AFTER)

    def renew_at(self, share: float) -> float:
        """When it should be renewed again: when this share of its TTL has gone by, and nobody is about to."""
        return max((self.confirmed_at or 0.0) + self.ttl * share, self._claimed_until)

    def claim(self, now: float) -> None:
        """Tell the others that it is being made or renewed."""
        self._claimed_until = now + min(CLAIM, self.ttl / 12)

    def unclaim(self) -> None:
        """Whoever is next may try."""
        self._claimed_until = 0.0


class Place:
    """One attempt, or the lease that became of it: its key, and what is known of its place in the queue."""

    # As little as can be: a client may have thousands of them.
    __slots__ = (
        "_blockade",
        "_origin",
        "as_of",
        "home",
        "incumbent",
        "key",
        "modified",
        "owed",
        "patient_until",
        "session",
        "shelter",
        "token",
        "uncertain",
        "waits",
        "want",
        "woken",
    )

    def __init__(self, session: Session, keys: NameKeys, want: Want) -> None:
        """Take the first free slot. `home` is the session for the lease, `session` the one that the key hangs on."""
        self.want = want
        self._origin = self.home = self.session = session
        self.shelter: Session | None = None
        """The session that it hangs on while it waits for longer."""
        session.places += 1
        if want.delay:
            slot = os.urandom(8).hex()
        else:
            slot = str(session.slots.setdefault(keys.slot(want.mode, ""), Slots()).take())
        self.key = keys.slot(want.mode, f"{session.tag}.{slot}")
        self.token: int | None = None
        """The index that the key was created at, once that is known."""
        self.modified = 0
        """The index at which the key was last changed, as far as is known: by this client, if nobody meddles."""
        self._blockade: Blockade | bytes | None = None
        self.waits = False
        """Whether it was told to wait, for others or for the end of a lock-delay."""
        self.woken = False
        """Whether there was news since it last looked at the queue."""
        self.incumbent: Entry | None = None
        """Who held the name when it was last looked at."""
        self.as_of = 0
        """At which index this was so."""
        self.patient_until = 0.0
        """Until when it is ready to wait."""
        self.uncertain = False
        """Whether a request of it got no answer, or was interrupted, and may still be carried out."""
        self.owed = False
        """Whether it should have been given back, and could not be."""

    @property
    def kind(self) -> bytes:
        """How all keys begin that are for such leases of the name."""
        return self.key[: self.key.rindex(b"/") + 1]

    @property
    def blockade(self) -> Blockade | None:
        """What it waits for; None when it holds the name, or when nothing is known yet."""
        kept = self._blockade
        return Blockade(frozenset((kept,)), 0) if isinstance(kept, bytes) else kept

    @blockade.setter
    def blockade(self, blockade: Blockade | None) -> None:
        self._blockade = blockade
        if blockade is not None and len(blockade.keys) == 1 and not blockade.may_stay:
            [self._blockade] = blockade.keys  # as with most: without a set for it

    def may_wait_for(self, key: bytes) -> bool:
        """Whether the key is one of those that it waits for, as far as is known."""
        kept = self._blockade
        return kept == key if isinstance(kept, bytes) else kept is None or key in kept.keys

    @property
    def is_in_line(self) -> bool:
        """Whether its key stands in the queue, behind others, as far as is known here."""
        known = self.token is not None and self._blockade is not None and not self.uncertain
        return known and not self.owed and not self.session.dead

    def hang_on(self, session: Session) -> None:
        """Its key hangs on another session from now on."""
        self.session.places -= 1
        self.session = session
        session.places += 1

    def owe(self) -> None:
        """See to it that the key is deleted whenever a session is renewed that it may hang on."""
        self.owed = True
        for session in (self._origin, self.home, self.session):
            session.debts[self.key] = None

    def give_up(self) -> None:
        """It is over, and the slot is free if it is certain that nothing more will happen to it."""
        self.session.places -= 1
        if self.uncertain:
            self.owe()
        elif not self.want.delay:
            kind = self.kind
            slots = self._origin.slots[kind]
            slots.give_back(int(self.key.rpartition(b".")[2]))
            if not slots.in_use:
                del self._origin.slots[kind]


class Sessions:
    """The sessions of one client, and what hangs on them. Threads share it."""

    def __init__(self, least_ttl: float) -> None:
        self._lock = threading.Lock()
        self._waiting_ttl = max(WAITING, least_ttl)
        self._current: dict[tuple[bool, float], Session] = {}
        """By whether they are for waiters, and their TTL."""
        self._others: list[Session] = []
        """Those that get no new leases."""
        self._places: dict[str, Place] = {}
        self._latest: dict[bytes, Place] = {}
        """Who of this client joined a queue last, by how the keys there begin."""

    def known(self, holder: str) -> Place | None:
        """What is known of an attempt."""
        return self._places.get(holder)

    def place_for(self, want: Want, keys: NameKeys, now: float) -> Place:
        """The place of an attempt, on a session that has not ended as far as is known."""
        with self._lock:
            place = self._places.get(want.holder)
            if place is None or place.session.dead or place.owed:
                if place is not None:
                    self._give_up(place)
                place = self._places[want.holder] = Place(self._session(want.ttl, now), keys, want)
            return place

    def home_for(self, place: Place, ttl: float, delay: float, now: float) -> Session:
        """The session for a lease: the shared one of its TTL, or one of its own if it has a lock-delay."""
        with self._lock:
            home = place.home
            # A request that was given up may still move the key away from the session that it hangs on, but from no
            # other: so it has to be moved first.
            unsure = place.uncertain and home is place.session
            if unsure or home.lapsed(now) or home.ttl < ttl or home.terms.delay != delay:
                home = self._own_session(ttl, delay, now) if delay or unsure else self._session(ttl, now)
                place.home = home
            return home

    def waiting_for(self, place: Place, now: float) -> Session | None:
        """The session for those who wait for longer; None if the one that the attempt hangs on is as short."""
        if place.session.ttl <= self._waiting_ttl:
            return None
        with self._lock:
            place.shelter = self._session(self._waiting_ttl, now, waiting=True)
            return place.shelter

    def _session(self, ttl: float, now: float, *, waiting: bool = False) -> Session:
        session = self._current.get((waiting, ttl))
        if session is None or session.lapsed(now):
            if session is not None:
                self._others.append(session)
            session = self._current[waiting, ttl] = Session(Terms(ttl))
        return session

    def _own_session(self, ttl: float, delay: float, now: float) -> Session:
        self._forget_lost(now)
        session = Session(Terms(ttl, delay))
        self._others.append(session)
        return session

    def _forget_lost(self, now: float) -> None:
        """Leases with a lock-delay that were lost: nobody gives them back, for then the name would not stay closed."""
        for holder, place in list(self._places.items()):
            session = place.session
            if session.terms.delay and session.lapsed(now) and not place.waits and not place.uncertain:
                del self._places[holder]
                self._give_up(place)

    def joined(self, place: Place) -> None:
        """Its key stands in the queue."""
        with self._lock:
            self._latest[place.kind] = place

    def latest_in_line(self, kind: bytes) -> Place | None:
        """Who of this client joined a queue last, if it is sure to wait there still."""
        place = self._latest.get(kind)
        return place if place is not None and place.is_in_line else None

    def move(self, place: Place, session: Session) -> None:
        """The key of a place hangs on another session from now on."""
        with self._lock:
            place.hang_on(session)

    def forget(self, holder: str) -> None:
        """The attempt is over and its key is gone."""
        with self._lock:
            place = self._places.pop(holder, None)
            if place is not None:
                self._give_up(place)

    def owe(self, place: Place) -> None:
        """The attempt is over, and its key could not be deleted: others may keep alive the session that it hangs on."""
        with self._lock:
            place.owe()
            self._retire_indebted()

    def _give_up(self, place: Place) -> None:
        place.give_up()
        if self._latest.get(place.kind) is place:
            del self._latest[place.kind]
        self._retire_indebted()

    def _retire_indebted(self) -> None:
        indebted = {kind: one for kind, one in self._current.items() if one.debts}
        for kind, session in indebted.items():
            del self._current[kind]
            self._others.append(session)

    def bury(self, session: Session) -> None:
        """Consul has ended the session, and with it all that hung on it."""
        with self._lock:
            self._drop([session])

    def take_out(self, *, all_idle: bool) -> list[Session]:
        """Those on which nothing hangs, for them to be ended: the ones that get no new leases, or all."""
        if not all_idle and not self._others:
            return []
        with self._lock:
            candidates = (*self._others, *(self._current.values() if all_idle else ()))
            # A key may be on its way from one session to another, on which nothing hangs until that is confirmed.
            awaited = {one for place in self._places.values() for one in (place.home, place.shelter)}
            idle = [one for one in candidates if not one.places and not one.dead and one not in awaited]
            self._drop(idle)
            return [one for one in idle if one.id is not None]

    def _drop(self, sessions: list[Session]) -> None:
        for session in sessions:
            session.dead = True
        self._current = {kind: one for kind, one in self._current.items() if not one.dead}
        self._others = [one for one in self._others if not one.dead]

    def forked(self) -> None:
        """In a forked child: the sessions are the parent's."""
        self._lock = threading.Lock()
        self._current, self._others, self._places, self._latest = {}, [], {}, {}
