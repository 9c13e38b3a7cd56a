"""The sessions of one client: what etcd calls leases, each of which many keys hang on and which end together.

There is one session for each TTL in whole seconds, so that taking a name is one request: the session is there already.
Who has to wait hangs on a shorter one, since a waiter that died holds up the others until its session ends. Sessions
are shared by the caller's engine and the keeper's, in their threads. Nobody ends a session that is no longer used: it
lapses, since nobody keeps it alive.

A request that got no answer may still be carried out, much later. So its key is never used again: it becomes a debt of
its session, which is deleted whenever the session is kept alive; and the session gets no new leases any more, so that
it ends with those that it has.
"""

from __future__ import annotations

import functools
import math
import os
import threading

from leasehold.core.engine import Mode, Want
from leasehold.engines.key_queue import Blockade, NameKeys, Slots
from leasehold.wires.etcd_messages import Key

WAITING = 5
"""The longest TTL of a session that waiters hang on, in seconds."""
CLAIM = 1.0
"""For how long others leave the refreshing of a session to the one who said that it would do it, in seconds."""


class Session:
    """One lease of etcd, kept alive by this client."""

    __slots__ = ("_claimed_until", "confirmed_at", "dead", "debts", "id", "places", "seconds", "slots", "ttl")

    def __init__(self, seconds: int) -> None:
        """With an id of our own choice, so that asking etcd for it a second time does no harm."""
        self.id = int.from_bytes(os.urandom(8)) >> 1 or 1
        self.seconds = seconds
        self.ttl = float(seconds)
        """What etcd granted; it may be more than was asked for."""
        self.confirmed_at: float | None = None
        """When the latest request that etcd confirmed it by was sent."""
        self.dead = False
        self.places = 0
        """How many attempts and leases hang on it."""
        self.debts: dict[bytes, None] = {}
        """Keys that must not be there, and that a late request could still create; oldest first."""
        self.slots: dict[bytes, Slots] = {}
        """The slots in use, by how their keys begin."""
        self._claimed_until = 0.0

    def confirm(self, sent_at: float, ttl: float) -> None:
        """Etcd has granted it, or kept it alive."""
        self.ttl = ttl
        self.confirmed_at = sent_at if self.confirmed_at is None else max(self.confirmed_at, sent_at)

    def over(self, now: float) -> bool:
        """Whether etcd has ended it, or may have."""
        return self.dead or (self.confirmed_at is not None and now >= self.confirmed_at + self.ttl)

    def refresh_at(self, age: float) -> float:
        """When it should be kept alive again: when the latest time was so long ago, and nobody else is at it."""
        return max((self.confirmed_at or 0.0) + age, self._claimed_until)

    def is_fresh(self, now: float, age: float) -> bool:
        """Whether etcd has confirmed it within the last `age` seconds."""
        return not self.dead and self.confirmed_at is not None and now < self.confirmed_at + age

    def claim(self, now: float) -> None:
        """Tell the others that it is being refreshed."""
        self._claimed_until = now + min(CLAIM, self.ttl / 12)


class Place:
    """One attempt, or the lease that became of it: its key, and what is known of its place in the queue."""

    __slots__ = (
        "_blockade",
        "_origin",
        "behind",
        "home",
        "incumbent",
        "key",
        "loose",
        "may_hang_on",
        "modified",
        "owed",
        "revision",
        "session",
        "token",
        "uncertain",
    )

    def __init__(self, session: Session, keys: NameKeys, mode: Mode) -> None:
        """Take the first free slot. `home` is the session for the lease, `session` the one that the key hangs on."""
        self._origin = self.home = self.session = session
        kind = keys.slot(mode, "")
        slot = session.slots.setdefault(kind, Slots()).take()
        session.places += 1
        self.key = kind + f"{session.id:x}.{slot}".encode()
        self.may_hang_on: tuple[Session, ...] = (session,)
        """Every session that a request to hang the key on it was sent for."""
        self.token: int | None = None
        """The revision that created the key, once that is known."""
        self.modified = 0
        """The revision at which the key was last written, as far as is known.

        It is only hung elsewhere if nobody has written it since. So a request to do so that got no answer, and is
        carried out late, cannot take the key away from the session of the lease that it has become meanwhile.
        """
        self.loose = False
        """Whether such a request may still be carried out, although the key is held."""
        self._blockade: Blockade | None = None
        self.behind: Place | None = None
        """The waiter of this client that it waits for, if it is one."""
        self.incumbent: Key | None = None
        """Who held the name when it joined the queue."""
        self.revision = 0
        """At which revision this was so."""
        self.uncertain = False
        """Whether a request of it got no answer, or was interrupted, and may still be carried out."""
        self.owed = False
        """Whether it should have been given back, and could not be."""

    @property
    def kind(self) -> bytes:
        """How all keys of the name and of this mode begin."""
        return self.key[: self.key.rindex(b"/") + 1]

    @property
    def blockade(self) -> Blockade | None:
        """What it waits for; None when it holds the name, or when nothing is known yet."""
        behind = self.behind
        # Made when it is asked for: most of a crowd wait behind one of their own, and each would keep a set.
        return self._blockade if behind is None else Blockade(frozenset((behind.key,)), 0)

    @blockade.setter
    def blockade(self, blockade: Blockade | None) -> None:
        self._blockade, self.behind = blockade, None

    @property
    def waits(self) -> bool:
        """Whether its key stands in the queue, behind others, as far as is known here."""
        return self.token is not None and self._blockade is not None and not self.uncertain and not self.owed

    def may_also_hang_on(self, session: Session) -> None:
        """A request to hang the key on a session is about to be sent."""
        if session not in self.may_hang_on:
            self.may_hang_on = _along_with(self.may_hang_on, session)

    def hangs_on(self, lease: int) -> Session | None:
        """The session with this id, if its key may hang on it."""
        return next((one for one in self.may_hang_on if one.id == lease), None)

    def hang_on(self, session: Session) -> None:
        """Its key hangs on another session from now on."""
        self.session.places -= 1
        self.session = session
        session.places += 1

    def owe(self) -> None:
        """See to it that the key is deleted whenever a session is refreshed that it may hang on."""
        self.owed = True
        for session in self.may_hang_on:
            session.debts[self.key] = None

    def give_up(self) -> None:
        """It is over, and the slot is free if it is certain that nothing more will happen to it."""
        self.session.places -= 1
        self.token = self.behind = None  # or each would keep all before it
        if self.uncertain:
            self.owe()
            return
        slots = self._origin.slots[self.kind]
        slots.give_back(int(self.key.rpartition(b".")[2]))
        if not slots.in_use:
            del self._origin.slots[self.kind]


@functools.lru_cache(maxsize=32)
def _along_with(sessions: tuple[Session, ...], another: Session) -> tuple[Session, ...]:
    """All of them, in one object for all places that may hang on the same: there may be thousands."""
    return (*sessions, another)


class Sessions:
    """The sessions of one client, and what hangs on them. Threads share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._current: dict[tuple[bool, int], Session] = {}
        """By whether they are for waiters, and their TTL."""
        self._retired: list[Session] = []
        self._places: dict[str, Place] = {}
        self._latest: dict[bytes, Place] = {}
        """Who of this client joined a queue last, by how the keys there begin."""

    def known(self, holder: str) -> Place | None:
        """What is known of an attempt."""
        return self._places.get(holder)

    def place_for(self, want: Want, keys: NameKeys, now: float) -> Place:
        """The place of an attempt, on a session that is not over."""
        with self._lock:
            place = self._places.get(want.holder)
            if place is None or place.session.over(now) or place.owed:
                if place is not None:
                    # Over by our clock it may still be there, and somebody just be keeping it alive, with the key.
                    place.uncertain |= not place.session.dead
                    self._leave(place)
                place = self._places[want.holder] = Place(self._session(want.ttl, now), keys, want.mode)
            return place

    def session_for(self, ttl: float, now: float) -> Session:
        """The session for leases of this TTL."""
        with self._lock:
            return self._session(ttl, now)

    def waiting_for(self, ttl: float, now: float) -> Session:
        """The session for those who wait for a lease of this TTL."""
        with self._lock:
            return self._session(min(ttl, WAITING), now, waiting=True)

    def _session(self, ttl: float, now: float, *, waiting: bool = False) -> Session:
        kind = (waiting, math.ceil(ttl))
        session = self._current.get(kind)
        if session is None or session.over(now) or session.debts:
            if session is not None:
                self._retire(session, now)
            session = self._current[kind] = Session(math.ceil(ttl))
        return session

    def _retire(self, session: Session, now: float) -> None:
        self._retired = [one for one in (*self._retired, session) if not one.over(now)]
        for holder, place in list(self._places.items()):
            # One that was not given up is still wanted, and may yet hang its key on another session.
            if place.owed and all(one.over(now) for one in place.may_hang_on):
                del self._places[holder]
                self._latest.pop(place.kind, None)

    def joined(self, place: Place) -> None:
        """Its key stands in the queue."""
        with self._lock:
            self._latest[place.kind] = place

    def latest_waiter(self, kind: bytes, now: float) -> Place | None:
        """The one of this client who joined the queue of such keys last, if it is sure to wait there still."""
        place = self._latest.get(kind)
        waits = place is not None and place.waits and not place.session.over(now)
        return place if waits else None

    def move(self, place: Place, session: Session) -> None:
        """The key of a place hangs on a session from now on."""
        if place.session is not session:
            with self._lock:
                place.hang_on(session)

    def may_hang(self, place: Place, session: Session) -> None:
        """The same as `Place.may_also_hang_on`, for a lease: its holder may prolong it while the keeper renews it."""
        with self._lock:
            place.may_also_hang_on(session)

    def rehome(self, place: Place, ttl: float, now: float) -> None:
        """See to it that the session for the lease is not over; while one waits, it may have lapsed."""
        if place.home.over(now):
            with self._lock:
                place.home = self._session(ttl, now)

    def forget(self, holder: str) -> None:
        """The attempt is over and its key is gone."""
        with self._lock:
            place = self._places.pop(holder, None)
            if place is not None:
                self._leave(place)

    def _leave(self, place: Place) -> None:
        place.give_up()
        if self._latest.get(place.kind) is place:
            del self._latest[place.kind]

    def owe(self, place: Place) -> None:
        """The attempt is over, and its key could not be deleted: others may keep alive the session that it hangs on."""
        with self._lock:
            place.owe()

    def bury(self, session: Session) -> None:
        """Etcd has ended the session, and with it all that hung on it."""
        with self._lock:
            session.dead = True
            self._current = {kind: one for kind, one in self._current.items() if one is not session}

    def retire_idle(self) -> list[Session]:
        """Take out of use the sessions on which nothing hangs, for them to be revoked."""
        with self._lock:
            idle = [one for one in (*self._current.values(), *self._retired) if not one.places and not one.dead]
            for session in idle:
                session.dead = True
            self._current = {kind: one for kind, one in self._current.items() if not one.dead}
            self._retired = [one for one in self._retired if not one.dead]
            return idle

    def forked(self) -> None:
        """In a forked child: the sessions are the parent's."""
        self._lock = threading.Lock()
        self._current, self._retired, self._places, self._latest = {}, [], {}, {}
